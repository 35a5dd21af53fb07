"""Two traces compared: what got slower or faster, largest difference first."""

from typing import Any

from multicard.analysis.device_time import overall, per_pitch
from multicard.trace.steps import DEVICE
from multicard.trace.tables import STEP, ActivityTables
from multicard.trace.timeline import CAUSES

PARTS = {"phases": "phase", "kernel_classes": "class", "memory_operations": "operation", "cuda_api": "function"}
TIMES = ("busy", "exposed_communication", "idle", *CAUSES)
COMPARED = ("timeline", *PARTS)  # activity tables that the comparison is made of, of the scope of steps

PITCH = "step pitch"  # from the start of a step to the start of the next one

COLUMNS = ("table", "name", "a_s", "b_s", "difference_s", "ratio")


def compare_captures(a: ActivityTables, b: ActivityTables) -> tuple[list[dict[str, Any]], str]:
    """Compare the activity tables of two captures, of the scope of steps.

    Seconds are per step where both captures show steps, else of the whole capture; the second value says which.

    - `PITCH`: mean time from the start of a step to the start of the next, so with the wait between steps, which no
      step covers; by the devices where launches tell, else by the host. A job is as many times as fast as its pitch is
      shorter.
    - `timeline`: `TIMES` of a device, which count every moment once; per pitch, so with the time between steps. Means
      over devices; idle time by cause where both captures tell it.
    - `PARTS`: means over processes of summed durations. Durations that overlap add up, so a difference is work saved,
      not wall time saved.

    A name that is in one capture only has an empty time in the other. Rows are ordered by the size of the difference,
    one-sided rows by their time. One capture of each gives no interval: small differences may be noise.

    Columns: `COLUMNS`; ratio is b over a.
    """
    steps = _steps_per_process(a), _steps_per_process(b)
    per_step = None not in steps
    rows = []

    def add(table: str, before: dict[str, float], after: dict[str, float]) -> None:
        for text in dict.fromkeys((*before, *after)):
            one, other = before.get(text), after.get(text)
            both = one is not None and other is not None
            rows.append(
                {
                    "table": table,
                    "name": text,
                    "a_s": one,
                    "b_s": other,
                    "difference_s": other - one if both else None,
                    "ratio": other / one if both and one else None,
                }
            )

    if per_step:
        pitches = step_pitch(a), step_pitch(b)
        if None not in pitches:
            add("steps", *({PITCH: pitch} for pitch in pitches))
    times = [_device_times(side, per_step) for side in (a, b)]
    if all(times):
        left_out = {name for name in TIMES if not any(side.get(name) for side in times)}
        left_out |= {"idle"} if all("idle_other" in side for side in times) else set(CAUSES)
        add("timeline", *({name: side[name] for name in side if name not in left_out} for side in times))
    for table, name in PARTS.items():
        if table in a.rows and table in b.rows:
            sides = zip((a, b), steps, strict=True)
            add(table, *(_seconds(side.rows[table], name, n if per_step else 1.0) for side, n in sides))
    rows.sort(key=lambda row: (-_size(row), row["table"] != "steps", row["table"], row["name"]))
    return rows, "per step" if per_step else "whole capture"


def step_pitch(found: ActivityTables) -> float | None:
    """Mean seconds from the start of a step to the start of the next; None without two steps of one process.

    By each device that tells its own steps, else by each process; the mean over them.
    """
    devices = per_pitch(found.table("timeline").to_pandas())
    pitches = devices.loc[(devices["extent"] == DEVICE) & (devices["pitches"] > 0), "span_s"].tolist()
    if not pitches:
        starts: dict[tuple[Any, ...], list[float]] = {}
        for row in found.rows.get("phases", []):
            if row["phase"] == STEP:
                starts.setdefault((row["report"], row["process"]), []).append(row["start_s"])
        pitches = [(max(own) - min(own)) / (len(own) - 1) for own in starts.values() if len(own) > 1]
    return sum(pitches) / len(pitches) if pitches else None


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


def _seconds(rows: list[dict[str, Any]], name: str, steps: float) -> dict[str, float]:
    """Mean over processes of the seconds per name."""
    value = "duration_s" if name == "phase" else "total_s"
    sums: dict[str, float] = {}
    for row in rows:
        sums[row[name]] = sums.get(row[name], 0.0) + row[value]
    return {text: seconds / _processes(rows) / steps for text, seconds in sums.items()}
