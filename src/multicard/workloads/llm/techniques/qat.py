"""Quantization-aware training."""

from typing import Any, ClassVar

from multicard.experiment.models import Architecture
from multicard.workloads.llm.technique import Technique


class Qat(Technique):
    """Training that imitates quantized weights and activations, of adapters or of all weights."""

    name, label = "qat", "QAT"
    description = "training that imitates 8-bit activations and 4-bit weights."
    recipe = "qat_lora_finetune"  # of adapters; of all weights `qat`
    always_distributed = True
    fake_quantization = True
    own_parameters = ("qat_of", "qat_group")
    rates: ClassVar[dict[str, float]] = {"adapters": 3e-4, "weights": 2e-5}  # of llama3/8B_qat_lora and 8B_qat_full

    def recipe_name(self, p: Any) -> str:
        """One recipe for adapters, another for all weights."""
        return f"{self.recipe}_distributed" if self.trains_adapters(p) else "qat_distributed"

    def trains_adapters(self, p: Any) -> bool:
        """As `qat_of` says."""
        return p.qat_of == "adapters"

    def compiles(self, p: Any) -> bool:
        """Neither recipe does."""
        return False

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Refuse to compile, and groups that do not divide a layer."""
        if p.compile:
            return "compile: torchtune's recipes of the technique qat cannot compile"
        for layer, (_, width) in shape.linear_shapes.items() if shape else ():
            if width % p.qat_group:
                return f"qat_group: {p.qat_group} does not divide {width}, the width of {layer} in {p.model}"
        return None

    def settings(self, p: Any) -> dict[str, Any]:
        """What is imitated."""
        return {
            "quantizer": {
                "_component_": "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer",
                "groupsize": p.qat_group,
            }
        }


TECHNIQUE = Qat()
