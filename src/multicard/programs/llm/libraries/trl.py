"""TRL, with PEFT for adapters: Hugging Face's trainers of language models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from multicard.programs.llm.library import Library
from multicard.programs.machine import Machine
from multicard.programs.models import Architecture
from multicard.programs.provenance import ModelProvenance, TextProvenance


class Trl(Library):
    """Runs TRL's trainers. Each device has a whole copy of the model; several exchange gradients (DDP)."""

    name, label = "trl", "TRL"
    description = "TRL's trainers, with adapters by PEFT; each device has a whole copy of the model (DDP)."
    techniques: ClassVar[Mapping[str, str]] = {
        "lora": "`SFTTrainer`, adapters by PEFT",
        "qlora": "`SFTTrainer`, adapters by PEFT, weights in NF4 by bitsandbytes, on GPUs only",
        "qat": "`SFTTrainer`, adapters by PEFT or all weights, rounding by torchao (`QATConfig`)",
        "dpo": "`DPOTrainer`, adapters by PEFT",
        "full": "`SFTTrainer`",
    }

    def missing(self, machine: Machine) -> str | None:
        """Return which package is missing; None if none is."""
        return machine.trl

    def unsupported_reason(self, p: Any, machine: Machine, shape: Architecture | None) -> str | None:
        """Return that samples cannot be packed, or what loss, rounding or weights in NF4 lack; None if all is well."""
        if p.packed:
            # TRL keeps packed samples apart only by the package flash-attn.
            return "packed: true needs library: torchtune"
        if p.device == "cuda" and machine.triton:
            return f"library: trl compiles its loss for GPUs, which needs {machine.triton}"
        if p.imitates_quantization:
            return machine.torchao
        if not p.quantizes_weights:
            return None
        if p.device != "cuda":
            return f"the technique {p.technique} by bitsandbytes needs a GPU; on CPUs it needs library: torchtune"
        return machine.bitsandbytes

    def tune(self, p: Any, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path) -> None:
        """Run one rank of a trainer. Raises `UserError` if a package is missing."""
        from multicard.programs.llm import trl_backend

        trl_backend.tune(p, model, texts, train_file, output)


LIBRARY = Trl()
