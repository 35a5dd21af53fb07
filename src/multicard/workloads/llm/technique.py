"""The interface of a technique; the entries are listed in `multicard.workloads.llm.techniques`."""

from collections.abc import Mapping
from typing import Any

from multicard.experiment.datasets import TextKind
from multicard.experiment.models import Architecture


class Technique:
    """How a language model is tuned: by low-rank adapters, unless an entry says otherwise.

    An entry names torchtune's recipes and settings in plain values: it imports neither torch nor torchtune. `p` is
    always of the class LlmParameters.
    """

    name: str
    label: str  # what figures call it
    description: str  # what it does, for the schema and the documentation
    recipe = "lora_finetune"  # stem of the name of torchtune's recipe
    # Torchtune's component.
    loss: Mapping[str, Any] = {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"}
    always_distributed = False  # whether torchtune has its recipe only for torchrun
    kind: TextKind | None = None  # of samples that it alone needs; None where it learns from any
    sequences_per_sample = 1  # that the model computes
    nf4 = False  # whether the frozen weights of linear layers lie in NF4
    fake_quantization = False  # whether training imitates quantized weights and activations
    own_parameters: tuple[str, ...] = ()  # those that have no effect on other techniques
    # Peak learning rates by what is trained, where none is stated; this one of torchtune's llama3/8B_lora.
    rates: Mapping[str, float] = {"adapters": 3e-4}

    def facts(self) -> list[str]:
        """Its recipe, its learning rate and its data, for the documentation."""
        where = " (always under torchrun)" if self.always_distributed else ""
        rates = ", ".join(f"{rate:g} of {trained}" for trained, rate in self.rates.items())
        facts = [f"torchtune's recipe: `{self.recipe}`{where}.", f"Learning rate unless stated: {rates}."]
        if self.kind:
            facts.append(f"Data set: needs samples of kind `{self.kind}`.")
        return facts

    @property
    def pairs(self) -> bool:
        """Whether it compares a chosen with a rejected answer."""
        return self.kind == "preference"

    def recipe_name(self, p: Any) -> str:
        """Name of torchtune's recipe."""
        return f"{self.recipe}_distributed" if p.distributed else f"{self.recipe}_single_device"

    def trains_adapters(self, p: Any) -> bool:
        """Whether adapters are trained and the model's own weights are frozen."""
        return True

    def compiles(self, p: Any) -> bool:
        """Whether torchtune's recipe compiles the model when it is asked to."""
        return True

    def flop_per_weight(self, p: Any) -> int:
        """Floating-point operations per weight and token.

        2 for a forward pass, 2 for the gradients of its inputs, 2 for those of the weights (Kaplan et al. 2020, arXiv
        2001.08361), which frozen weights do not need.
        """
        return 4 if self.trains_adapters(p) else 6

    def learning_rate(self, p: Any) -> float:
        """Peak learning rate where none is stated."""
        return self.rates["adapters" if self.trains_adapters(p) else "weights"]

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """What of a run the technique cannot do; `shape` is that of its model, None where that is not known."""
        return None

    def unsupported_reason(self, p: Any, shape: Architecture) -> str | None:
        """Why the devices of a run cannot share the model."""
        return None

    def settings(self, p: Any) -> dict[str, Any]:
        """Settings of torchtune's recipe beside those that all techniques share."""
        return {}

    def adapter_settings(self) -> dict[str, Any]:
        """Arguments of torchtune's builder of a model with adapters beside those that all techniques share."""
        return {}

    def adapter_shapes(self, rows: int, columns: int, rank: int) -> list[tuple[int, ...]]:
        """Shapes of the adapter of one linear layer, whose weight is rows × columns."""
        return [(rank, columns), (rows, rank)]

    def improves(self, technique: str) -> bool:
        """Whether going over to this technique may make a job of another one faster or smaller, and the same job."""
        return False
