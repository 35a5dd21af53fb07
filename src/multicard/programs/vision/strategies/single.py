"""One device."""

from typing import Any

from multicard.programs.vision.strategy import Strategy


class Single(Strategy):
    """One process on one device: the baseline of the other strategies."""

    name = "single"
    description = "one process, no communication."
    distributed = False

    def unsupported_reason(self, p: Any) -> str | None:
        """Return that the run has several devices or nodes; None if it has one of each."""
        if p.devices > 1:
            return f"the strategy single uses one device, not {p.devices}"
        if p.nodes > 1:
            return f"the strategy single is one process, which cannot use {p.nodes} nodes"
        return None

    def wrap(self, model: Any, p: Any, device: Any) -> Any:
        """Return the model unchanged."""
        return model


STRATEGY = Single()
