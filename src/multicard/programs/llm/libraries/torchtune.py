"""torchtune 0.6.1: its stock recipes, unchanged. Its development has ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from multicard.programs.llm.library import DPO_BETA, Library
from multicard.programs.machine import Machine, torchtune_python
from multicard.programs.models import Architecture
from multicard.programs.provenance import ModelProvenance, TextProvenance

# Settings of torchtune's recipes and components, as OmegaConf reads them from YAML: text, numbers, lists, mappings.
Settings: TypeAlias = dict[str, Any]

# Number of weights in a block: in NF4 64 weights share a scale, and 256 scales share a factor. Each rank's share of a
# layer has to be a whole number of blocks.
NF4_BLOCK = 64 * 256


def _no_settings(p: Any) -> Settings:
    return {}


@dataclass(frozen=True)
class Recipe:
    """The recipe of a technique, and what its configuration states in addition to what all configurations do."""

    name: str  # without the ending for one or several devices
    # Name if the technique trains all weights; None if there is no other recipe for that.
    name_for_weights: str | None = None
    always_distributed: bool = False  # True if the recipe exists only for torchrun
    # Numbers of ranks for which the recipe compiles the model: one, several, or both.
    compiles_alone: bool = True
    compiles_distributed: bool = True
    # Configuration of the component that computes the loss.
    loss: Settings = field(default_factory=lambda: {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"})
    settings: Callable[[Any], Settings] = _no_settings  # further settings, by the run's parameters
    adapter_settings: Settings = field(default_factory=dict)  # further arguments of the model's builder

    def full_name(self, p: Any) -> str:
        """Return the name by which `tune run` finds the recipe for a run."""
        name = self.name if p.trains_adapters else self.name_for_weights or self.name
        return f"{name}_distributed" if p.distributed else f"{name}_single_device"


def _quantizer(p: Any) -> Settings:
    """Return the setting of the quantizer, whose rounding the training imitates."""
    return {
        "quantizer": {
            "_component_": "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer",
            "groupsize": p.qat_group,
        }
    }


# The recipes by technique; every technique has one.
RECIPES: Mapping[str, Recipe] = {
    "lora": Recipe("lora_finetune"),
    "qlora": Recipe("lora_finetune", adapter_settings={"quantize_base": True}),
    "qat": Recipe(
        "qat_lora_finetune",
        name_for_weights="qat",
        always_distributed=True,
        compiles_alone=False,
        compiles_distributed=False,
        settings=_quantizer,
    ),
    "dpo": Recipe(
        "lora_dpo",
        # The recipe for several devices ignores `compile`.
        compiles_distributed=False,
        loss={"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": DPO_BETA, "label_smoothing": 0},
    ),
    "full": Recipe("full_finetune"),
}


def _described(recipe: Recipe) -> str:
    where = " (always under torchrun)" if recipe.always_distributed else ""
    return f"its recipe `{recipe.name}`{where}"


class Torchtune(Library):
    """Runs torchtune's stock recipes. Several devices share one copy of the model (FSDP2)."""

    name, label = "torchtune", "torchtune"
    description = "its stock recipes; several devices share one copy of the model (FSDP2)."
    techniques: ClassVar[Mapping[str, str]] = {name: _described(recipe) for name, recipe in RECIPES.items()}
    estimates_peak = True
    shares_model = True

    def missing(self, machine: Machine) -> str | None:
        """Return which package is missing or has an unsupported version; None if all are supported."""
        return machine.torchtune

    def python(self) -> str:
        """Return the interpreter of torchtune's own environment if there is one; else this process's own."""
        return torchtune_python()

    def config_error(self, p: Any) -> str | None:
        """Return that a run cannot be compiled because the recipe never compiles; else None."""
        recipe = RECIPES[p.technique]
        if p.compile and not (recipe.compiles_alone or recipe.compiles_distributed):
            return f"compile: torchtune's recipes of the technique {p.technique} cannot compile"
        return None

    def unsupported_reason(self, p: Any, machine: Machine, shape: Architecture | None) -> str | None:
        """Return that attention cannot be compiled, or which layer cannot be shared equally; None if all is well."""
        if p.packed and p.device == "cuda" and machine.triton:
            # torchtune compiles the attention of packed sequences on GPUs, whatever `compile` says.
            return f"packed: true on GPUs has its attention compiled, which needs {machine.triton}; or packed: false"
        if shape is None or not p.quantizes_weights:
            return None
        for layer, (rows, width) in shape.linear_shapes.items():
            # A rank has whole rows and whole blocks.
            if rows % p.devices or rows * width % (p.devices * NF4_BLOCK):
                return f"the technique {p.technique} cannot share {layer} of {p.model} among {p.devices} devices"
        return None

    def distributed(self, p: Any) -> bool:
        """Return whether the run has several devices, or a recipe that exists only for torchrun."""
        return super().distributed(p) or RECIPES[p.technique].always_distributed

    def compiles(self, p: Any) -> bool:
        """Return whether the recipe compiles the model if a run sets `compile`."""
        recipe = RECIPES[p.technique]
        return recipe.compiles_distributed if self.distributed(p) else recipe.compiles_alone

    def tune(self, p: Any, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path) -> None:
        """Run one rank of a recipe. Raises `UserError` if torchtune is missing or has an unsupported version."""
        from multicard.programs.llm import torchtune_backend

        torchtune_backend.tune(p, model, texts, train_file, output)


LIBRARY = Torchtune()
