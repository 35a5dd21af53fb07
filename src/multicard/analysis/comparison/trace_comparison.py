"""Two traces compared: what got slower or faster, largest difference first."""

import re
from typing import Any

from multicard.analysis.runs.breakdown import overall, per_pitch
from multicard.analysis.runs.step_periods import StepTime, ratio_of_step_times, step_time
from multicard.core.text import gpu_name
from multicard.trace.idle import CAUSES
from multicard.trace.tables import STEP, ActivityTables

Rows = list[dict[str, Any]]
Sums = dict[str, tuple[float, float | None]]  # seconds and calls by name

PARTS = {
    "phases": "phase", "kernel_classes": "class", "collectives": "collective", "memory_operations": "operation",
    "cuda_api": "function",
}  # fmt: skip
TIMES = ("busy", "exposed_communication", "graphs", "idle", *CAUSES)
# Tables of what ran on devices: a side that lacks one ran nothing of that kind, as kernels that now lie in graphs.
ON_DEVICE = ("kernel_classes", "collectives", "memory_operations")
COMPARED = ("timeline", *PARTS)  # activity tables that the comparison is made of

STEP_TIME, SPAN = "step time", "span"  # names of the first row
PER_STEP, WHOLE = "per step", "whole capture"
# Host calls that take as long as what they wait for on a device.
WAITS = re.compile(r".*(?:Synchronize|Query|Memcpy)")
VENDOR = re.compile(r"(?:cuda|hip)(?=[A-Z])")  # of a call of the runtime: AMD names its calls after NVIDIA's
VERSION = re.compile(r"(?:_v\d+|_ptsz)+$")

COLUMNS = ("table", "name", "a_s", "b_s", "difference_s", "ratio", "low", "high", "a_calls", "b_calls")


def compare_captures(a: ActivityTables, b: ActivityTables) -> tuple[Rows, str]:
    """Compare the activity tables of two captures.

    Where both show steps, seconds are `PER_STEP`, and both must be of the scope of steps; else of the `WHOLE` capture,
    and both must be of that scope. The second value says which.

    - First comes `STEP_TIME`, as `step_time` has it, so with the wait between steps, which no step covers. `low` and
      `high` are the 95% interval of its ratio, see `ratio_of_step_times`. Without steps the `SPAN` of the devices
      stands in its place: from the first activity to the last, without an interval.
    - `timeline`: `TIMES` of a device, which count every moment once, with the time between steps. Means over steps and
      devices; idle time by cause where both captures tell it.
    - `PARTS`: means over processes of summed durations and of numbers of calls. Durations that overlap add up, so a
      difference is work saved, not wall time saved. Calls of HIP are compared with those of CUDA of the same name.

    A name that is in one capture only has an empty time in the other. Rows are ordered by the size of the difference,
    one-sided rows by their time; host calls that wait come last, as they repeat what a device does.

    Columns: `COLUMNS`; ratio is b over a.
    """
    times = step_time(a), step_time(b)
    per_step = None not in times
    rows = _first_row(*times) if per_step else []
    devices = [_device_times(side, per_step) for side in (a, b)]
    if all(devices):
        left_out = {name for name in TIMES if not any(side.get(name) for side in devices)}
        has_causes = all(any(cause in side for cause in CAUSES) for side in devices)
        left_out |= {"idle"} if has_causes else set(CAUSES)
        rows += _rows_of(
            "timeline", *({name: (side[name], None) for name in side if name not in left_out} for side in devices)
        )
    for table, name in PARTS.items():
        either = (table in a.rows or table in b.rows) and table in ON_DEVICE and all(devices)
        if either or (table in a.rows and table in b.rows):
            sums = [_sums(side, table, name, _steps_per_process(side) if per_step else 1.0) for side in (a, b)]
            rows += _rows_of(table, *(_without_vendor(*sums) if table == "cuda_api" else sums))
    rows.sort(key=_order)
    return rows, PER_STEP if per_step else WHOLE


