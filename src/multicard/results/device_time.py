"""The parts of a device's time, from rows of the activity table `timeline`, which `trace.timeline` makes."""

from enum import StrEnum

import pandas as pd

from multicard.trace import idle
from multicard.trace.tables import STEP, STEPS

# If idle time exceeds the sum of its known causes by at most this many seconds, the difference is rounding.
_ROUNDING_S = 1e-12


class DevicePart(StrEnum):
    """A part of a device's time. Its value is the name in figures and tables.

    Every moment of a device's span is in exactly one part, so the parts add up to the span.
    """

    COMPUTE = "compute"
    COMPUTE_AND_COMMUNICATION = "compute and communication"
    # Communication while no kernel computes.
    COMMUNICATION = "exposed communication"
    # Copies, fills and migrations while no kernel computes or communicates.
    MEMORY_OPERATIONS = "exposed memory operations"
    GRAPHS = "CUDA graphs"
    IDLE_LAUNCHING = "idle (launching)"
    IDLE_ALLOCATING = "idle (allocating)"
    IDLE_LOADING_CODE = "idle (loading code)"
    IDLE_SYNCHRONIZING = "idle (synchronizing)"
    IDLE_DATA_LOADING = "idle (data loading)"
    IDLE_HOST_ELSEWHERE = "idle (host in no call)"
    IDLE_IN_GRAPH = "idle (within a graph)"
    IDLE_QUEUED = "idle (queued)"
    IDLE_UNKNOWN = "idle (unknown)"


# For each part that is idle time, the causes in the activity table `timeline` whose times it sums up.
IDLE_CAUSES: dict[DevicePart, tuple[str, ...]] = {
    DevicePart.IDLE_LAUNCHING: (idle.LAUNCHING, idle.BETWEEN_CALLS, idle.OTHER_CALLS),
    DevicePart.IDLE_ALLOCATING: (idle.ALLOCATING,),
    DevicePart.IDLE_LOADING_CODE: (idle.LOADING_CODE,),
    DevicePart.IDLE_SYNCHRONIZING: (idle.WAITING,),
    DevicePart.IDLE_DATA_LOADING: (idle.DATA_LOADING,),
    DevicePart.IDLE_HOST_ELSEWHERE: (idle.ELSEWHERE,),
    DevicePart.IDLE_IN_GRAPH: (idle.IN_GRAPH,),
    DevicePart.IDLE_QUEUED: (idle.QUEUED,),
    DevicePart.IDLE_UNKNOWN: (idle.UNKNOWN_CAUSE,),
}


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
