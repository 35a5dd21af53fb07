"""One process per device, each with a replica of the model."""

from typing import Any

from multicard.programs.vision.strategy import Strategy


class DistributedDataParallel(Strategy):
    """PyTorch's DistributedDataParallel; every rank iterates over all the data."""

    name = "ddp"
    description = "DistributedDataParallel, every rank sees all the data."
    has_buckets = True

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Return a model that averages gradients over the ranks while the backward pass computes them."""
        from torch.nn import parallel

        device_ids = [device] if device.type == "cuda" else None
        return parallel.DistributedDataParallel(model, device_ids=device_ids, bucket_cap_mb=p.bucket_cap_mb)


STRATEGY = DistributedDataParallel()
