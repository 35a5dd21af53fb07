"""Full fine-tuning."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.programs.llm.technique import Technique


class Full(Technique):
    """Trains all weights."""

    name, label = "full", "full fine-tuning"
    description = "all weights are trained."
    # The rate of torchtune's llama3/8B_full.
    rates: ClassVar[Mapping[str, float]] = {"weights": 2e-5}

    def trains_adapters(self, p: Any) -> bool:
        """Return False: there are no adapters."""
        return False


TECHNIQUE = Full()
