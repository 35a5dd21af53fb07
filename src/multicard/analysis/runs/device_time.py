"""The time of each device by `DevicePart`, from rows of the activity table `timeline`."""

import pandas as pd

from multicard.analysis.runs.step_parts import IDLE_CAUSES, DevicePart
from multicard.core.values import Row
from multicard.trace.tables import STEP, STEPS

# Columns of the timeline that identify a device of a run.
DEVICE = ["report", "process", "device"]

# If idle time exceeds the sum of its known causes by at most this many seconds, the difference is rounding.
_ROUNDING_S = 1e-12


def device_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each `DevicePart` in each row of the timeline; the parts of a row add up to its `span_s`.

    The result has the rows of the timeline, and a column for each part. Idle time without a recorded cause is
    `IDLE_UNKNOWN`. If kernels were not recorded, all cells of a row are empty.
    """
    times_s = timeline.filter(regex="_s$").astype(float)
    busy_s = times_s["busy_s"]
    compute_s = times_s["compute_s"]
    overlapped_s = times_s["overlapped_s"]
    communication_s = times_s["exposed_communication_s"]
    graphs_s = _recorded_s(times_s, "graphs_s")
    seconds = {
        DevicePart.COMPUTE: compute_s - overlapped_s,
        DevicePart.COMPUTE_AND_COMMUNICATION: overlapped_s,
        DevicePart.COMMUNICATION: communication_s,
        DevicePart.MEMORY_OPERATIONS: busy_s - compute_s - communication_s - graphs_s,
        DevicePart.GRAPHS: graphs_s,
        **_idle_time(times_s),
    }
    return pd.DataFrame(seconds).where(busy_s.notna())


def _idle_time(times_s: pd.DataFrame) -> dict[DevicePart, pd.Series]:
    """Return the seconds of each part that is idle time. Idle time that no cause explains is in `IDLE_UNKNOWN`."""
    by_part: dict[DevicePart, pd.Series] = {}
    for part, causes in IDLE_CAUSES.items():
        seconds = pd.Series(0.0, times_s.index)
        for cause in causes:
            seconds = seconds + _recorded_s(times_s, f"{cause}_s")
        by_part[part] = seconds
    explained_s = sum(seconds for part, seconds in by_part.items() if part != DevicePart.IDLE_UNKNOWN)
    unexplained_s = times_s["idle_s"] - explained_s
    is_time = unexplained_s.isna() | (unexplained_s > _ROUNDING_S)
    return by_part | {DevicePart.IDLE_UNKNOWN: unexplained_s.where(is_time, 0.0)}


def _recorded_s(times_s: pd.DataFrame, column: str) -> pd.Series:
    """Return a column with its empty cells as 0; all zeros if there is no such column."""
    if column not in times_s:
        return pd.Series(0.0, times_s.index)
    return times_s[column].fillna(0.0)


def overall(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return one row per device: the row about all steps together, from the start of the first to the end of the last.

    If the traces of a run show no steps on any device, the rows about the whole capture are returned for this run. If
    they show steps on some devices only, the other devices of the run have no row. A timeline without the column `run`
    is of one run.
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
    """Return the seconds of each device from the start of a step to the start of the next one, averaged over its steps.

    This is the time that a step costs the job, because it includes the time between steps. For a device with n steps,
    it is the row about all steps minus the row of the last step, divided by n - 1. For a single step it is the row
    about all steps, as there is no next step. A device without steps has no row.

    Columns: those of `DEVICE`, the durations of the timeline, `extent`, and `periods`, which is n - 1.
    """
    durations = [name for name in timeline if name.endswith("_s") and name != "start_s"]
    rows: list[Row] = []
    for device, rows_of_device in timeline.groupby(DEVICE, sort=False, dropna=False):
        scope = rows_of_device["scope"]
        rows_of_all_steps = rows_of_device[scope == STEPS]
        steps = rows_of_device[scope == STEP].sort_values("step")
        if rows_of_all_steps.empty or steps.empty:
            continue
        all_steps = rows_of_all_steps.iloc[0]
        seconds = all_steps[durations].astype(float)
        periods = len(steps) - 1
        if periods:
            last_step = steps.iloc[-1]
            seconds = (seconds - last_step[durations].astype(float)) / periods
        identity = dict(zip(DEVICE, device, strict=True))
        rows.append({**identity, **seconds, "extent": all_steps["extent"], "periods": periods})
    return pd.DataFrame(rows, columns=[*DEVICE, *durations, "extent", "periods"])
