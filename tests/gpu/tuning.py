"""Language models on a GPU: every technique on `tiny` and on random weights of the shape of Llama 3.2 1B."""

from itertools import product
from pathlib import Path
from typing import Any

from once import ROOT, run_once, show
from rich.table import Table
from safetensors.torch import save_file

from multicard.core import units
from multicard.core.files import write_json
from multicard.core.reasons import describe_reason
from multicard.experiment.datasets import ShippedText
from multicard.experiment.machine import Machine
from multicard.experiment.models import ARCHITECTURES, Architecture, Model
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import Run
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.prepare_model import LLAMA3_SPECIAL_TOKENS, prepare_model
from multicard.workloads.llm.prepare_texts import prepare_texts
from multicard.workloads.llm.tiny import config_of, random_weights
from multicard.workloads.llm.vocabulary import BYTES, write_vocabulary
from multicard.workloads.llm.weights import ONE_FILE

RESOURCES = ROOT / "resources"

# Packed, so that every position counts and the estimate is of what runs; DPO cannot pack.
SHORT: dict[str, Any] = {
    "dataset": "preferences", "batch_size": 2, "warmup_steps": 2, "steps": 6, "profiled_steps": 2, "save": "none",
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "LoRA": {"packed": True},
    "LoRA, recomputed": {"packed": True, "activation_checkpointing": True},
    "QLoRA": {"technique": "qlora", "packed": True},
    "QAT": {"technique": "qat", "packed": True},
    "DPO": {"technique": "dpo"},
    "full": {"technique": "full", "packed": True},
}
TOLERANCE = 0.25  # of the estimate, against the measured peak


def check_tuning(device: str, only: list[str] | None, machine: Machine, scratch: Path) -> bool:
    """Run every technique and print its table; return whether all ran and their memory was estimated right."""
    texts = scratch / "preferences"
    prepare_texts("preferences", ShippedText(source="shipped-text", texts="preferences"), texts, RESOURCES)
    models = {"tiny": scratch / "models" / "tiny"}
    prepare_model("tiny", Model(architecture="tiny"), models["tiny"], RESOURCES)
    if device == "cuda":
        models["llama-1b"] = scratch / "models" / "1b"
        weights = scratch / "models" / "weights-1b"
        make_random(weights, ARCHITECTURES["llama3_2_1b"])
        prepare_model("llama-1b", Model(architecture="llama3_2_1b", folder=str(weights)), models["llama-1b"], RESOURCES)
    table = Table(
        "Model", "Run", "Outcome", "Iteration time", "Tokens/s", "Peak memory", "Estimate", "Ratio", "Remarks"
    )
    sound = True
    for model, (name, changes) in product(models, ROWS.items()):
        if only and name not in only:
            continue
        length = {"sequence_length": 1024 if model != "tiny" and changes.get("packed") else 128}
        p = LlmParameters(**(SHORT | length | {"model": model, "device": device} | changes))
        reason = Run(run_id(p), p).unsupported_reason(machine)
        if reason:
            table.add_row(model, name, "not run", "", "", "", "", "", reason)
            continue
        record, found, kernels = run_once(p, texts, scratch, models[model])
        completed = record["outcome"] == "completed"
        sound &= completed and (device == "cpu" or bool(kernels))
        cells = [""] * 5
        if completed:
            peak, estimate = found["peak_memory_bytes"], found["estimated_memory_bytes"]
            cells = [
                units.with_unit(found["iteration_time_s"], units.SECONDS),
                f"{found['tokens_per_s']:.0f}",
                units.with_unit(peak, units.BYTES),
                units.with_unit(estimate, units.BYTES),
                f"{estimate / peak:.2f}" if device == "cuda" else "",
            ]
            sound &= device == "cpu" or abs(estimate / peak - 1) <= TOLERANCE
        table.add_row(model, name, record["outcome"], *cells, describe_reason(record["reason"]) or "")
    show(table)
    return sound


def make_random(folder: Path, shape: Architecture) -> None:
    """Make a checkpoint of random weights, with a tokenizer of as many tokens as the shape asks for."""
    folder.mkdir(parents=True)
    base = shape.vocabulary - LLAMA3_SPECIAL_TOKENS
    longer = (bytes(parts) for length in (2, 3) for parts in product(range(256), repeat=length))
    write_vocabulary(folder / "tokenizer.model", [*BYTES, *(next(longer) for _ in range(base - len(BYTES)))])
    write_json(folder / "config.json", config_of(shape, base))
    save_file(random_weights(shape), folder / ONE_FILE, metadata={"format": "pt"})
