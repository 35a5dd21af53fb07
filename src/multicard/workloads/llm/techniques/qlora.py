"""Low-rank adaptation of a model in 4 bits (arXiv 2305.14314)."""

from typing import Any

from multicard.experiment.models import Architecture
from multicard.workloads.llm.technique import Technique

# NF4 quantizes 64 weights with one scale, and 256 scales with one factor: a rank's share has to be whole blocks.
NF4_BLOCK = 64 * 256


class QLora(Technique):
    """Trains low-rank adapters beside frozen weights in NF4."""

    name, label = "qlora", "QLoRA"
    description = "as lora, with the frozen weights in 4 bits (NF4)."
    nf4 = True

    def unsupported_reason(self, p: Any, shape: Architecture) -> str | None:
        """Return which layer cannot be divided into whole blocks for the devices of a run."""
        for layer, (rows, width) in shape.linear_shapes.items():
            if rows % p.devices or rows * width % (p.devices * NF4_BLOCK):
                return f"the technique qlora cannot share {layer} of {p.model} among {p.devices} devices"
        return None

    def adapter_settings(self) -> dict[str, Any]:
        """Return the setting that quantizes the frozen weights."""
        return {"quantize_base": True}

    def improves(self, technique: str) -> bool:
        """Return whether the other technique is LoRA, whose adapters this one trains on a smaller model."""
        return technique == "lora"


TECHNIQUE = QLora()
