"""Make activity tables: sums and other statistics of the events of a capture.

All tables of one call have the same scope:

- `CAPTURE`: all events, also those before the first step and after the last one. The sums equal those of NVIDIA's own
  reports.
- `STEPS`: only events that belong to the steps of the capture, as `CapturedEvents` defines it. Choose this scope for
  sums that are to be divided by the number of steps.

For a capture without steps, both scopes give the same tables.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from multicard.core.values import Cell, Row
from multicard.trace import rows as table_rows
from multicard.trace.activity_row import ActivityRow
from multicard.trace.captured_events import CAPTURE, SCOPES, STEPS, CapturedEvents
from multicard.trace.collectives import CannotTell
from multicard.trace.device_times import SHARES
from multicard.trace.idle import CAUSES, NAMED
from multicard.trace.model import Trace, why_absent
from multicard.trace.steps import STEP
from multicard.trace.stragglers import stragglers
from multicard.trace.timeline import gpus_of, timeline

__all__ = ["ACTIVITIES", "CAPTURE", "SCOPES", "STEP", "STEPS", "Activity", "ActivityTables", "activity_tables"]

# Columns of integers, and of texts. All others are floating-point numbers.
_INTEGERS = {
    "rank", "process", "device", "step", "calls", "bytes", "kernels", "joined", "min_bytes", "max_bytes", "times_last",
    "messages", "message_bytes", "ranks", "size_bytes", "processes",
}  # fmt: skip
_TEXTS = {
    "report", "phase", "api", "function", "kernel", "class", "operation", "host_memory", "collective", "scope",
    "extent", "domain", "range", "share", "of", "group", "by", "arithmetic",
}  # fmt: skip
# Columns of `timeline`, one for each cause of idle time in `NAMED`: the host's function in which most of that time
# lies.
CALLS = tuple(f"{cause}_call" for cause in NAMED)
_STATISTICS = ("calls", "total_s", "mean_s", "median_s", "min_s", "max_s", "std_s")
_DELAYS = ("median_latency_s", "max_latency_s", "median_queue_delay_s", "max_queue_delay_s")
_MESSAGES = ("messages", "message_bytes", "ranks", "transfer_s", "bus_bandwidth_bytes_per_s")
_WAITS = ("waited_s", "median_wait_s", "max_wait_s")
_SIZES = ("bytes", "mean_bytes", "median_bytes", "min_bytes", "max_bytes", "std_bytes", "bandwidth_bytes_per_s")


@dataclass(frozen=True)
class Activity:
    """One activity table.

    `events`: the kinds of events that the table is made of. The table exists if all of them were recorded, or, if
    `requires_any` is True, if any of them was. `needs`: what `make` uses in addition, if it was recorded: kinds of
    events, or "starts" and "launches" (see `CapturedEvents`).

    The columns of every table begin with `report` (name of the trace), `rank` (empty if the trace does not state it)
    and `process`. Statistics are of the durations of the row's calls, in seconds: total, mean, median, minimum, maximum
    and sample standard deviation. A total counts calls that overlap more than once, so it is not wall time.
    """

    events: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[CapturedEvents], list[ActivityRow]]
    description: str
    needs: tuple[str, ...] = ()
    requires_any: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return pa.schema([(name, _type(name)) for name in ("report", "rank", "process", *self.columns)])

    def why_absent(self, traces: Sequence[Trace]) -> str | None:
        """Return the reason why this table cannot be made of the traces; None if it can."""
        is_recorded = [any(trace.has(name) for trace in traces) for name in self.events]
        is_enough = any(is_recorded) if self.requires_any else all(is_recorded)
        return None if is_enough else why_absent(traces, self.events)


class ActivityTables(NamedTuple):
    """The tables of a capture, made by `activity_tables`.

    - `rows`: the rows of each table that could be made, by the name of the table.
    - `absent`: the reason for each wanted table that could not be made.
    - `notices`: lines on what was corrected, left out or could not be matched.
    - `warnings`: lines on what the capture lacks, so that the tables may be wrong.
    - `diagnostics`: lines that the profilers recorded about problems, such as events that they could not record.
    - `gpu_count`: number of GPUs of the machine; None if there are several traces, or the only one does not state it.
    - `shared`: by the cells `report`, `process` and `device` of each device whose GPU is also that of an earlier
      process: the earlier process, under which the rows of `timeline` about this GPU stand.
    """

    rows: dict[str, list[Row]]
    absent: dict[str, str]
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()
    gpu_count: int | None = None
    shared: Mapping[tuple[Cell, Cell, Cell], int] = MappingProxyType({})

    def table(self, name: str) -> pa.Table:
        """Return a table with all of its columns.

        It has no rows if the capture has no events for it, or if it is in `absent`, or if it was not wanted.
        """
        schema = ACTIVITIES[name].schema
        rows = self.rows.get(name, [])
        columns = {column: [row[column] for row in rows] for column in schema.names}
        return pa.table(columns, schema)


def _type(column: str) -> pa.DataType:
    if column in _INTEGERS:
        return pa.int64()
    if column in _TEXTS or column in CALLS:
        return pa.string()
    return pa.float64()


def activity_tables(
    traces: Sequence[Trace], only: Collection[str] | None = None, scope: str = CAPTURE
) -> ActivityTables:
    """Return the tables that the traces of one capture have events for.

    `only`: names of the wanted tables; None for all. Fewer tables take less time. `scope`: `CAPTURE` or `STEPS`.

    Raises `TraceError` if a trace turns out to be damaged.
    """
    wanted = {name: activity for name, activity in ACTIVITIES.items() if only is None or name in only}
    reasons = {name: activity.why_absent(traces) for name, activity in wanted.items()}
    present = {name: activity for name, activity in wanted.items() if reasons[name] is None}
    capture = CapturedEvents(traces, _kinds_to_read(traces, present.values(), scope), scope)
    rows: dict[str, list[Row]] = {}
    for name, activity in present.items():
        try:
            rows[name] = _complete(activity, activity.make(capture), traces)
        except CannotTell as reason:
            reasons[name] = str(reason)
    return ActivityTables(
        rows=rows,
        absent={name: reason for name, reason in reasons.items() if reason is not None},
        notices=tuple(capture.notices),
        warnings=tuple(capture.warnings),
        diagnostics=_diagnostics(capture),
        gpu_count=traces[0].gpu_count if len(traces) == 1 else None,
        shared=_shared_gpus(capture),
    )


def _kinds_to_read(traces: Sequence[Trace], activities: Collection[Activity], scope: str) -> set[str]:
    """Return what `CapturedEvents` has to read to make some tables, and to decide which events are in the scope."""
    wanted: set[str] = set()
    for activity in activities:
        wanted |= {*activity.events, *activity.needs}
    if scope == STEPS and wanted:
        wanted.add("ranges")
        if wanted & {"kernels", "memory", "graphs"}:
            wanted |= {"api", "launches"}
    # The call that launched a kernel shows which message the kernel carries.
    if "messages" in wanted and any(trace.has("messages") for trace in traces):
        wanted |= {"api", "launches"}
    if "launches" in wanted:
        wanted |= {"memory", "graphs"}
    return wanted


def _diagnostics(capture: CapturedEvents) -> tuple[str, ...]:
    """Return the lines that profilers recorded about problems, and those on launches that failed; each line once."""
    lines: list[str] = []
    # If anything ran on a device, a warning already states how many launches failed.
    if capture.api is not None and not capture.on_device.of_kind:
        lines += [line for trace in capture.traces for line in trace.failed_launches()]
    lines += [diagnostic.text for trace in capture.traces for diagnostic in trace.diagnostics]
    return tuple(dict.fromkeys(lines))


def _shared_gpus(capture: CapturedEvents) -> dict[tuple[Cell, Cell, Cell], int]:
    """Return what `ActivityTables.shared` holds."""
    shared: dict[tuple[Cell, Cell, Cell], int] = {}
    for locations in gpus_of(capture):
        _, first_process, _ = locations[0]
        for trace, process, device in locations[1:]:
            shared[capture.traces[trace].name, process, device] = first_process
    return shared


def _complete(activity: Activity, rows: Sequence[ActivityRow], traces: Sequence[Trace]) -> list[Row]:
    """Return rows with exactly the columns of their table, in its order; None for a column that the row lacks."""
    columns = activity.schema.names
    complete: list[Row] = []
    for row in rows:
        trace = traces[row.trace]
        identity: Row = {"report": trace.name, "rank": trace.ranks.get(row.process), "process": row.process}
        cells = row.cells | identity
        complete.append({column: cells.get(column) for column in columns})
    return complete


def _sums(kind: str, fields: dict[str, str], description: str) -> Activity:
    """Return a table of statistics of the durations of a kind of events.

    It has a row for each process and each combination of values of the fields. `fields`: for each column of the table
    the field of the events' groups that it shows.
    """
    return Activity((kind,), (*fields, *_STATISTICS), table_rows.sums(kind, fields), description)


ACTIVITIES: dict[str, Activity] = {
    "phases": Activity(
        ("steps",),
        ("step", "phase", "start_s", "duration_s"),
        table_rows.phases,
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
    "fp32_products": Activity(
        ("kernels",),
        ("device", "arithmetic", "kernel", *_STATISTICS),
        table_rows.fp32_products,
        "Time on the device in kernels of NVIDIA's libraries that multiply matrices of 32-bit numbers and whose names "
        "show how: tf32 (on tensor cores), fp32 beside tf32 (without tensor cores, though the GPU's have TF32), fp32 "
        "(without tensor cores); kernel is the one with the most time.",
    ),
    "launches": Activity(
        ("kernels", "api"),
        ("device", "kernels", "joined", *_DELAYS),
        table_rows.launches,
        "From the launching call to the kernel: latency from the start of the call, queue delay from its end "
        "(negative when the kernel starts before the call returns), over the kernels whose call was recorded.",
        needs=("launches",),
    ),
    "collectives": Activity(
        ("kernels",),
        ("device", "collective", *_STATISTICS, *_MESSAGES),
        table_rows.collectives,
        "Time on the device in communication kernels, per collective; empty where nothing tells which. It includes "
        "waiting for other ranks. Bytes are of the calls whose messages are known. The bus bandwidth is over the "
        "transfer time, with all ranks there; where that is not known, over all of the time: then a lower bound.",
        needs=("messages", "starts"),
    ),
    "message_sizes": Activity(
        ("kernels", "messages"),
        ("device", "collective", "group", "size_bytes", *_STATISTICS, *_MESSAGES),
        table_rows.message_sizes,
        "Collectives by the size of their messages and by their group of ranks: time on the device and bus bandwidth, "
        "as above, of the kernels whose messages are known.",
        needs=("starts",),
    ),
    "stragglers": Activity(
        ("kernels", "ranges"),
        ("device", "collective", "group", "ranks", "calls", "times_last", *_WAITS, "together_s", "by"),
        stragglers,
        "Ranks side by side: how long each waited in a collective for the last one to join, how often it was that "
        "itself, and its time with all of them there; by a common clock of the ranks, or by durations: a collective "
        "ends on all ranks together, so the shortest has joined last. Groups of ranks reduce among themselves.",
        needs=("messages", "starts"),
        requires_any=True,
    ),
    "memory_operations": Activity(
        ("memory",),
        ("device", "operation", "host_memory", *_STATISTICS, *_SIZES),
        table_rows.memory_operations,
        "Time on the device and bytes moved, per direction and kind of host memory; bandwidth is bytes by the time "
        "of the operations whose bytes are known.",
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
        table_rows.shares,
        "Four shares of summed time: copies to the device, kernel launches, synchronizations, NCCL; each of its total.",
        requires_any=True,
    ),
}
