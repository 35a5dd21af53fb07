"""Where each device's time goes, from rows of the activity table `timeline`."""

from typing import Any

import pandas as pd

from multicard.analysis.runs.step_parts import IDLE_CAUSES, DevicePart
from multicard.trace.tables import STEP, STEPS

# Columns of the timeline that identify a device of a run.
DEVICE = ["report", "process", "device"]

# What remains of idle time when the times of the known causes are subtracted is, up to here, rounding and no time.
_ROUNDING_S = 1e-12


def device_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each `DevicePart`, a column each, in each row of the timeline; they add up to its `span_s`.

    Idle time counts as of unknown cause where causes were not recorded. A row is empty where kernels were not recorded.
    """
    times_s = timeline.filter(regex="_s$").astype(float)
    graphs_s = _recorded_s(times_s, "graphs_s")
    seconds = {
        DevicePart.COMPUTE: times_s["compute_s"] - times_s["overlapped_s"],
        DevicePart.COMPUTE_AND_COMMUNICATION: times_s["overlapped_s"],
        DevicePart.COMMUNICATION: times_s["exposed_communication_s"],
        DevicePart.MEMORY_OPERATIONS: (
            times_s["busy_s"] - times_s["compute_s"] - times_s["exposed_communication_s"] - graphs_s
        ),
        DevicePart.GRAPHS: graphs_s,
        **_idle_time(times_s),
    }
    return pd.DataFrame(seconds).where(times_s["busy_s"].notna())


def _idle_time(times_s: pd.DataFrame) -> dict[DevicePart, pd.Series]:
    """Return the seconds of each part that is idle time; what no cause explains is in the part of unknown cause."""
    by_part: dict[DevicePart, pd.Series] = {}
    for part, causes in IDLE_CAUSES.items():
        by_part[part] = pd.Series(0.0, times_s.index)
        for cause in causes:
            by_part[part] = by_part[part] + _recorded_s(times_s, f"{cause}_s")
    explained_s = sum(seconds for part, seconds in by_part.items() if part != DevicePart.IDLE_UNKNOWN)
    unexplained_s = times_s["idle_s"] - explained_s
    is_time = unexplained_s.isna() | (unexplained_s > _ROUNDING_S)
    return by_part | {DevicePart.IDLE_UNKNOWN: unexplained_s.where(is_time, 0.0)}


def _recorded_s(times_s: pd.DataFrame, column: str) -> pd.Series:
    """Return a column with 0 where it has no value; zeros if there is no such column."""
    if column not in times_s:
        return pd.Series(0.0, times_s.index)
    return times_s[column].fillna(0.0)


def overall(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each device about all of its steps together, else the one about the whole capture.

    The latter where the traces of its run show no steps. A timeline without the column `run` is of one run.
    """
    rows = timeline[timeline["scope"] != STEP]
    is_of_steps = rows["scope"] == STEPS
    if "run" in rows:
        runs_with_steps = rows.loc[is_of_steps, "run"]
        has_steps = rows["run"].isin(runs_with_steps)
    else:
        has_steps = is_of_steps.any()
    return rows[is_of_steps == has_steps]


def per_period(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each device from the start of a step to the start of the next one, mean over its steps.

    So the time between steps counts: this is what a step costs the job. With n steps it is the row of all steps less
    that of the last one, over n - 1; a single step is followed by no other, so it is that step. Devices without steps
    have no row. Columns: those of `DEVICE`, the durations of the timeline, `extent`, and `periods`, n - 1.
    """
    durations = [name for name in timeline if name.endswith("_s") and name != "start_s"]
    rows: list[dict[str, Any]] = []
    for device, of_device in timeline.groupby(DEVICE, sort=False, dropna=False):
        all_steps = of_device[of_device["scope"] == STEPS]
        steps = of_device[of_device["scope"] == STEP].sort_values("step")
        if all_steps.empty or steps.empty:
            continue
        seconds = all_steps.iloc[0][durations].astype(float)
        periods = len(steps) - 1
        if periods:
            last_step = steps.iloc[-1][durations].astype(float)
            seconds = (seconds - last_step) / periods
        identity = dict(zip(DEVICE, device, strict=True))
        rows.append({**identity, **seconds, "extent": all_steps.iloc[0]["extent"], "periods": periods})
    return pd.DataFrame(rows, columns=[*DEVICE, *durations, "extent", "periods"])
