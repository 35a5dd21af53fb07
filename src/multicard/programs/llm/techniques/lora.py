"""Low-rank adaptation (arXiv 2106.09685)."""

from multicard.programs.llm.technique import Technique


class Lora(Technique):
    """Trains low-rank adapters. The model's own weights are frozen. These are the defaults of `Technique`."""

    name, label = "lora", "LoRA"
    description = "low-rank adapters beside frozen weights."


TECHNIQUE = Lora()