def differing_gpus(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[list[str], list[str]] | None:
    """Return the kinds of GPUs of two captures if they differ; None if not, or if one does not name any.

    >>> differing_gpus(("NVIDIA H100",), ("AMD Instinct MI300X",)), differing_gpus(("A100-SXM4-40GB",), ())
    ((['NVIDIA H100'], ['AMD Instinct MI300X']), None)
    """
    kinds = [sorted({gpu_name(name) for name in names if name}) for names in (a, b)]
    return (kinds[0], kinds[1]) if all(kinds) and kinds[0] != kinds[1] else None


def _first_row(a: StepTime, b: StepTime) -> Rows:
    """The step time of both, with the interval of its ratio."""
    [row] = _rows_of("steps", {STEP_TIME: (a.mean_s, None)}, {STEP_TIME: (b.mean_s, None)})
    ratio = ratio_of_step_times(b, a)
    return [row | {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}]


def _rows_of(table: str, a: Sums, b: Sums) -> Rows:
    """A row for each name that one of two captures has."""
    rows = []
    for name in dict.fromkeys((*a, *b)):
        a_s, a_calls = a.get(name, (None, None))
        b_s, b_calls = b.get(name, (None, None))
        both = a_s is not None and b_s is not None
        rows.append(
            dict.fromkeys(COLUMNS)
            | {"table": table, "name": name, "a_s": a_s, "b_s": b_s, "a_calls": a_calls, "b_calls": b_calls}
            | {"difference_s": b_s - a_s if both else None, "ratio": b_s / a_s if both and a_s else None}
        )
    return rows


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    is_first = row["table"] == "steps" or (row["table"], row["name"]) == ("timeline", SPAN)
    waits = row["table"] == "cuda_api" and WAITS.match(row["name"]) is not None
    return not is_first, waits, -_size(row), row["table"], row["name"]


def _device_times(found: ActivityTables, per_step: bool) -> dict[str, float]:
    """Mean over devices of `TIMES`, as far as they are known: per pitch; or of the whole capture, with its `SPAN`."""
    timeline = found.table("timeline").to_pandas()
    rows = per_pitch(timeline) if per_step else overall(timeline)
    names = TIMES if per_step else (SPAN, *TIMES)
    means = {name: rows[f"{name}_s"].astype(float).mean() for name in names}
    return {name: mean for name, mean in means.items() if mean == mean}  # not a number: not known


def _size(row: dict[str, Any]) -> float:
    found = (row["difference_s"], row["a_s"], row["b_s"])
    return round(next(abs(value) for value in found if value is not None), 9)


def _steps_per_process(found: ActivityTables) -> float:
    """Mean number of steps that a capture shows per process."""
    steps = [row for row in found.rows["phases"] if row["phase"] == STEP]
    return len(steps) / _processes(steps)


def _processes(rows: Rows) -> int:
    return len({(row["report"], row["process"]) for row in rows})


def _sums(found: ActivityTables, table: str, name: str, steps: float) -> Sums:
    """Mean over processes of the seconds and calls per name, both by step."""
    rows = found.rows.get(table, [])
    if not rows:
        return {}
    value = "duration_s" if name == "phase" else "total_s"
    # A process without collectives, for example, still counts.
    processes = max(_processes(rows), _processes(found.rows.get("kernel_classes", [])) if table == "collectives" else 0)
    sums: dict[str, list[float]] = {}
    for row in rows:
        own = sums.setdefault(row[name] or "(other)", [0.0, 0.0])
        own[0] += row[value]
        own[1] += row.get("calls", 1)
    return {text: tuple(total / processes / steps for total in own) for text, own in sums.items()}


def _without_vendor(a: Sums, b: Sums) -> tuple[Sums, Sums]:
    """Sums by function, where one side calls only CUDA and the other only HIP: what both have has one name."""
    vendors = [{match[0] for name in side if (match := VENDOR.match(name))} for side in (a, b)]
    if sorted(vendors, key=str) != [{"cuda"}, {"hip"}]:
        return a, b
    common = {_common_name(name) for name in a} & {_common_name(name) for name in b}
    return _renamed(a, common), _renamed(b, common)


def _common_name(function: str) -> str:
    """Name of a call of the runtime without its vendor and the version of its interface.

    >>> _common_name("cudaLaunchKernel_v7000"), _common_name("hipLaunchKernel"), _common_name("cuLaunchKernel")
    ('cuda/hipLaunchKernel', 'cuda/hipLaunchKernel', 'cuLaunchKernel')
    """
    return VENDOR.sub("cuda/hip", VERSION.sub("", function)) if VENDOR.match(function) else function


def _renamed(calls: Sums, common: set[str]) -> Sums:
    """Sums by function, of which those that both sides have bear their common name."""
    sums: Sums = {}
    for name, (seconds, count) in calls.items():
        shared = _common_name(name)
        name = shared if shared in common else name
        more_seconds, more_calls = sums.get(name, (0.0, 0.0))
        sums[name] = (seconds + more_seconds, count + more_calls)
    return sums
