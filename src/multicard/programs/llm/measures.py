"""The measures that only runs of language models have."""

from typing import TYPE_CHECKING

from multicard.core.values import Row
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.memory_estimate import estimate_memory
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.models import ARCHITECTURES
from multicard.programs.program import OwnMeasures
from multicard.runs.measures import BYTES, JOULES, PER_S, SHARE, Definition, Measures
from multicard.runs.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

# Number of steps, at the start and at the end of a run, whose losses are averaged, because losses of single steps
# scatter.
ENDS = 5

MEASURES: dict[str, Definition] = {
    "tokens_per_s": Definition(
        "Tokens, without padding, that all ranks together process in the measured window, / `elapsed_s`.", PER_S
    ),
    "tokens_per_s_per_device": Definition("`tokens_per_s` / `devices`.", PER_S),
    "tokens_per_step": Definition("Mean tokens of a measured step, without padding, all ranks together."),
    "padding_share": Definition("Share of the computed tokens that is padding.", SHARE),
    "tokens_per_sample": Definition(
        "Mean tokens of a sample in the measured steps, without padding, after cutting to the sequence length. A DPO "
        "sample counts both answers, each with the prompt."
    ),
    "energy_per_token_j": Definition("As `energy_per_sample_j`, per processed token.", JOULES),
    "loss_at_start": Definition(f"Training loss, mean over ranks and the first {ENDS} steps of the run."),
    "loss_at_end": Definition(f"Training loss, mean over ranks and the last {ENDS} steps of the run."),
    "parameters": Definition("Number of the model's weights, without adapters."),
    "weights_bytes": Definition(
        "Memory of the model's own weights, by the shapes of the tensors, on the rank with the most.", BYTES
    ),
    "adapters_bytes": Definition("As `weights_bytes`, of the adapters.", BYTES),
    "gradients_bytes": Definition("As `weights_bytes`, of the gradients.", BYTES),
    "optimizer_bytes": Definition("As `weights_bytes`, of the optimizer's state.", BYTES),
    "estimated_memory_bytes": Definition(
        "[Estimated](measuring.md#memory-estimates) peak memory of a device, from the parameters alone; empty for "
        "`library: trl`.",
        BYTES,
    ),
}


def _measure(record: RunRecord, common: Measures, steps: "pd.DataFrame", epochs: "pd.DataFrame") -> Row:
    """Return the measures of one run; raise `ValueError` if its record does not say which architecture it has."""
    p, model, hardware = record.parameters, record.model, record.hardware
    assert isinstance(p, LlmParameters)
    if model is None or model.architecture is None:
        raise ValueError("found no architecture of its model")
    measured = steps[steps["window"] == "measured"]
    tokens = measured["tokens"].sum()
    # A completed run of this program has measured steps, so their time is known.
    assert common.elapsed_s is not None
    tokens_per_s = float(measured["tokens"].sum(skipna=False) / common.elapsed_s)
    shape = ARCHITECTURES[model.architecture]
    capabilities = [gpu.capability for gpu in hardware.gpus] if hardware else []
    estimate = estimate_memory(p, shape, *capabilities[:1])
    losses = steps.groupby("step")["loss"].mean().sort_index()
    return {
        "tokens_per_s_per_device": tokens_per_s / p.devices,
        "tokens_per_step": tokens / measured["step"].nunique(),
        "padding_share": 1 - tokens / measured["padded_tokens"].sum(),
        "tokens_per_sample": tokens / measured["samples"].sum(),
        "loss_at_start": losses.head(ENDS).mean(),
        "loss_at_end": losses.tail(ENDS).mean(),
        "parameters": shape.parameters,
        **{f"{part}_bytes": getattr(estimate, part) for part in ("weights", "adapters", "gradients", "optimizer")},
        "estimated_memory_bytes": estimate.total if LIBRARIES[p.library].estimates_peak else None,
    }


LLM_MEASURES = OwnMeasures(MEASURES, _measure)
