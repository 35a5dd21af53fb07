"""A process per device, with a replica of the model each."""

from typing import Any

from multicard.workloads.vision.strategy import Strategy


class DistributedDataParallel(Strategy):
    """PyTorch's DistributedDataParallel, every rank passing over all the data."""

    name = "ddp"
    description = "DistributedDataParallel, every rank sees all the data."
    has_buckets = True

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Average gradients over the ranks while the backward pass computes them."""
        from torch.nn import parallel

        on_gpu = device.type == "cuda"
        return parallel.DistributedDataParallel(
            model, device_ids=[device] if on_gpu else None, bucket_cap_mb=p.bucket_cap_mb
        )


STRATEGY = DistributedDataParallel()
