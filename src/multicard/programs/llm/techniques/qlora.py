"""Low-rank adaptation of a model in 4 bits (arXiv 2305.14314)."""

from typing import Any

from multicard.programs.llm.technique import Settings, Technique
from multicard.programs.models import Architecture

# Number of weights in a block: in NF4 64 weights share a scale, and 256 scales share a factor. Each rank's share of a
# layer has to be a whole number of blocks.
NF4_BLOCK = 64 * 256


class QLora(Technique):
    """Trains low-rank adapters. The model's own weights are frozen, and those of linear layers are stored in NF4."""

    name, label = "qlora", "QLoRA"
    description = "as lora, with the frozen weights in 4 bits (NF4)."
    nf4 = True

    def unsupported_reason(self, p: Any, shape: Architecture) -> str | None:
        """Return which layer cannot be divided equally among the devices, by whole rows and blocks; None if all can."""
        for layer, (rows, width) in shape.linear_shapes.items():
            if rows % p.devices or rows * width % (p.devices * NF4_BLOCK):
                return f"the technique qlora cannot share {layer} of {p.model} among {p.devices} devices"
        return None

    def adapter_settings(self) -> Settings:
        """Return the setting that quantizes the frozen weights."""
        return {"quantize_base": True}

    def improves(self, technique: str) -> bool:
        """Return whether `technique` is LoRA: QLoRA trains the same adapters with a model that takes less memory."""
        return technique == "lora"


TECHNIQUE = QLora()
