"""Whether the GPUs run at their own speed, and keep what is written to them: clocks and memory errors, from NVML."""

from collections.abc import Callable
from typing import Any

from multicard.analysis.runs.conditions import SLOWDOWNS
from multicard.doctor.checks import Check

Gpu = dict[str, Any]  # as multicard.doctor.probe.of_gpu describes it

# Of a reading without any load. Others tell how a GPU is set up, or that it is idle.
SLOWED = {**SLOWDOWNS, "hw_slowdown": "heat or power supply"}


def checks(facts: dict[str, Any]) -> list[Check]:
    """Judge clocks and memory errors of all GPUs that answer; nothing without a GPU."""
    gpus = [gpu for gpu in facts.get("nvml_gpus") or [] if "problem" not in gpu]
    return [_clocks(gpus), _memory_errors(gpus)] if gpus else []


def _clocks(gpus: list[Gpu]) -> Check:
    name = "GPU clocks"
    slowed = [found for gpu in gpus if (found := _slowed(gpu))]
    if slowed:
        do = "measure on another node, or have cooling, power supply and limits checked (nvidia-smi -q -d PERFORMANCE)"
        return Check(name, "; ".join(slowed), "warning", do)
    reasons = {reason for gpu in gpus for reason in _state(gpu).get("clock_reasons") or []}
    known = [
        _range("SM clock now", [_state(gpu).get("sm_clock_mhz") for gpu in gpus], "MHz"),
        _range("at most", [gpu["max_sm_clock_mhz"] for gpu in gpus], "MHz"),
        _range("", [_state(gpu).get("temperature_c") for gpu in gpus], "°C"),
        _range("power limit", [_state(gpu).get("power_limit_w") for gpu in gpus], "W"),
        f"held by: {', '.join(sorted(reasons))}" if reasons else "",
    ]
    return Check(name, ", ".join(filter(None, known)) or "not told by the driver")


def _state(gpu: Gpu) -> dict[str, Any]:
    return gpu["conditions"] or {}


def _slowed(gpu: Gpu) -> str | None:
    """What holds the clocks of a GPU back though nothing runs on it; a lowered power limit will under load."""
    state = _state(gpu)
    limit, default = state.get("power_limit_w"), state.get("default_power_limit_w")
    slowing = [reason for reason in state.get("clock_reasons") or [] if reason in SLOWED]
    why = [f"slowed down by {SLOWED[reason]} ({reason})" for reason in slowing]
    if limit is not None and default is not None and limit < default:
        why.append(f"power limit {limit:.0f} W, by default {default:.0f} W")
    if not why:
        return None
    temperature = state.get("temperature_c")
    return f"GPU {gpu['index']}: {', '.join(why)}" + ("" if temperature is None else f", {temperature} °C")


def _range(what: str, numbers: list[float | None], unit: str) -> str:
    """Smallest and largest known number with its unit; empty without any.

    >>> _range("power limit", [300, None, 350.0], "W"), _range("", [41], "°C"), _range("", [None], "°C")
    ('power limit 300–350 W', '41 °C', '')
    """
    known = sorted({round(number) for number in numbers if number is not None})
    return f"{what} {'–'.join(map(str, [*known[:1], *known[1:][-1:]]))} {unit}".strip() if known else ""


# What is wrong with a GPU's memory, the worst first: NVIDIA, "GPU Memory Error Management" (docs.nvidia.com/deploy),
# and for GPUs before Ampere "Dynamic Page Retirement".
Ill = tuple[Callable[[Gpu], bool], str, str, str]
ILLS: tuple[Ill, ...] = (
    (lambda gpu: _rows(gpu)[3] > 0, "a row of memory could not be remapped", "error", "have it replaced"),
    (
        lambda gpu: (gpu["uncorrected_now"] or 0) > 0,
        "uncorrected memory errors since the driver was loaded",
        "error",
        "reset it (nvidia-smi --gpu-reset) or restart the node; if they come back, have it replaced",
    ),
    (
        lambda gpu: _rows(gpu)[2] > 0 or bool(gpu["pages_pending"]),
        "memory with errors waits for a reset to be replaced by spare memory",
        "error",
        "reset it (nvidia-smi --gpu-reset) or restart the node",
    ),
    (
        lambda gpu: (gpu["uncorrected_ever"] or 0) > 0,
        "uncorrected memory errors in its life",
        "warning",
        "if their number grows, have it replaced",
    ),
)


def _rows(gpu: Gpu) -> list[int]:
    """Rows remapped after corrected and uncorrected errors, whether one waits, and one failed; 0 where unknown."""
    return gpu["remapped_rows"] or [0, 0, 0, 0]


def _memory_errors(gpus: list[Gpu]) -> Check:
    name = "GPU memory errors"
    for is_ill, what, verdict, do in ILLS:
        ill = [gpu for gpu in gpus if is_ill(gpu)]
        if ill:
            found = "; ".join(f"GPU {gpu['index']}: {what} ({_counts(gpu)})" for gpu in ill)
            return Check(name, found, verdict, do)
    if all(gpu["ecc"] is None for gpu in gpus):
        return Check(name, "not counted: GPUs without ECC")
    off = [str(gpu["index"]) for gpu in gpus if gpu["ecc"] is False]
    remapped = sum(sum(_rows(gpu)[:2]) for gpu in gpus)
    return Check(
        name, f"none uncorrected, rows remapped: {remapped}" + (f"; ECC is off: GPU {', '.join(off)}" if off else "")
    )


def _counts(gpu: Gpu) -> str:
    corrected, uncorrected, _, _ = _rows(gpu)
    counts = {
        "uncorrected now": gpu["uncorrected_now"],
        "ever": gpu["uncorrected_ever"],
        "rows remapped": corrected + uncorrected if gpu["remapped_rows"] else None,
    }
    return ", ".join(f"{what} {count}" for what, count in counts.items() if count is not None)
