"""A process per device, with a replica of the model and a share of the data each."""

from multicard.workloads.vision.strategies.ddp import DistributedDataParallel


class DistributedSampling(DistributedDataParallel):
    """PyTorch's DistributedDataParallel with its DistributedSampler."""

    name = "ddp-ds"
    description = "DistributedDataParallel with a distributed sampler, each rank sees its share of the data."
    distributed_sampler = True

    def improves(self, strategy: str, devices: int) -> bool:
        """Whether the other strategy replicates the model too, but not as fast or over the same data."""
        return strategy in ("dp", "ddp")


STRATEGY = DistributedSampling()
