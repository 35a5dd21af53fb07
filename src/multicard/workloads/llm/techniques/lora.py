"""Low-rank adaptation (arXiv 2106.09685)."""

from multicard.workloads.llm.technique import Technique


class Lora(Technique):
    """Low-rank adapters beside frozen weights."""

    name, label = "lora", "LoRA"
    description = "low-rank adapters beside frozen weights."


TECHNIQUE = Lora()
