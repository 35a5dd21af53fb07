"""The measures that only runs of language models have."""

from typing import Any

import pandas as pd

from multicard.core.values import Row
from multicard.experiment.models import ARCHITECTURES
from multicard.runs.measures import Measures
from multicard.runs.record import RunRecord
from multicard.workloads.llm.memory_estimate import estimate_memory
from multicard.workloads.llm.parameters import LlmParameters

# Number of steps, at the start and at the end of a run, whose losses are averaged, because losses of single steps
# scatter.
ENDS = 5

MEASURES: dict[str, str] = {
    "tokens_per_s": "tokens, without padding, that all ranks together compute in the measured window, / elapsed_s",
    "tokens_per_s_per_device": "the same per device",
    "tokens_per_step": "tokens, without padding, of a measured step, all ranks together, mean",
    "padding_share": "part of the computed positions that is padding",
    "tokens_per_sample": "tokens, without padding, of a sample, mean of the measured steps: what is left of those that "
    "are longer than the sequence length",
    "energy_per_token_j": "as energy_per_sample_j, per token",
    "loss_at_start": f"mean over ranks and the first {ENDS} steps",
    "loss_at_end": f"mean over ranks and the last {ENDS} steps",
    "parameters": "weights of the model, without adapters",
    "weights_bytes": "the model's own weights, on the rank that has most, by their shapes",
    "adapters_bytes": "adapters, likewise",
    "gradients_bytes": "gradients, likewise",
    "optimizer_bytes": "optimizer state, likewise",
    "estimated_memory_bytes": "estimate of a device's peak memory, from the parameters alone",
}


def measure(record: RunRecord, common: Measures, steps: pd.DataFrame, epochs: Any) -> Row:
    """Return the measures of one completed run.

    `common`: the measures that every workload has; `steps`: the rows of steps.csv. `epochs` is not used. Raises
    `ValueError` if the record does not say which architecture the model has.
    """
    p, model, hardware = record.parameters, record.model, record.hardware
    assert isinstance(p, LlmParameters)
    if model is None or model.architecture is None:
        raise ValueError("found no architecture of its model")
    measured = steps[steps["window"] == "measured"]
    tokens = measured["tokens"].sum()
    # A completed run of this workload has measured steps, so their time is known.
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
        "estimated_memory_bytes": estimate.total,
    }
