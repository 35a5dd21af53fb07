"""The utilization of a machine by a run: the rate of its operations, as a share of the rate of matrix products."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from multicard.config.experiment import parameters_in
from multicard.results.limits import MachineLimits, product_rate, products_disturbed
from multicard.runs.environment import gpu_names
from multicard.runs.record import Hardware, RunRecord

# Peaks that vendors state: operations per second, by the name of a GPU and then by precision.
PEAKS: dict[str, dict[str, float]] = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text(encoding="utf-8"))
# The columns of measures.csv that depend on the peak.
OF_PEAK = ("peak_flop_per_s", "mfu", "hfu", "mfu_of")
# A GPU with at least this compute capability has TF32.
FIRST_WITH_TF32 = 8.0


@dataclass(frozen=True)
class Peak:
    """The highest rate of matrix products of one device."""

    flop_per_s: float
    # Where the rate comes from: "measured", "measured, disturbed" or "vendor".
    source: str


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of matrix products and convolutions on one device in one step, averaged over steps."""

    model: float  # operations that the model's forward and backward passes need
    hardware: float  # `model` plus the operations that activation checkpointing computes again
    # Precisions in which a device may compute, by preference: it uses the first that it supports.
    precisions: tuple[str, ...]


class Utilization(NamedTuple):
    """The utilization of a device by a completed run, with the names of the measures. Made by `utilization`.

    All fields are None if operations were not counted. The last four are None if no peak is known.
    """

    # Operations of one device in one step: those of the model, and those with what checkpointing computes again.
    model_flop_per_step: float | None = None
    hardware_flop_per_step: float | None = None
    # Operations of the model per second.
    achieved_flop_per_s: float | None = None
    # The peak: operations per second.
    peak_flop_per_s: float | None = None
    # Model and hardware FLOP utilization: shares of the peak.
    mfu: float | None = None
    hfu: float | None = None
    # Where the peak comes from: `Peak.source`.
    mfu_of: str | None = None


def operations_of_step(record: RunRecord, steps: pd.DataFrame) -> Operations | None:
    """Return the operations of a step of a completed run, averaged over ranks; None unless every rank counted them.

    `steps`: the rows of the measured steps. If the ranks counted tokens, the operations are scaled to the mean
    number of tokens of these steps, padding included.
    """
    counts = [rank.operations for rank in record.ranks if rank.operations is not None]
    model_counts = [count.model for count in counts if count.model is not None]
    hardware_counts = [count.hardware for count in counts if count.hardware is not None]
    rank_count = len(record.ranks)
    all_ranks_counted = len(model_counts) == len(hardware_counts) == rank_count
    if not counts or not all_ranks_counted:
        return None
    # Operations were counted in one step of the warm-up. Its sequences may have had other lengths.
    growth = 1.0
    tokens_when_counted = [count.padded_tokens for count in counts if count.padded_tokens]
    if len(tokens_when_counted) == rank_count:
        growth = steps["padded_tokens"].mean() * rank_count / sum(tokens_when_counted)
    model = growth * sum(model_counts) / rank_count
    hardware = growth * sum(hardware_counts) / rank_count
    precision = counts[0].precision or ""
    precisions = (precision, "fp32") if precision == "tf32" else (precision,)
    return Operations(model, hardware, precisions)


def utilization(
    record: RunRecord,
    operations: Operations | None,
    iteration_time_s: float,
    machines: Sequence[MachineLimits],
) -> Utilization:
    """Return the utilization of a device by a completed run.

    `operations`: of one device in one step; None if they were not counted. `machines`: limits of any machines, from
    which `limits_of` chooses.

    Model FLOP utilization (`mfu`) is the number of operations per second that the model needs, divided by the peak
    (Chowdhery et al., PaLM, 2022, appendix B). Hardware FLOP utilization (`hfu`) also counts operations that activation
    checkpointing computes again.
    """
    if operations is None:
        return Utilization()
    parameters = record.parameters
    achieved = operations.model / iteration_time_s
    rates = Utilization(operations.model, operations.hardware, achieved)
    limits = limits_of(record, parameters.device, machines)
    peak = peak_of(record, parameters, operations.precisions, limits)
    if peak is None:
        return rates
    return rates._replace(
        peak_flop_per_s=peak.flop_per_s,
        mfu=achieved / peak.flop_per_s,
        hfu=operations.hardware / iteration_time_s / peak.flop_per_s,
        mfu_of=peak.source,
    )


