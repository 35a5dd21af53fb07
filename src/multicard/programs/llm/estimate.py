"""Estimates about a run before it starts: its samples, its memory, and how long it takes on GPUs."""

from functools import cache
from pathlib import Path
from typing import Any

from multicard.core.pipeline import pipeline_folder
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs.datasets import ShippedText
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.memory_estimate import BYTES, estimate_memory
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.models import Architecture
from multicard.programs.program import Inputs, Resources

# Floating-point operations per second of a GPU that tunes a language model. They are assumed, not measured: for bf16
# about a third of what the data sheet of a current data-centre GPU gives for dense matrices.
FLOP_PER_S = {"bf16": 3e14, "fp32": 3e13}

# Assumed, too: the bytes per second of the storage from which all ranks of a node read the weights at the same time;
# and the seconds to import a library and to tokenize the first samples.
STORAGE_BYTES_PER_S = 1e9
LIBRARIES_S = 30.0


def sample_count(definition: Any) -> int | None:
    """Return the number of samples of a shipped set, the lines of its file up to its limit; None for other sets."""
    if not isinstance(definition, ShippedText):
        return None
    lines = _shipped_lines(definition.file)
    return min(lines, definition.limit or lines)


# Cached because the runs of an experiment share a few files.
@cache
def _shipped_lines(file: Path) -> int:
    """Return the number of lines of a shipped file."""
    return (pipeline_folder() / "resources" / file).read_bytes().count(b"\n")


def resources(p: LlmParameters, inputs: Inputs) -> Resources:
    """Estimate durations as if all sequences were full, and the memory of the host and of a device."""
    technique = TECHNIQUES[p.technique]
    shape: Architecture = inputs["model"].shape
    weights_bytes = BYTES[p.precision] * shape.parameters
    device_bytes = estimate_memory(p, shape).total
    # The host holds all weights twice while the files that were read are joined.
    host_bytes = 2 * weights_bytes + (device_bytes if p.device == "cpu" else 0)

    sequences = p.gradient_accumulation_steps * p.batch_size * technique.sequences_per_sample
    # Activation checkpointing computes the forward pass again: 2 operations per weight and token.
    flop_per_weight = technique.flop_per_weight(p) + (2 if p.activation_checkpointing else 0)
    step_s = sequences * p.sequence_length * flop_per_weight * shape.parameters / FLOP_PER_S[p.precision]
    durations_s = {
        "loading weights": LIBRARIES_S + weights_bytes / STORAGE_BYTES_PER_S,
        "training": (p.warmup_steps + p.steps) * step_s,
        "profiled window": (LEAST_SETTLING + p.profiled_steps) * step_s,
    }
    # What is rough is good enough to ask for memory of the host, but not to judge whether a run fits a GPU.
    return Resources(host_bytes / 1e6, device_bytes if LIBRARIES[p.library].estimates_peak else None, durations_s)
