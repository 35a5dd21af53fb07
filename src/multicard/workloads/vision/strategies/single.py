"""One device."""

from typing import Any

from multicard.workloads.vision.strategy import Strategy


class Single(Strategy):
    """One process on one device, which is what other strategies are compared to."""

    name = "single"
    description = "one process, no communication."
    distributed = False

    def unsupported_reason(self, p: Any) -> str | None:
        """Refuse several devices or nodes."""
        if p.devices > 1:
            return f"the strategy single uses one device, not {p.devices}"
        if p.nodes > 1:
            return f"the strategy single is one process, which cannot use {p.nodes} nodes"
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Leave the model as it is."""
        return model


STRATEGY = Single()
