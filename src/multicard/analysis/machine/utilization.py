"""How far a run is from the limits of its machine: its operations, and the rate of matrix products."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from multicard.analysis.machine.limits import MachineLimits, product_rate, products_disturbed
from multicard.core.text import gpu_name
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import Operations, Workload

MEASURES = (
    "model_flop_per_step", "hardware_flop_per_step", "achieved_flop_per_s", "peak_flop_per_s", "mfu", "hfu", "mfu_of",
)  # fmt: skip
# Of vendors: operations per second by the name of a GPU and the precision.
PEAKS: dict[str, dict[str, float]] = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text(encoding="utf-8"))
OF_PEAK = ("peak_flop_per_s", "mfu", "hfu", "mfu_of")
FIRST_WITH_TF32 = 8.0  # compute capability


def utilization(
    record: Mapping[str, Any],
    work: Workload,
    operations: Operations | None,
    iteration_time_s: float,
    machines: Sequence[MachineLimits],
) -> dict[str, Any]:
    """Rates and utilization of a completed run by the `operations` of a device in a step; the unknown is left out.

    `machines`: limits of any machines, of which those of the run's own count.
    """
    p = work.parameters.model_validate(record["parameters"])
    limits = machine_of(record, p.device, machines)
    if operations is None:
        return {}
    found = {
        "model_flop_per_step": operations.model,
        "hardware_flop_per_step": operations.hardware,
        "achieved_flop_per_s": operations.model / iteration_time_s,
    }
    peak, whose = peak_rate(record, p, operations.precisions, limits)
    if peak is None:
        return found
    return found | {
        "peak_flop_per_s": peak,
        "mfu": operations.model / iteration_time_s / peak,
        "hfu": operations.hardware / iteration_time_s / peak,
        "mfu_of": whose,
    }


def within_peaks(measures: pd.DataFrame) -> pd.DataFrame:
    """Runs without the peak and its shares where a repeat of the same configuration was faster than the peak.

    Such a peak is not a limit; shares of the slower repeats alone would be too small on average.
    """
    exceeded = pd.to_numeric(measures["hfu"]).gt(1)
    by = [measures[name] for name in parameters_in(measures) if name != "repeat"]
    of_configuration = exceeded.groupby(by, dropna=False).transform("any")
    return measures.assign(**{name: measures[name].mask(of_configuration) for name in OF_PEAK})


def machine_of(record: Mapping[str, Any], device: str, machines: Iterable[MachineLimits]) -> MachineLimits | None:
    """The record of limits of the machine that a run was on, else of one with the same kind of device; the newest."""
    kind, name = _kind(record.get("hardware"), device), (record.get("host") or {}).get("name")
    alike = [each for each in machines if kind and each.device == device and _kind(each.hardware, device) == kind]
    return max(alike, key=lambda each: ((each.host or {}).get("name") == name, each.started), default=None)


def _kind(hardware: Mapping[str, Any] | None, device: str) -> tuple[Any, ...] | None:
    """What devices must have in common to be as fast; None where that is not known, or they are not alike."""
    hardware = hardware or {}
    if device == "cuda":
        names = {gpu_name(gpu.get("name")) for gpu in hardware.get("gpus") or []}
        return tuple(names) if len(names) == 1 else None
    return (hardware["processor"], hardware.get("logical_cpus")) if hardware.get("processor") else None


def peak_rate(
    record: Mapping[str, Any], p: Any, precisions: Sequence[str], limits: MachineLimits | None
) -> tuple[float | None, str | None]:
    """Operations per second that a device computes at most, and `mfu_of`: whose peak that is."""
    precisions = _computed_in(record, precisions)
    measured = limits and product_rate(limits, precisions, p.threads if p.device == "cpu" else 1)
    if measured:
        return measured, "measured, disturbed" if products_disturbed(limits) else "measured"
    name = p.device == "cuda" and _kind(record.get("hardware"), p.device)
    stated = PEAKS.get(name[0], {}) if name else {}
    return next(((stated[each], "vendor") for each in precisions if each in stated), (None, None))


def _computed_in(record: Mapping[str, Any], precisions: Sequence[str]) -> Sequence[str]:
    """The precisions, or TF32 alone where it is allowed and the run's GPUs have it."""
    if "tf32" not in precisions:
        return precisions
    capabilities = [gpu.get("capability") for gpu in (record.get("hardware") or {}).get("gpus") or []]
    has_tf32 = capabilities and all(each and float(each) >= FIRST_WITH_TF32 for each in capabilities)
    return ["tf32"] if has_tf32 else precisions
