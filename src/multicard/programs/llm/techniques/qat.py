"""Quantization-aware training."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.programs.llm.technique import Settings, Technique
from multicard.programs.models import Architecture


class Qat(Technique):
    """Trains adapters or all weights while it imitates quantized weights and activations."""

    name, label = "qat", "QAT"
    description = "training that imitates 8-bit activations and 4-bit weights."
    recipe = "qat_lora_finetune"  # for adapters; see `recipe_name`
    always_distributed = True
    fake_quantization = True
    own_parameters = ("qat_of", "qat_group")
    # The rates of torchtune's llama3/8B_qat_lora and 8B_qat_full.
    rates: ClassVar[Mapping[str, float]] = {"adapters": 3e-4, "weights": 2e-5}

    def recipe_name(self, p: Any) -> str:
        """Return the name of torchtune's recipe: one for adapters, another one for all weights."""
        return f"{self.recipe}_distributed" if self.trains_adapters(p) else "qat_distributed"

    def trains_adapters(self, p: Any) -> bool:
        """Return whether the parameter `qat_of` is "adapters"."""
        return p.qat_of == "adapters"

    def compiles(self, p: Any) -> bool:
        """Return False: neither recipe compiles."""
        return False

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Return that the recipes cannot compile, or which layer `qat_group` does not divide; None if all fits."""
        if p.compile:
            return "compile: torchtune's recipes of the technique qat cannot compile"
        for layer, (_, width) in shape.linear_shapes.items() if shape else ():
            if width % p.qat_group:
                return f"qat_group: {p.qat_group} does not divide {width}, the width of {layer} in {p.model}"
        return None

    def settings(self, p: Any) -> Settings:
        """Return the setting of the quantizer, whose rounding the training imitates."""
        return {
            "quantizer": {
                "_component_": "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer",
                "groupsize": p.qat_group,
            }
        }


TECHNIQUE = Qat()
