"""One process per device, each with a replica of the model and a share of the data."""

from multicard.programs.vision.strategies.ddp import DistributedDataParallel


class DistributedSampling(DistributedDataParallel):
    """PyTorch's DistributedDataParallel with its DistributedSampler."""

    name = "ddp-ds"
    description = "DistributedDataParallel with a distributed sampler, each rank sees its share of the data."
    distributed_sampler = True

    def improves(self, strategy: str, devices: int) -> bool:
        """Return whether `strategy` is `dp`, which has one process, or `ddp`, in which each rank sees all the data."""
        return strategy in ("dp", "ddp")


STRATEGY = DistributedSampling()
