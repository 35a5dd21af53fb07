"""The techniques, a module each; `multicard.workloads.llm.technique` has the interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.workloads.llm.technique import Technique
from multicard.workloads.llm.techniques import dpo, full, lora, qat, qlora

TECHNIQUES: Mapping[str, Technique] = by_name(
    lora.TECHNIQUE,
    qlora.TECHNIQUE,
    qat.TECHNIQUE,
    dpo.TECHNIQUE,
    full.TECHNIQUE,
)
