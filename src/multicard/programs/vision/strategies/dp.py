"""One process that drives several GPUs."""

from typing import Any

from multicard.programs.vision.strategy import Strategy


class DataParallel(Strategy):
    """PyTorch's nn.DataParallel."""

    name = "dp"
    description = "one process drives all GPUs (nn.DataParallel), each batch is split among them."
    distributed = False

    def unsupported_reason(self, p: Any) -> str | None:
        """Return why a single process cannot do the run on several GPUs; None if it can."""
        if p.nodes > 1:
            return f"the strategy dp is one process, which cannot use {p.nodes} nodes"
        if p.device != "cuda" or p.devices < 2:
            return "the strategy dp needs two or more GPUs"
        if p.compile or p.cuda_graphs:
            return "the strategy dp copies the model in every step, which torch.compile does not support"
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Return a model that is replicated on the first `devices` GPUs in every step."""
        from torch import nn

        from multicard.programs.vision.precision import AutocastModel

        return nn.DataParallel(AutocastModel(model, p.precision), device_ids=list(range(p.devices)))


STRATEGY = DataParallel()