def within_peaks(measures: pd.DataFrame) -> pd.DataFrame:
    """Return the measures with the columns `OF_PEAK` emptied for configurations that were faster than their peak.

    A configuration was faster if `hfu` is above 1 in any of its repeats. Its peak is then not a limit. All of its
    repeats are emptied, because the mean of the slower repeats alone would be too small.
    """
    is_above_peak = pd.to_numeric(measures["hfu"]).gt(1)
    parameters = [measures[name] for name in parameters_in(measures) if name != "repeat"]
    is_in_such_configuration = is_above_peak.groupby(parameters, dropna=False).transform("any")
    return measures.assign(**{name: measures[name].mask(is_in_such_configuration) for name in OF_PEAK})


def limits_of(record: RunRecord, device: str, machines: Iterable[MachineLimits]) -> MachineLimits | None:
    """Return the newest limits of the machine that a run was on.

    If there are none, return the newest limits of a machine with the same kind of device; None if there are none.
    """
    device_kind = _device_kind(record.hardware, device)
    if device_kind is None:
        return None
    of_device = [limits for limits in machines if limits.device == device]
    alike = [limits for limits in of_device if _device_kind(limits.hardware, device) == device_kind]
    name = record.host.name if record.host else None

    def preference(limits: MachineLimits) -> tuple[bool, str]:
        return limits.host is not None and limits.host.name == name, limits.started

    return max(alike, key=preference, default=None)


def peak_of(record: RunRecord, parameters: Any, precisions: Sequence[str], limits: MachineLimits | None) -> Peak | None:
    """Return the peak of a device; None if none is known.

    It is the measured rate in the first of `precisions` that was measured. If none was, it is the vendor's rate of the
    GPU in the first of `precisions` that the vendor states. If TF32 is among `precisions`, see `_computed_in`.
    """
    precisions = _computed_in(record, precisions)
    if limits is not None:
        threads = parameters.threads if parameters.device == "cpu" else 1
        measured = product_rate(limits, precisions, threads)
        if measured:
            return Peak(measured, "measured, disturbed" if products_disturbed(limits) else "measured")
    if parameters.device != "cuda":
        return None
    device_kind = _device_kind(record.hardware, parameters.device)
    stated = PEAKS.get(str(device_kind[0]), {}) if device_kind else {}
    return next((Peak(stated[precision], "vendor") for precision in precisions if precision in stated), None)


def _device_kind(hardware: Hardware | None, device: str) -> tuple[str | int | None, ...] | None:
    """Return a key that is equal for machines with equally fast devices.

    For GPUs it is their name, for CPUs the processor and the number of CPUs. None if it is not recorded, or if the GPUs
    of the machine have different names.
    """
    if hardware is None:
        return None
    if device == "cuda":
        names = set(gpu_names(hardware))
        return tuple(names) if len(names) == 1 else None
    return (hardware.processor, hardware.logical_cpus) if hardware.processor else None


def _computed_in(record: RunRecord, precisions: Sequence[str]) -> Sequence[str]:
    """Return `precisions`, or TF32 alone if it is one of them and all GPUs of the run support it."""
    if "tf32" not in precisions:
        return precisions
    capabilities = [gpu.capability for gpu in record.hardware.gpus] if record.hardware else []
    has_tf32 = capabilities and all(capability and float(capability) >= FIRST_WITH_TF32 for capability in capabilities)
    return ["tf32"] if has_tf32 else precisions
