"""Full fine-tuning."""

from typing import Any, ClassVar

from multicard.workloads.llm.technique import Technique


class Full(Technique):
    """All weights are trained."""

    name, label = "full", "full"
    description = "all weights are trained."
    recipe = "full_finetune"
    rates: ClassVar[dict[str, float]] = {"weights": 2e-5}  # of llama3/8B_full

    def trains_adapters(self, p: Any) -> bool:
        """No adapters."""
        return False


TECHNIQUE = Full()
