"""The interface of a strategy; the entries are listed in `multicard.workloads.vision.strategies`."""

from typing import Any


class Strategy:
    """How the devices of an image-classification job share its work.

    All that belongs to a strategy happens inside the forward and backward passes of the model that it wraps: the
    training loop asks for no strategy by name. An entry imports torch only when it wraps.
    """

    name: str
    description: str  # what it does, for the schema and the documentation
    # Whether there is a rank for each device, started by torchrun, and they form a process group; else there is one.
    distributed = True
    distributed_sampler = False  # whether each rank sees its own share of the data; else each iterates over all of it
    has_buckets = False  # whether `bucket_cap_mb` has an effect
    has_checkpoints = True  # whether one rank has the whole model, so that an interrupted run can be resumed
    not_in_preset: tuple[str, ...] = ()  # parameters of the preset `tuned` that it cannot have

    def facts(self) -> list[str]:
        """Its processes, its data and its limits, for the documentation."""
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
        """Number of training processes."""
        return devices if self.distributed else 1

    def unsupported_reason(self, p: Any) -> str | None:
        """What of a run (VisionParameters) the strategy cannot do on any machine."""
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Wrap a model (nn.Module) that lies on the rank's device, inside the process group if there is one."""
        raise NotImplementedError

    def baselines(self) -> tuple[str, ...]:
        """Strategies of the run on one device to which a run is compared, the best first."""
        return tuple(dict.fromkeys(("single", self.name)))

    def improves(self, strategy: str, devices: int) -> bool:
        """Whether going over to this strategy may make a job of another one faster or smaller."""
        return False
