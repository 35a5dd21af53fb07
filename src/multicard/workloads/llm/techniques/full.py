"""Full fine-tuning."""

from typing import Any

from multicard.workloads.llm.technique import Technique


class Full(Technique):
    """All weights are trained."""

    name, order, label = "full", 50, "full"
    description = "all weights are trained."
    recipe = "full_finetune"

    def trains_adapters(self, p: Any) -> bool:
        """No adapters."""
        return False

    def learning_rate(self, p: Any) -> float:
        """That of llama3/8B_full."""
        return 2e-5


TECHNIQUE = Full()
