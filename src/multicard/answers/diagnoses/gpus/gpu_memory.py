"""Diagnoses of memory of GPUs that is free, though it would save work: recomputed activations, and small batches."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts, peak_memory
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.units import BYTES, percent, with_unit
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration

# Less checkpointing is suggested if at most this share of a GPU's memory is used, a larger batch if at most the second.
HALF = 0.5
LITTLE = 0.25
_LESS_CHECKPOINTING = "less activation checkpointing, as of every second layer, or none"
_LARGER_BATCH = (
    "a larger batch per GPU, which may need another learning rate: `multicard tune` with `--vary batch_size=auto` "
    "finds the largest that fits and the one that pays"
)


def diagnoses(configuration: Configuration) -> Iterator[Diagnosis]:
    """Yield that activations are computed again, or that batches are small, on GPUs with much free memory."""
    used = peak_memory(configuration)
    available = configuration.provenance.gpu_memory_bytes
    if configuration["device"] != "cuda" or not used or not available:
        return
    words = f"{with_unit(used, BYTES)} of a GPU's {with_unit(available, BYTES)} are used"
    parts = mean_parts(configuration)
    computing, launching = parts.get(StepPart.COMPUTE), parts.get(StepPart.LAUNCHES)
    again = _computed_again(configuration)
    if again >= LEAST and used <= HALF * available:
        share = None if computing is None else computing * again / (1 + again)
        if share is None or share >= LEAST:
            evidence = (
                f"activation checkpointing computes {percent(again)} of the model's operations again, and {words}"
            )
            yield Diagnosis(evidence, _LESS_CHECKPOINTING, share)
    if launching is not None and launching >= LEAST and used <= LITTLE * available:
        evidence = f"{words}, and a GPU is idle for {percent(launching)} of a step while the host launches work"
        yield Diagnosis(evidence, _LARGER_BATCH, None)


def _computed_again(configuration: Configuration) -> float:
    """Return the operations of a step that are repeated, over those that the model needs; 0 if that is not known."""
    model, hardware = configuration.mean("model_flop_per_step"), configuration.mean("hardware_flop_per_step")
    return hardware / model - 1 if model and hardware else 0.0
