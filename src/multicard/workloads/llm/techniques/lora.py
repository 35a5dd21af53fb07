"""Low-rank adaptation (arXiv 2106.09685)."""

from multicard.workloads.llm.technique import Technique


class Lora(Technique):
    """Trains low-rank adapters beside frozen weights: the defaults of a technique."""

    name, label = "lora", "LoRA"
    description = "low-rank adapters beside frozen weights."


TECHNIQUE = Lora()
