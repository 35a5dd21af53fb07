"""Two traces compared: what got slower or faster, largest difference first."""

import re
from typing import Any

import numpy as np

from multicard.analysis.runs.breakdown import overall, per_pitch
from multicard.analysis.runs.step_periods import ratio_of_medians, step_periods
from multicard.trace.tables import STEP, ActivityTables
from multicard.trace.timeline import CAUSES

Sums = dict[str, tuple[float, float | None]]  # seconds and calls by name

PARTS = {
    "phases": "phase", "kernel_classes": "class", "collectives": "collective", "memory_operations": "operation",
    "cuda_api": "function",
}  # fmt: skip
TIMES = ("busy", "exposed_communication", "idle", *CAUSES)
COMPARED = ("timeline", *PARTS)  # activity tables that the comparison is made of, of the scope of steps

PERIOD = "step period"  # from the start of a step to the start of the next one
# Host calls that take as long as what they wait for on a device.
WAITS = re.compile(r".*(?:Synchronize|Query|Memcpy)")

COLUMNS = ("table", "name", "a_s", "b_s", "difference_s", "ratio", "low", "high", "a_calls", "b_calls")


def compare_captures(a: ActivityTables, b: ActivityTables) -> tuple[list[dict[str, Any]], str]:
    """Compare the activity tables of two captures, of the scope of steps.

    Seconds are per step where both captures show steps, else of the whole capture; the second value says which.

    - `PERIOD` comes first: median time from the start of a step to the start of the next, so with the wait between
      steps, which no step covers; by the devices where launches tell, else by the host. `low` and `high` are the 95%
      interval of its ratio, see `ratio_of_medians`. A job is as many times as fast as its period is shorter.
    - `timeline`: `TIMES` of a device, which count every moment once, with the time between steps. Means over steps and
      devices; idle time by cause where both captures tell it.
    - `PARTS`: means over processes of summed durations and of numbers of calls. Durations that overlap add up, so a
      difference is work saved, not wall time saved.

    A name that is in one capture only has an empty time in the other. Rows are ordered by the size of the difference,
    one-sided rows by their time; host calls that wait come last, as they repeat what a device does.

    Columns: `COLUMNS`; ratio is b over a.
    """
    steps = _steps_per_process(a), _steps_per_process(b)
    per_step = None not in steps
    rows: list[dict[str, Any]] = []

    def add(table: str, before: Sums, after: Sums) -> None:
        for text in dict.fromkeys((*before, *after)):
            (one, calls), (other, other_calls) = before.get(text, (None, None)), after.get(text, (None, None))
            both = one is not None and other is not None
            found = (table, text, one, other, other - one if both else None, other / one if both and one else None)
            rows.append(dict(zip(COLUMNS, (*found, None, None, calls, other_calls), strict=True)))

    if per_step:
        periods = step_periods(a), step_periods(b)
        if all(map(len, periods)):
            add("steps", *({PERIOD: (float(np.median(own)), None)} for own in periods))
            ratio = ratio_of_medians(periods[1], periods[0])
            rows[0] |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    times = [_device_times(side, per_step) for side in (a, b)]
    if all(times):
        left_out = {name for name in TIMES if not any(side.get(name) for side in times)}
        left_out |= {"idle"} if all("idle_other" in side for side in times) else set(CAUSES)
        add("timeline", *({name: (side[name], None) for name in side if name not in left_out} for side in times))
    for table, name in PARTS.items():
        if table in a.rows and table in b.rows:
            sides = zip((a, b), steps, strict=True)
            add(table, *(_sums(side, table, name, n if per_step else 1.0) for side, n in sides))
    rows.sort(key=_order)
    return rows, "per step" if per_step else "whole capture"


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    waits = row["table"] == "cuda_api" and WAITS.match(row["name"]) is not None
    return row["table"] != "steps", waits, -_size(row), row["table"], row["name"]


def _device_times(found: ActivityTables, per_step: bool) -> dict[str, float]:
    """Mean over devices of `TIMES`, as far as they are known: per pitch, or of the whole capture."""
    timeline = found.table("timeline").to_pandas()
    rows = per_pitch(timeline) if per_step else overall(timeline)
    means = {name: rows[f"{name}_s"].astype(float).mean() for name in TIMES}
    return {name: mean for name, mean in means.items() if mean == mean}  # not a number: not known


def _size(row: dict[str, Any]) -> float:
    found = (row["difference_s"], row["a_s"], row["b_s"])
    return round(next(abs(value) for value in found if value is not None), 9)


def _steps_per_process(found: ActivityTables) -> float | None:
    """Number of steps that a capture shows per process; None when it shows none."""
    steps = [row for row in found.rows.get("phases", []) if row["phase"] == STEP]
    return len(steps) / _processes(steps) if steps else None


def _processes(rows: list[dict[str, Any]]) -> int:
    return len({(row["report"], row["process"]) for row in rows})


def _sums(found: ActivityTables, table: str, name: str, steps: float) -> Sums:
    """Mean over processes of the seconds and calls per name, both by step."""
    rows = found.rows[table]
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
