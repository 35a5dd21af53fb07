"""Activity tables: what a capture's events add up to.

All tables of one call share a scope. `CAPTURE`: everything that was recorded; such sums are those of NVIDIA's own
reports, and what the profiler caught before the first step or after the last one is among them. `STEPS`: what belongs
to the steps that the capture shows, as `CapturedEvents` defines it; what is divided by the number of steps is of this
scope. Without steps in the capture the two are the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from multicard.trace import rows as of
from multicard.trace.captured_events import CAPTURE, SCOPES, STEPS, CapturedEvents
from multicard.trace.collectives import CannotTell
from multicard.trace.device_times import SHARES
from multicard.trace.idle import CAUSES, NAMED
from multicard.trace.model import Trace, why_absent
from multicard.trace.rows import Rows
from multicard.trace.steps import STEP
from multicard.trace.timeline import gpus_of, timeline

__all__ = ["ACTIVITIES", "CAPTURE", "SCOPES", "STEP", "STEPS", "Activity", "ActivityTables", "activity_tables"]

_COUNTS = {
    "rank", "process", "device", "step", "calls", "bytes", "kernels", "joined", "min_bytes", "max_bytes", "times_last",
    "messages", "message_bytes", "ranks", "size_bytes", "processes",
}  # fmt: skip
_TEXTS = {
    "report", "phase", "api", "function", "kernel", "class", "operation", "host_memory", "collective", "scope",
    "extent", "domain", "range", "share", "of", "group", "by",
}  # fmt: skip
CALLS = tuple(f"{cause}_call" for cause in NAMED)  # of `timeline`: the function in which most of such idle time lies
_STATISTICS = ("calls", "total_s", "mean_s", "median_s", "min_s", "max_s", "std_s")
_DELAYS = ("median_latency_s", "max_latency_s", "median_queue_delay_s", "max_queue_delay_s")
_MESSAGES = ("messages", "message_bytes", "ranks", "transfer_s", "bus_bandwidth_bytes_per_s")
_WAITS = ("waited_s", "median_wait_s", "max_wait_s")
_SIZES = ("bytes", "mean_bytes", "median_bytes", "min_bytes", "max_bytes", "std_bytes", "bandwidth_bytes_per_s")


@dataclass(frozen=True)
class Activity:
    """One activity table.

    `events` are the kinds it is made of; it exists when all of them were recorded, or any of them if
    `requires_any`; `needs` are kinds that are used where they are there. Every table has `report` (the trace that the
    row is from), `rank` (empty where the trace does not tell) and `process`. Statistics are over the calls of a row:
    total, mean, median, minimum, maximum and sample standard deviation of their durations in seconds. A total adds
    up calls that overlap; it is not wall time.
    """

    events: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[CapturedEvents], Rows]
    description: str
    needs: tuple[str, ...] = ()
    requires_any: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns with their types."""
        return pa.schema([(name, _type(name)) for name in ("report", "rank", "process", *self.columns)])

    def why_absent(self, traces: Sequence[Trace]) -> str | None:
        """Why the traces do not give this table, None when they do."""
        there = [any(trace.has(kind) for trace in traces) for kind in self.events]
        enough = any(there) if self.requires_any else all(there)
        return None if enough else why_absent(traces, self.events)


class ActivityTables(NamedTuple):
    """The rows of the tables that a capture gives, by name, and the reason for each that it does not.

    `warnings` are lines on what the capture lacks, so that what the tables say may be wrong; `notices` are lines on
    what was set right. `diagnostics` is what the profiler recorded about events that it could not record. `gpu_count`
    is the number of GPUs of the machine, where one trace tells it. `shared`: of processes that share a GPU, by report,
    process and device, the process whose row of `timeline` is about all of them.
    """

    rows: dict[str, Rows]
    absent: dict[str, str]
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()
    gpu_count: int | None = None
    shared: Mapping[tuple[str, int, int], int] = MappingProxyType({})

    def table(self, name: str) -> pa.Table:
        """One table with its columns; empty if the capture does not give it."""
        schema = ACTIVITIES[name].schema
        return pa.table({c: [row[c] for row in self.rows.get(name, [])] for c in schema.names}, schema)


