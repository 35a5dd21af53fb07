"""The interface of a strategy; the strategies are listed in `multicard.programs.vision.strategies`."""

from typing import Any


class Strategy:
    """A way in which the devices of an image-classification job share its work.

    A strategy does all its work inside the forward and backward passes of the model that it wraps, so the training loop
    refers to no strategy by name. A strategy imports torch only when it wraps a model. `p` is always a run's
    `VisionParameters`.
    """

    name: str
    description: str  # for the schema and the documentation
    # True: each device has a rank, and the ranks form a process group. False: there is one process without a group.
    distributed = True
    # True: each rank sees its own share of the data. False: each rank iterates over all of it.
    distributed_sampler = False
    has_buckets = False  # True if `bucket_cap_mb` has an effect
    has_checkpoints = True  # True if one rank has the whole model, so that an interrupted run can be resumed
    not_in_preset: tuple[str, ...] = ()  # parameters of the preset `tuned` that the strategy does not support

    def facts(self) -> list[str]:
        """Return sentences on processes, data and limits, for the documentation."""
        facts = [f"Processes: {'one per device' if self.distributed else 'one'}."]
        if self.distributed:
            facts.append(f"Samples of the ranks: {'distinct' if self.distributed_sampler else 'the same'}.")
        facts.append(f"Baseline on one device: {' or '.join(f'`{name}`' for name in self.baselines())}.")
        if not self.has_checkpoints:
            facts.append("An interrupted run restarts from scratch.")
        if self.not_in_preset:
            facts.append(f"Not set by the preset `tuned`: {' and '.join(f'`{name}`' for name in self.not_in_preset)}.")
        return facts

    def ranks(self, devices: int) -> int:
        """Return the number of training processes of a run on so many devices."""
        return devices if self.distributed else 1

    def unsupported_reason(self, p: Any) -> str | None:
        """Return why the strategy cannot do a run on any machine; None if it can."""
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Return a model (nn.Module) that does the strategy's work around `model`.

        `device`: the rank's device; `model` is on it already. If the strategy has a process group, it exists already.
        """
        raise NotImplementedError

    def baselines(self) -> tuple[str, ...]:
        """Return the strategies whose runs on one device are baselines of this strategy's runs, the preferred first."""
        return tuple(dict.fromkeys(("single", self.name)))

    def improves(self, strategy: str, devices: int) -> bool:
        """Return whether a run of another `strategy` on so many devices may be faster or smaller with this one."""
        return False
