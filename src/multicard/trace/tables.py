"""Activity tables: what a capture's events add up to."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from multicard.record.names import PHASES
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.model import Trace
from multicard.trace.timeline import SHARES, timelines

STEP = "step"

_INTEGERS = {"rank", "process", "device", "step", "calls", "bytes", "kernels", "joined"}
_TEXTS = {"phase", "api", "function", "kernel", "class", "operation", "host_memory", "collective", "scope"}
_STATISTICS = ("calls", "total_s", "mean_s", "median_s", "min_s", "max_s", "std_s")

Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Activity:
    """One activity table.

    `events` are the kinds it is made of; it exists when all of them were recorded, or any of them if
    `any_will_do`. Every table has `rank` (empty where the trace does not tell) and `process`. Statistics are over
    the calls of a row: total, mean, median, minimum, maximum and sample standard deviation of their durations in
    seconds. A total adds up calls that overlap; it is not wall time.
    """

    events: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[Frames], pd.DataFrame]
    says: str
    any_will_do: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns with their types."""
        return pa.schema([(name, _type(name)) for name in ("rank", "process", *self.columns)])


def _type(column: str) -> pa.DataType:
    if column in _INTEGERS:
        return pa.int64()
    return pa.string() if column in _TEXTS else pa.float64()


def activity_tables(trace: Trace) -> dict[str, pa.Table]:
    """Give the tables that the trace has events for, by name."""
    frames = {kind: table.to_pandas() for kind, table in trace.events.items()}
    if "kernels" in frames:
        names = frames["kernels"]["name"].astype("category")
        classes = {name: kernel_class(name) for name in names.cat.categories}
        collectives = {name: collective(name) for name in names.cat.categories}
        frames["kernels"] = frames["kernels"].assign(
            **{"class": names.map(classes), "collective": names.map(collectives)}
        )
    if "ranges" in frames:
        frames["steps"] = _steps(frames["ranges"])
    tables = {}
    for name, activity in ACTIVITIES.items():
        enough = any if activity.any_will_do else all
        if enough(kind in frames for kind in activity.events):
            frame = activity.make(frames)
            frame["rank"] = frame["process"].map(trace.ranks).astype("Int64")
            tables[name] = pa.Table.from_pandas(frame, activity.schema, preserve_index=False)
    return tables


def _steps(ranges: pd.DataFrame) -> pd.DataFrame:
    """Steps and phases with the number of their step; a phase belongs to the step that holds its start."""
    known = ranges[ranges["name"].isin([STEP, *PHASES])].sort_values("start_ns", kind="stable")
    parts = [known.head(0).assign(step=pd.array([], "Int64"))]
    for _, found in known.groupby("process", sort=True):
        steps = found[found["name"] == STEP]
        number = pd.array([pd.NA] * len(found), "Int64")
        if len(steps):
            latest = steps["start_ns"].searchsorted(found["start_ns"], side="right")
            inside = (latest > 0) & (found["start_ns"].to_numpy() < steps["end_ns"].to_numpy()[latest - 1])
            number[inside] = latest[inside]
        parts.append(found.assign(step=number))
    return pd.concat(parts)


def _phases(frames: Frames) -> pd.DataFrame:
    found = frames["steps"]
    origin = frames["ranges"]["start_ns"].min()
    return found.assign(
        phase=found["name"],
        start_s=(found["start_ns"] - origin) / 1e9,
        duration_s=(found["end_ns"] - found["start_ns"]) / 1e9,
    )


def _cuda_api(frames: Frames) -> pd.DataFrame:
    return _api_statistics(frames["api"])


def _synchronizations(frames: Frames) -> pd.DataFrame:
    calls = frames["api"]
    waits = calls["name"].str.contains("Synchronize", regex=False).astype(bool) & (calls["api"] != "backtrace")
    return _api_statistics(calls[waits])


def _api_statistics(calls: pd.DataFrame) -> pd.DataFrame:
    return _statistics(calls.rename(columns={"name": "function"}), ["process", "api", "function"])


def _kernels(frames: Frames) -> pd.DataFrame:
    return _statistics(frames["kernels"].rename(columns={"name": "kernel"}), ["process", "device", "class", "kernel"])


def _kernel_classes(frames: Frames) -> pd.DataFrame:
    return _statistics(frames["kernels"], ["process", "device", "class"])


