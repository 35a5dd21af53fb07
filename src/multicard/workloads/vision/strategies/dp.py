"""One process that drives several GPUs."""

from typing import Any

from multicard.experiment.workload import Traffic
from multicard.workloads.vision.strategy import Strategy

IMAGE_BYTES = 4  # of a value of an image


class DataParallel(Strategy):
    """PyTorch's nn.DataParallel."""

    name, order = "dp", 20
    description = "one process drives all GPUs (nn.DataParallel), each batch is split among them."
    distributed = False

    def unsupported_reason(self, p: Any) -> str | None:
        """Refuse what one process with several GPUs cannot do."""
        if p.nodes > 1:
            return f"the strategy dp is one process, which cannot use {p.nodes} nodes"
        if p.device != "cuda" or p.devices < 2:
            return "the strategy dp needs two or more GPUs"
        if p.compile or p.cuda_graphs:
            return "the strategy dp copies the model in every step, which torch.compile does not support"
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Replicate the model on the first `devices` GPUs in every step."""
        from torch import nn

        from multicard.workloads.vision.precision import AutocastModel

        return nn.DataParallel(AutocastModel(model, p.precision), device_ids=list(range(p.devices)))

    def traffic(self, weights_bytes: float, p: Any) -> list[Traffic]:
        """The first GPU sends the weights and adds up the gradients; the other GPUs' images come from it, too."""
        images = p.batch_of_rank * 3 * p.image_size**2 * IMAGE_BYTES * (p.devices - 1) / p.devices
        return [
            Traffic("broadcast", weights_bytes, 1),
            Traffic("reduce", weights_bytes, 1),
            Traffic("broadcast", images, 1),
        ]


STRATEGY = DataParallel()
