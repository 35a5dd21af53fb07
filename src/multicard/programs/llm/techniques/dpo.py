"""Direct preference optimization (arXiv 2305.18290)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.programs.llm.technique import Technique
from multicard.programs.models import Architecture


class Dpo(Technique):
    """Trains adapters to prefer chosen answers to rejected ones. The reference is the model without its adapters."""

    name, label = "dpo", "DPO"
    description = "adapters trained to prefer chosen over rejected answers."
    text_kind = "preference"
    # The rate of torchtune's llama3_1/8B_lora_dpo; there is no such configuration for Llama 3.
    rates: ClassVar[Mapping[str, float]] = {"adapters": 5e-4}
    sequences_per_sample = 2  # both answers, computed as one batch

    def flop_per_weight(self, p: Any) -> int:
        """Return 6: the 4 of adapters, and 2 for a forward pass of the reference."""
        return super().flop_per_weight(p) + 2

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Return that the technique cannot pack samples, if the run packs them; else None."""
        return "packed: the technique dpo cannot pack its samples" if p.packed else None


TECHNIQUE = Dpo()
