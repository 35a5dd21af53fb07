"""Quantization-aware training."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.programs.llm.technique import Technique
from multicard.programs.models import Architecture


class Qat(Technique):
    """Trains adapters or all weights while it imitates quantized weights and activations."""

    name, label = "qat", "QAT"
    description = "training that imitates 8-bit activations and 4-bit weights."
    fake_quantization = True
    own_parameters = ("qat_of", "qat_group")
    # The rates of torchtune's llama3/8B_qat_lora and 8B_qat_full.
    rates: ClassVar[Mapping[str, float]] = {"adapters": 3e-4, "weights": 2e-5}

    def trains_adapters(self, p: Any) -> bool:
        """Return whether the parameter `qat_of` is "adapters"."""
        return p.qat_of == "adapters"

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Return which layer `qat_group` does not divide; None if it divides all."""
        for layer, (_, width) in shape.linear_shapes.items() if shape else ():
            if width % p.qat_group:
                return f"qat_group: {p.qat_group} does not divide {width}, the width of {layer} in {p.model}"
        return None


TECHNIQUE = Qat()
