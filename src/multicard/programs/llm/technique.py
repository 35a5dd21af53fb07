"""The interface of a technique; the techniques are listed in `multicard.programs.llm.techniques`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.programs.datasets import TextKind
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.models import Architecture


class Technique:
    """A way to tune a language model: by low-rank adapters, unless a subclass overrides that.

    A technique states what is true with every library (`multicard.programs.llm.libraries`), as plain values, so it
    imports neither torch nor a library. `p` is always a run's `LlmParameters`.
    """

    name: str
    label: str  # name in figures
    description: str  # for the schema and the documentation
    text_kind: TextKind | None = None  # the kind of samples that it needs; None if it learns from any
    sequences_per_sample = 1  # sequences that the model computes for a sample
    nf4 = False  # True if the frozen weights of linear layers lie in NF4
    fake_quantization = False  # True if training imitates quantized weights and activations
    own_parameters: tuple[str, ...] = ()  # names of parameters that have no effect with other techniques
    # Peak learning rate of runs that state none, by what they train. This one is that of torchtune's llama3/8B_lora.
    rates: ClassVar[Mapping[str, float]] = {"adapters": 3e-4}

    def facts(self) -> list[str]:
        """Return sentences on libraries, learning rate and data, for the documentation."""
        libraries = [
            f"`library: {library.name}`: {library.techniques.get(self.name, 'not possible')}."
            for library in LIBRARIES.values()
        ]
        rates = ", ".join(f"{rate:g} of {trained}" for trained, rate in self.rates.items())
        facts = [*libraries, f"Learning rate unless stated: {rates}."]
        if self.text_kind:
            facts.append(f"Data set: needs samples of kind `{self.text_kind}`.")
        return facts

    @property
    def pairs(self) -> bool:
        """True if the technique compares a chosen with a rejected answer."""
        return self.text_kind == "preference"

    def trains_adapters(self, p: Any) -> bool:
        """Return whether a run trains adapters and freezes the model's own weights."""
        return True

    def flop_per_weight(self, p: Any) -> int:
        """Return the number of floating-point operations per weight and token.

        They are 2 for the forward pass, 2 for the gradients of a layer's inputs, and 2 for those of its weights, which
        frozen weights do not need (Kaplan et al. 2020, arXiv 2001.08361).
        """
        return 4 if self.trains_adapters(p) else 6

    def learning_rate(self, p: Any) -> float:
        """Return the peak learning rate of a run that states none."""
        return self.rates["adapters" if self.trains_adapters(p) else "weights"]

    def config_error(self, p: Any, shape: Architecture | None) -> str | None:
        """Return why the technique cannot do a run; None if it can. `shape`: the run's model; None if not known."""
        return None

    def adapter_shapes(self, rows: int, columns: int, rank: int) -> list[tuple[int, ...]]:
        """Return the shapes of the adapter of one linear layer, whose weight is rows × columns."""
        return [(rank, columns), (rows, rank)]

    def improves(self, technique: str) -> bool:
        """Return whether a run of another `technique` may be faster or smaller with this one."""
        return False
