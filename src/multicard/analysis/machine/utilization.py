"""How far a run is from the limits of its machine: its operations, and the rate of matrix products."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from multicard.analysis.machine.limits import MachineLimits, product_rate, products_disturbed
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import Operations, Workload
from multicard.runs.environment import gpu_names
from multicard.runs.record import Hardware, RunRecord

MEASURES = (
    "model_flop_per_step", "hardware_flop_per_step", "achieved_flop_per_s", "peak_flop_per_s", "mfu", "hfu", "mfu_of",
)  # fmt: skip
# Peaks as vendors state them: operations per second by the name of a GPU, then by precision.
PEAKS: dict[str, dict[str, float]] = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text(encoding="utf-8"))
# Measures that depend on the peak.
OF_PEAK = ("peak_flop_per_s", "mfu", "hfu", "mfu_of")
# Compute capability of the first GPUs with TF32.
FIRST_WITH_TF32 = 8.0


@dataclass(frozen=True)
class Peak:
    """The highest rate of matrix products of a device."""

    flop_per_s: float
    # `measured`, `measured, disturbed` or `vendor`.
    source: str


def utilization(
    record: RunRecord,
    work: Workload,
    operations: Operations | None,
    iteration_time_s: float,
    machines: Sequence[MachineLimits],
) -> dict[str, Any]:
    """Return the `MEASURES` of a completed run that are known.

    `operations`: those of a device in a step; without them nothing is known. `machines`: limits of any machines, of
    which those of the run's own count. Model FLOP utilization (`mfu`) is Chowdhery et al., PaLM, 2022, appendix B: the
    operations that the model needs per second, over the peak; `hfu` counts those that are computed again, too.
    """
    if operations is None:
        return {}
    parameters = record.parameters
    achieved = operations.model / iteration_time_s
    measures: dict[str, Any] = {
        "model_flop_per_step": operations.model,
        "hardware_flop_per_step": operations.hardware,
        "achieved_flop_per_s": achieved,
    }
    limits = limits_of(record, parameters.device, machines)
    peak = peak_of(record, parameters, operations.precisions, limits)
    if peak is None:
        return measures
    return measures | {
        "peak_flop_per_s": peak.flop_per_s,
        "mfu": achieved / peak.flop_per_s,
        "hfu": operations.hardware / iteration_time_s / peak.flop_per_s,
        "mfu_of": peak.source,
    }


def within_peaks(measures: pd.DataFrame) -> pd.DataFrame:
    """Return runs without the peak and its shares where a repeat of the same configuration was faster than the peak.

    Such a peak is not a limit; shares of the slower repeats alone would be too small on average.
    """
    is_above_peak = pd.to_numeric(measures["hfu"]).gt(1)
    parameters = [measures[name] for name in parameters_in(measures) if name != "repeat"]
    is_in_such_configuration = is_above_peak.groupby(parameters, dropna=False).transform("any")
    return measures.assign(**{name: measures[name].mask(is_in_such_configuration) for name in OF_PEAK})


def limits_of(record: RunRecord, device: str, machines: Iterable[MachineLimits]) -> MachineLimits | None:
    """Return the limits of the machine that a run was on, else of one with the same kind of device, the newest.

    None if there are none.
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
    """Return the peak of a device in the first precision that has one: measured, else as the vendor states."""
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
    """Return what devices have in common that are equally fast; None if that is not known, or they are not alike."""
    if hardware is None:
        return None
    if device == "cuda":
        names = set(gpu_names(hardware))
        return tuple(names) if len(names) == 1 else None
    return (hardware.processor, hardware.logical_cpus) if hardware.processor else None


def _computed_in(record: RunRecord, precisions: Sequence[str]) -> Sequence[str]:
    """Return the precisions, or TF32 alone where it is allowed and the run's GPUs have it."""
    if "tf32" not in precisions:
        return precisions
    capabilities = [gpu.capability for gpu in record.hardware.gpus] if record.hardware else []
    has_tf32 = capabilities and all(capability and float(capability) >= FIRST_WITH_TF32 for capability in capabilities)
    return ["tf32"] if has_tf32 else precisions