def _type(column: str) -> pa.DataType:
    if column in _COUNTS:
        return pa.int64()
    return pa.string() if column in (*_TEXTS, *CALLS) else pa.float64()


def activity_tables(
    traces: Sequence[Trace], only: Collection[str] | None = None, scope: str = CAPTURE
) -> ActivityTables:
    """Give the tables that the traces of one capture have events for.

    `only`: names of the tables that are wanted, all by default: fewer need less time; `scope`: `CAPTURE` or `STEPS`.

    Raises `TraceError` if a trace turns out to be damaged.
    """
    chosen = {name: activity for name, activity in ACTIVITIES.items() if only is None or name in only}
    absent = {name: reason for name, a in chosen.items() if (reason := a.why_absent(traces)) is not None}
    capture = CapturedEvents(traces, _wanted(traces, only, scope), scope)
    tables: dict[str, Rows] = {}
    for name, activity in chosen.items():
        if name not in absent:
            try:
                tables[name] = _complete(activity, activity.make(capture), traces)
            except CannotTell as reason:
                absent[name] = str(reason)
    why_absent = {name: absent[name] for name in chosen if name in absent}
    diagnostics = dict.fromkeys(diagnostic.text for trace in traces for diagnostic in trace.diagnostics)
    if capture.api is not None and not capture.on_device():  # else a warning says how many launches failed
        failures = [line for trace in traces for line in trace.failed_launches()]
        diagnostics = dict.fromkeys([*failures, *diagnostics])
    gpu_count = traces[0].gpu_count if len(traces) == 1 else None
    return ActivityTables(
        tables,
        why_absent,
        tuple(capture.notices),
        tuple(capture.warnings),
        tuple(diagnostics),
        gpu_count,
        {
            (traces[trace].name, process, device): places[0][1]
            for places in gpus_of(capture)
            for trace, process, device in places[1:]
        },
    )


def _wanted(traces: Sequence[Trace], only: Collection[str] | None, scope: str) -> set[str]:
    """Kinds of events that the wanted tables are made of, as far as these can be, and what tells their scope."""
    chosen = (a for name, a in ACTIVITIES.items() if only is None or name in only)
    kinds = {kind for a in chosen if a.why_absent(traces) is None for kind in (*a.events, *a.needs)}
    if scope == STEPS and kinds:
        kinds |= {"ranges"}
        kinds |= {"api", "launches"} if kinds & {"kernels", "memory", "graphs"} else set()
    if "messages" in kinds and any(trace.has("messages") for trace in traces):
        kinds |= {"api", "launches"}  # which kernel a message is of, the call tells that launched it
    return kinds | {"memory", "graphs"} if "launches" in kinds else kinds


def _complete(activity: Activity, rows: Rows, traces: Sequence[Trace]) -> Rows:
    """Rows with all columns of their table, in its order."""
    names = activity.schema.names
    for row in rows:
        trace = traces[row["trace"]]
        row |= {"report": trace.name, "rank": trace.ranks.get(row.get("process"))}
    return [{name: row.get(name) for name in names} for row in rows]


def _sums(kind: str, fields: dict[str, str], description: str) -> Activity:
    """Statistics of events of a kind, per process and the fields of their groups in these columns."""
    return Activity((kind,), (*fields, *_STATISTICS), of.sums(kind, fields), description)


