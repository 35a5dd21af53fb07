"""Direct preference optimization (arXiv 2305.18290)."""

from typing import Any, ClassVar

from multicard.experiment.models import Architecture
from multicard.workloads.llm.technique import Technique


class Dpo(Technique):
    """Adapters trained to prefer chosen answers; the reference is the same model without them."""

    name, label = "dpo", "DPO"
    description = "adapters trained to prefer chosen over rejected answers."
    recipe = "lora_dpo"
    loss: ClassVar[dict[str, Any]] = {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.1, "label_smoothing": 0}
    kind = "preference"
    rates: ClassVar[dict[str, float]] = {"adapters": 5e-4}  # of llama3_1/8B_lora_dpo; torchtune has none for Llama 3
    sequences_per_sample = 2  # both answers, computed as one batch

    def compiles(self, p: Any) -> bool:
        """The recipe for several devices ignores that it is asked to."""
        return not p.distributed

    def flop_per_weight(self, p: Any) -> int:
        """One forward pass more, of the reference."""
        return 6

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Refuse packed samples."""
        return "packed: the technique dpo cannot pack its samples" if p.packed else None


TECHNIQUE = Dpo()
