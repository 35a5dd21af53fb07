"""Low-rank adaptation of a model in 4 bits (arXiv 2305.14314)."""

from multicard.programs.llm.technique import Technique


class QLora(Technique):
    """Trains low-rank adapters. The model's own weights are frozen, and those of linear layers are stored in NF4."""

    name, label = "qlora", "QLoRA"
    description = "as lora, with the frozen weights in 4 bits (NF4)."
    nf4 = True

    def improves(self, technique: str) -> bool:
        """Return whether `technique` is LoRA: QLoRA trains the same adapters with a model that takes less memory."""
        return technique == "lora"


TECHNIQUE = QLora()