ACTIVITIES: dict[str, Activity] = {
    "phases": Activity(
        ("steps",),
        ("step", "phase", "start_s", "duration_s"),
        of.phases,
        "Steps and their phases in the profiled window, in order of time; step counts from 1 per process and is "
        "empty for a phase outside every step; start_s counts from the first of them in the report.",
        needs=("ranges",),
    ),
    "ranges": _sums(
        "ranges",
        {"domain": "domain", "range": "name"},
        "NVTX ranges that the program marked, per name; numbered steps and single calls of an operator share a row.",
    ),
    "cuda_api": _sums(
        "api",
        {"api": "api", "function": "name"},
        "Time that the host spends in calls of the CUDA runtime and driver, per function; rows of the api backtrace "
        "repeat calls that are counted in another row.",
    ),
    "kernels": _sums(
        "kernels",
        {"device": "device", "class": "class", "kernel": "name"},
        "Time on the device, per kernel; its class is judged by its name.",
    ),
    "kernel_classes": _sums(
        "kernels", {"device": "device", "class": "class"}, "Time on the device, per class of kernels."
    ),
    "launches": Activity(
        ("kernels", "api"),
        ("device", "kernels", "joined", *_DELAYS),
        of.launches,
        "From the launching call to the kernel: latency from the start of the call, queue delay from its end "
        "(negative when the kernel starts before the call returns), over the kernels whose call was recorded.",
        needs=("launches",),
    ),
    "collectives": Activity(
        ("kernels",),
        ("device", "collective", *_STATISTICS, *_MESSAGES),
        of.collectives,
        "Time on the device in communication kernels, per collective; empty where nothing tells which. It includes "
        "waiting for other ranks. Bytes are of the calls whose messages are known. The bus bandwidth is over the "
        "transfer time, with all ranks there; where that is not known, over all of the time: then a lower bound.",
        needs=("messages", "starts"),
    ),
    "message_sizes": Activity(
        ("kernels", "messages"),
        ("device", "collective", "group", "size_bytes", *_STATISTICS, *_MESSAGES),
        of.message_sizes,
        "Collectives by the size of their messages and by their group of ranks: time on the device and bus bandwidth, "
        "as above, of the kernels whose messages are known.",
        needs=("starts",),
    ),
    "stragglers": Activity(
        ("kernels", "ranges"),
        ("device", "collective", "group", "ranks", "calls", "times_last", *_WAITS, "together_s", "by"),
        of.stragglers,
        "Ranks side by side: how long each waited in a collective for the last one to join, how often it was that "
        "itself, and its time with all of them there; by a common clock of the ranks, or by durations: a collective "
        "ends on all ranks together, so the shortest has joined last. Groups of ranks reduce among themselves.",
        needs=("messages", "starts"),
        requires_any=True,
    ),
    "memory_operations": Activity(
        ("memory",),
        ("device", "operation", "host_memory", *_STATISTICS, *_SIZES),
        of.memory_operations,
        "Time on the device and bytes moved, per direction and kind of host memory; bandwidth is bytes by total time.",
    ),
    "cuda_graphs": _sums(
        "graphs",
        {"device": "device"},
        "Replays of CUDA graphs that were recorded as a whole, so that what ran inside them is not known: time on the "
        "device.",
    ),
    "timeline": Activity(
        ("kernels", "memory", "graphs"),
        (
            "device",
            "processes",
            "scope",
            "step",
            "extent",
            "start_s",
            *(f"{share}_s" for share in (*SHARES, *CAUSES)),
            *CALLS,
        ),
        timeline,
        "Where each device's time goes, by unions of intervals: over the capture, or from the first step's start to "
        "the last one's end (scope steps), and per step. The extent of steps is the device's own where launches tell "
        "it, else the host's; start_s counts from the first of them in the report.",
        needs=("ranges", "api", "launches", "host_calls"),
        requires_any=True,
    ),
    "shares": Activity(
        ("api", "kernels", "memory"),
        ("device", "share", "total_s", "of", "of_s", "ratio"),
        of.shares,
        "Four shares of summed time: copies to the device, kernel launches, synchronizations, NCCL; each of its total.",
        requires_any=True,
    ),
}