def _launches(frames: Frames) -> pd.DataFrame:
    """Kernels joined to the calls that launched them: on process and correlation, which alone is not unique."""
    key = ["process", "correlation"]
    calls = frames["api"][frames["api"]["api"] != "backtrace"]
    calls = calls.dropna(subset=["correlation"]).drop_duplicates(key)[[*key, "start_ns", "end_ns"]]
    joined = frames["kernels"].merge(calls, how="left", on=key, suffixes=("", "_call"))
    joined["latency_s"] = (joined["start_ns"] - joined["start_ns_call"]) / 1e9
    joined["queue_delay_s"] = (joined["start_ns"] - joined["end_ns_call"]) / 1e9
    groups = joined.groupby(["process", "device"], dropna=False)
    return groups.agg(
        kernels=("name", "size"),
        joined=("latency_s", "count"),
        median_latency_s=("latency_s", "median"),
        max_latency_s=("latency_s", "max"),
        median_queue_delay_s=("queue_delay_s", "median"),
        max_queue_delay_s=("queue_delay_s", "max"),
    ).reset_index()


def _collectives(frames: Frames) -> pd.DataFrame:
    kernels = frames["kernels"]
    return _statistics(kernels[kernels["class"] == "communication"], ["process", "device", "collective"])


def _memory_operations(frames: Frames) -> pd.DataFrame:
    by = ["process", "device", "operation", "host_memory"]
    # A sum of nothing recorded is empty, not zero.
    moved = frames["memory"].groupby(by, dropna=False)["bytes"].sum(min_count=1).astype("Int64")
    return _statistics(frames["memory"], by).merge(moved.reset_index(), on=by)


def _timeline(frames: Frames) -> pd.DataFrame:
    steps = frames.get("steps")
    return timelines(
        frames.get("kernels"), frames.get("memory"), steps[steps["name"] == STEP] if steps is not None else None
    )


def _statistics(events: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Duration statistics per group, longest total first within a process; totals are exact to the nanosecond."""
    durations = events.assign(duration=events["end_ns"] - events["start_ns"])
    statistics = durations.groupby(by, dropna=False, observed=True)["duration"].agg(
        calls="count", total_s="sum", mean_s="mean", median_s="median", min_s="min", max_s="max", std_s="std"
    )
    statistics[list(_STATISTICS[1:])] = statistics[list(_STATISTICS[1:])].astype(float) / 1e9
    return statistics.reset_index().sort_values(["process", "total_s"], ascending=[True, False], kind="stable")


ACTIVITIES: dict[str, Activity] = {
    "phases": Activity(
        ("ranges",),
        ("step", "phase", "start_s", "duration_s"),
        _phases,
        "Steps and their phases in the profiled window, in order of time; step counts from 1 per process and is "
        "empty for a phase outside every step; start_s counts from the first range of the capture.",
    ),
    "cuda_api": Activity(
        ("api",),
        ("api", "function", *_STATISTICS),
        _cuda_api,
        "Time that the host spends in calls of the CUDA runtime and driver, per function; rows of the api backtrace "
        "repeat calls that are counted in another row.",
    ),
    "synchronizations": Activity(
        ("api",),
        ("api", "function", *_STATISTICS),
        _synchronizations,
        "Time that the host spends waiting for a device, stream or event, per function.",
    ),
    "kernels": Activity(
        ("kernels",),
        ("device", "class", "kernel", *_STATISTICS),
        _kernels,
        "Time on the device, per kernel; its class is judged by its name.",
    ),
    "kernel_classes": Activity(
        ("kernels",),
        ("device", "class", *_STATISTICS),
        _kernel_classes,
        "Time on the device, per class of kernels.",
    ),
    "launches": Activity(
        ("kernels", "api"),
        (
            "device",
            "kernels",
            "joined",
            "median_latency_s",
            "max_latency_s",
            "median_queue_delay_s",
            "max_queue_delay_s",
        ),
        _launches,
        "From the launching call to the kernel: latency from the start of the call, queue delay from its end "
        "(negative when the kernel starts before the call returns), over the kernels whose call was recorded.",
    ),
    "collectives": Activity(
        ("kernels",),
        ("device", "collective", *_STATISTICS),
        _collectives,
        "Time on the device in communication kernels, per collective; empty where the name does not tell which.",
    ),
    "memory_operations": Activity(
        ("memory",),
        ("device", "operation", "host_memory", *_STATISTICS, "bytes"),
        _memory_operations,
        "Time on the device and bytes moved, per direction and kind of host memory.",
    ),
    "timeline": Activity(
        ("kernels", "memory"),
        ("device", "scope", "step", *(f"{share}_s" for share in SHARES)),
        _timeline,
        "Where each device's time goes, for the whole capture and per step, by unions of intervals.",
        any_will_do=True,
    ),
}
