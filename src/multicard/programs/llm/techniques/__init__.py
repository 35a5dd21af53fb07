"""The techniques, a module each; `multicard.programs.llm.technique` has the interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.programs.llm.technique import Technique
from multicard.programs.llm.techniques import dpo, full, lora, qat, qlora

TECHNIQUES: Mapping[str, Technique] = by_name(
    lora.TECHNIQUE,
    qlora.TECHNIQUE,
    qat.TECHNIQUE,
    dpo.TECHNIQUE,
    full.TECHNIQUE,
)
