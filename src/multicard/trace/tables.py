"""Activity tables: what a capture's events add up to."""

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from multicard.record.names import PHASES
from multicard.trace.model import Trace

STEP = "step"

_STATISTICS = (
    ("calls", pa.int64()),
    ("total_s", pa.float64()),
    ("mean_s", pa.float64()),
    ("median_s", pa.float64()),
    ("min_s", pa.float64()),
    ("max_s", pa.float64()),
    ("std_s", pa.float64()),
)


@dataclass(frozen=True)
class Activity:
    """One activity table: the events it comes from, its columns, and what it says.

    Statistics are over the calls of a row: total, mean, median, minimum, maximum and sample standard
    deviation of their durations in seconds. A total adds up calls that overlap; it is not wall time.
    """

    events: str
    schema: pa.Schema
    says: str


ACTIVITIES: dict[str, Activity] = {
    "phases": Activity(
        "ranges",
        pa.schema(
            [
                ("rank", pa.int64()),
                ("process", pa.int64()),
                ("step", pa.int64()),
                ("phase", pa.string()),
                ("start_s", pa.float64()),
                ("duration_s", pa.float64()),
            ]
        ),
        "Steps and their phases in the profiled window, in order of time; `step` counts from 1 per process and is "
        "empty for a phase outside every step; start_s counts from the first range of the capture.",
    ),
    "cuda_api": Activity(
        "api",
        pa.schema(
            [
                ("rank", pa.int64()),
                ("process", pa.int64()),
                ("api", pa.string()),
                ("function", pa.string()),
                *_STATISTICS,
            ]
        ),
        "Time that the host spends in calls of the CUDA runtime and driver, per function.",
    ),
    "kernels": Activity(
        "kernels",
        pa.schema(
            [
                ("rank", pa.int64()),
                ("process", pa.int64()),
                ("device", pa.int64()),
                ("kernel", pa.string()),
                *_STATISTICS,
            ]
        ),
        "Time on the device, per kernel.",
    ),
    "memory_operations": Activity(
        "memory",
        pa.schema(
            [
                ("rank", pa.int64()),
                ("process", pa.int64()),
                ("device", pa.int64()),
                ("operation", pa.string()),
                *_STATISTICS,
                ("bytes", pa.int64()),
            ]
        ),
        "Time on the device and bytes moved, per direction.",
    ),
}


def activity_tables(trace: Trace) -> dict[str, pa.Table]:
    """Give the tables that the trace has events for, by name."""
    makers = {
        "phases": _phases,
        "cuda_api": _cuda_api,
        "kernels": _kernels,
        "memory_operations": _memory_operations,
    }
    tables = {}
    for name, activity in ACTIVITIES.items():
        if activity.events in trace.events:
            frame = makers[name](trace.events[activity.events].to_pandas())
            frame["rank"] = frame["process"].map(trace.ranks).astype("Int64")
            tables[name] = pa.Table.from_pandas(frame, activity.schema, preserve_index=False)
    return tables


def _phases(ranges: pd.DataFrame) -> pd.DataFrame:
    """Steps and phases per process; a phase belongs to the step that holds its start."""
    known = ranges[ranges["name"].isin([STEP, *PHASES])].sort_values("start_ns", kind="stable")
    origin = ranges["start_ns"].min()
    parts = []
    for _, found in known.groupby("process", sort=True):
        found = found.assign(step=pd.array([pd.NA] * len(found), "Int64"))
        steps = found[found["name"] == STEP]
        if len(steps):
            number = steps["start_ns"].searchsorted(found["start_ns"], side="right")
            inside = (number > 0) & (found["start_ns"].to_numpy() < steps["end_ns"].to_numpy()[number - 1])
            found["step"] = pd.array(number, "Int64")
            found.loc[~inside, "step"] = pd.NA
        parts.append(found)
    frame = pd.concat(parts) if parts else known.assign(step=pd.array([], "Int64"))
    return frame.assign(
        phase=frame["name"],
        start_s=(frame["start_ns"] - origin) / 1e9,
        duration_s=(frame["end_ns"] - frame["start_ns"]) / 1e9,
    )


def _cuda_api(calls: pd.DataFrame) -> pd.DataFrame:
    return _statistics(calls, ["process", "api", "name"]).rename(columns={"name": "function"})


def _kernels(kernels: pd.DataFrame) -> pd.DataFrame:
    return _statistics(kernels, ["process", "device", "name"]).rename(columns={"name": "kernel"})


def _memory_operations(operations: pd.DataFrame) -> pd.DataFrame:
    by = ["process", "device", "operation"]
    # A sum of nothing recorded is empty, not zero.
    moved = operations.groupby(by, dropna=False)["bytes"].sum(min_count=1).astype("Int64")
    return _statistics(operations, by).merge(moved.reset_index(), on=by)


def _statistics(events: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Duration statistics per group, longest total first within a process."""
    seconds = events.assign(seconds=(events["end_ns"] - events["start_ns"]) / 1e9)
    statistics = seconds.groupby(by, dropna=False)["seconds"].agg(
        calls="count", total_s="sum", mean_s="mean", median_s="median", min_s="min", max_s="max", std_s="std"
    )
    return statistics.reset_index().sort_values(["process", "total_s"], ascending=[True, False], kind="stable")
