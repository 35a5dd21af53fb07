"""Two traces compared: what got slower or faster, largest difference first."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pandas as pd

from multicard.core.text import gpu_name
from multicard.core.values import number_of
from multicard.results.device_time import overall
from multicard.results.step_periods import StepTime, per_period, ratio_of_step_times, step_time
from multicard.trace.idle import CAUSES
from multicard.trace.tables import STEP, ActivityTables

# Activity tables whose durations are summed, each with the column that names a row.
SUMMED = {
    "phases": "phase",
    "kernel_classes": "class",
    "collectives": "collective",
    "memory_operations": "operation",
    "cuda_api": "function",
}
# Times of a device in the timeline, none of which counts a moment twice. `exposed_communication` and `graphs` are parts
# of `busy`, and `CAUSES` are parts of `idle`.
TIMES = ("busy", "exposed_communication", "graphs", "idle", *CAUSES)
# Tables of what ran on devices. If a capture recorded devices but lacks one of these tables, nothing of that kind ran:
# kernels, for example, may all be inside of CUDA graphs now.
ON_DEVICE = ("kernel_classes", "collectives", "memory_operations")
# Activity tables that are compared.
COMPARED = ("timeline", *SUMMED)

# Names of the first row: with steps in both captures, and without.
STEP_TIME, SPAN = "step time", "span"
PER_STEP, WHOLE = "per step", "whole capture"
# Host calls that wait for something on a device, and so take as long as that.
WAITING_CALLS = re.compile(r".*(?:Synchronize|Query|Memcpy)")
# Vendor in the name of a call of the runtime: AMD names its calls after NVIDIA's.
VENDOR = re.compile(r"(?:cuda|hip)(?=[A-Z])")
# Version of the interface, at the end of such a name.
VERSION = re.compile(r"(?:_v\d+|_ptsz)+$")


@dataclass(frozen=True)
class Total:
    """A time in seconds, and the number of calls that it is summed over; None if calls are not counted."""

    seconds: float
    calls: float | None = None


# Totals of one capture, by the name of what took the time, such as a kernel class.
Totals = Mapping[str, Total]


@dataclass(frozen=True)
class Difference:
    """A row of the comparison of two captures, `a` and `b`. A time or number of calls is None if a capture has none."""

    table: str
    name: str
    a_s: float | None
    b_s: float | None
    # Time of b less time of a, and time of b over time of a. None if a time is None; the ratio also if that of a is 0.
    difference_s: float | None
    ratio: float | None
    # 95% interval of the ratio, which only step times have.
    low: float | None = None
    high: float | None = None
    a_calls: float | None = None
    b_calls: float | None = None

    @property
    def size_s(self) -> float:
        """The size of the difference in seconds, by which rows are ordered; if only one side has a time, that time."""
        for seconds in (self.difference_s, self.a_s, self.b_s):
            if seconds is not None:
                return round(abs(seconds), 9)
        return 0.0

    @property
    def is_first(self) -> bool:
        """True of the row about the whole: the step time, or the span if there are no steps."""
        return self.table == "steps" or (self.table == "timeline" and self.name == SPAN)

    @property
    def is_waiting(self) -> bool:
        """True of host calls that wait for a device: their time repeats that of rows about the device."""
        return self.table == "cuda_api" and WAITING_CALLS.match(self.name) is not None


COLUMNS = tuple(column.name for column in fields(Difference))


def compare_captures(a: ActivityTables, b: ActivityTables) -> tuple[list[Difference], str]:
    """Compare the activity tables of two captures, and return the rows with what their seconds are of.

    If both captures show steps, seconds are `PER_STEP`, and the tables of both must have been made for their steps.
    Otherwise seconds are of the `WHOLE` capture, and both tables must have been made for that.

    - The first row is `STEP_TIME`, computed by `step_time`. It includes the time between steps. `low` and `high` are
      the 95% interval of its ratio, see `ratio_of_step_times`. Without steps the first row is the `SPAN` of the
      devices, from their first activity to their last, without an interval.
    - `timeline`: `TIMES` of a device, the time between steps included; means over steps and devices. Idle time is split
      by cause if both captures show causes.
    - `SUMMED`: sums of durations, and numbers of calls; means over processes. Durations that overlap add up, so a
      difference is work saved, not wall time saved. If one side uses CUDA and the other HIP, calls that differ in the
      vendor alone are compared.

    A name that only one capture has is None in the other. The other rows are ordered by the size of their difference,
    or by their time if only one side has one. Host calls that wait for a device come last.
    """
    time_a = step_time(a)
    time_b = step_time(b)
    differences: list[Difference] = []
    is_per_step = False
    if time_a is not None and time_b is not None:
        is_per_step = True
        differences.append(_step_time_difference(time_a, time_b))
    devices_a = _device_times(a, is_per_step)
    devices_b = _device_times(b, is_per_step)
    have_devices = bool(devices_a and devices_b)
    if have_devices:
        differences += _timeline_differences(devices_a, devices_b)
    for table in SUMMED:
        if _is_comparable(table, a, b, have_devices):
            differences += _summed_differences(table, a, b, is_per_step)
    differences.sort(key=_order)
    return differences, PER_STEP if is_per_step else WHOLE


def differing_gpus(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[list[str], list[str]] | None:
    """Return the kinds of GPUs of two captures if they differ; None if they are equal, or if a capture names none.

    >>> differing_gpus(("NVIDIA H100",), ("AMD Instinct MI300X",)), differing_gpus(("A100-SXM4-40GB",), ())
    ((['NVIDIA H100'], ['AMD Instinct MI300X']), None)
    """
    kinds_a = _gpu_kinds(a)
    kinds_b = _gpu_kinds(b)
    are_known = bool(kinds_a and kinds_b)
    return (kinds_a, kinds_b) if are_known and kinds_a != kinds_b else None


def _gpu_kinds(names: Collection[str]) -> list[str]:
    """Return the distinct kinds of GPUs, sorted; names that are empty are left out."""
    return sorted({gpu_name(name) for name in names if name})


def _order(row: Difference) -> tuple[Any, ...]:
    """Return the key by which rows are sorted. False comes before True, so the row about the whole is first."""
    return not row.is_first, row.is_waiting, -row.size_s, row.table, row.name


def _is_comparable(table: str, a: ActivityTables, b: ActivityTables, have_devices: bool) -> bool:
    """Return whether a table can be compared: both captures have it.

    Of a table in `ON_DEVICE` one capture is enough, if both recorded devices (`have_devices`).
    """
    a_has_table = table in a.rows
    b_has_table = table in b.rows
    if table in ON_DEVICE and have_devices:
        return a_has_table or b_has_table
    return a_has_table and b_has_table


def _summed_differences(table: str, a: ActivityTables, b: ActivityTables, is_per_step: bool) -> list[Difference]:
    """Return the rows of a table of `SUMMED`."""
    totals_a = _totals(a, table, is_per_step)
    totals_b = _totals(b, table, is_per_step)
    if table == "cuda_api":
        totals_a, totals_b = _without_vendor(totals_a, totals_b)
    return _differences(table, totals_a, totals_b)


def _differences(table: str, a: Totals, b: Totals) -> list[Difference]:
    """Return a row for each name that at least one of two captures has."""
    names = dict.fromkeys((*a, *b))
    return [_difference(table, name, a.get(name), b.get(name)) for name in names]


def _difference(table: str, name: str, a: Total | None, b: Total | None) -> Difference:
    difference_s = ratio = None
    if a is not None and b is not None:
        difference_s = b.seconds - a.seconds
        ratio = b.seconds / a.seconds if a.seconds else None
    return Difference(
        table=table,
        name=name,
        a_s=a.seconds if a else None,
        b_s=b.seconds if b else None,
        difference_s=difference_s,
        ratio=ratio,
        a_calls=a.calls if a else None,
        b_calls=b.calls if b else None,
    )


def _step_time_difference(a: StepTime, b: StepTime) -> Difference:
    """Return the row of the step times of both captures, with the interval of their ratio."""
    ratio = ratio_of_step_times(b, a)
    row = _difference("steps", STEP_TIME, Total(a.mean_s), Total(b.mean_s))
    return replace(row, ratio=ratio.value, low=ratio.low, high=ratio.high)


def _device_times(capture: ActivityTables, is_per_step: bool) -> dict[str, float]:
    """Return the mean over devices of each known time of `TIMES`, in seconds.

    It is per step, from the start of one to the start of the next, or of the whole capture, then with its `SPAN`.
    """
    timeline = capture.table("timeline").to_pandas()
    rows = per_period(timeline) if is_per_step else overall(timeline)
    names = TIMES if is_per_step else (SPAN, *TIMES)
    means = {name: rows[f"{name}_s"].astype(float).mean() for name in names}
    return {name: mean for name, mean in means.items() if pd.notna(mean)}


def _timeline_differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[Difference]:
    """Return rows of the times of devices, without those that are 0 or not known on both sides.

    Idle time has a row for each cause if both captures show causes, else it is one row.
    """
    have_causes = _has_cause(a) and _has_cause(b)
    repeated = {"idle"} if have_causes else set(CAUSES)
    zero_or_unknown = {name for name in TIMES if not a.get(name) and not b.get(name)}
    left_out = repeated | zero_or_unknown
    return _differences("timeline", _totals_but(a, left_out), _totals_but(b, left_out))


def _has_cause(times: Mapping[str, float]) -> bool:
    return any(cause in times for cause in CAUSES)


def _totals_but(times: Mapping[str, float], left_out: Collection[str]) -> Totals:
    return {name: Total(seconds) for name, seconds in times.items() if name not in left_out}


def _totals(capture: ActivityTables, table: str, is_per_step: bool) -> Totals:
    """Return the seconds and calls of each name, means over processes: per step, or of the whole capture."""
    rows = capture.rows.get(table, [])
    if not rows:
        return {}
    name_column = SUMMED[table]
    duration_column = "duration_s" if table == "phases" else "total_s"
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for row in rows:
        name = str(row[name_column] or "(other)")
        seconds[name] += number_of(row[duration_column])
        calls[name] += number_of(row.get("calls", 1))
    processes = _process_count(rows)
    if table == "collectives":
        # Processes that ran kernels but no collectives have no row in this table, but count in the mean.
        processes = max(processes, _process_count(capture.rows.get("kernel_classes", [])))
    steps = _steps_per_process(capture) if is_per_step else 1.0
    totals = {}
    for name in seconds:
        mean_seconds = seconds[name] / processes / steps
        mean_calls = calls[name] / processes / steps
        totals[name] = Total(mean_seconds, mean_calls)
    return totals


def _steps_per_process(capture: ActivityTables) -> float:
    """Return the mean number of steps that a capture shows per process."""
    steps = [row for row in capture.rows["phases"] if row["phase"] == STEP]
    return len(steps) / _process_count(steps)


def _process_count(rows: Sequence[Mapping[str, Any]]) -> int:
    processes = {(row["report"], row["process"]) for row in rows}
    return len(processes)


def _without_vendor(a: Totals, b: Totals) -> tuple[Totals, Totals]:
    """Give a function of CUDA on one side and the same function of HIP on the other a common name.

    This is done only if one side calls CUDA and no HIP, and the other HIP and no CUDA.
    """
    vendors = sorted([_vendors(a), _vendors(b)])
    if vendors != [["cuda"], ["hip"]]:
        return a, b
    common_names_a = {_common_name(function) for function in a}
    common_names_b = {_common_name(function) for function in b}
    common = common_names_a & common_names_b
    return _renamed(a, common), _renamed(b, common)


def _vendors(functions: Collection[str]) -> list[str]:
    matches = [VENDOR.match(function) for function in functions]
    return sorted({match[0] for match in matches if match})


def _common_name(function: str) -> str:
    """Return the name of a call of the runtime with both vendors in place of its own, and without its version.

    >>> _common_name("cudaLaunchKernel_v7000"), _common_name("hipLaunchKernel"), _common_name("cuLaunchKernel")
    ('cuda/hipLaunchKernel', 'cuda/hipLaunchKernel', 'cuLaunchKernel')
    """
    if not VENDOR.match(function):
        return function
    unversioned = VERSION.sub("", function)
    return VENDOR.sub("cuda/hip", unversioned)


def _renamed(totals: Totals, common: Collection[str]) -> Totals:
    """Rename each function whose common name is in `common` to it, and add up functions that get the same name."""
    renamed: dict[str, Total] = {}
    for function, total in totals.items():
        shared = _common_name(function)
        name = shared if shared in common else function
        before = renamed.get(name, Total(0.0, 0.0))
        calls = (before.calls or 0.0) + (total.calls or 0.0)
        renamed[name] = Total(before.seconds + total.seconds, calls)
    return renamed
