"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped.

| module | its question |
|---|---|
| `content` | what is the text of the file? |
| `document`, `repair` | which JSON is in the text, even if it is not quite JSON? |
| `events` | which events are of which kind? |
| `processes` | of which process is each event, if somebody merged the files of ranks into one? |
| `tables`, `messages`, `copies` | what are the groups and numbers of the events of a kind? |
| `origin` | what are the rank, the GPUs and the clock of the trace? |
| `findings` | what was out of order in the file? |
| `values` | which number does a value of JSON stand for? |
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from multicard.core.errors import TraceError
from multicard.core.text import listed
from multicard.trace.encoding import MOST_NS, refuse_absurd
from multicard.trace.kineto import origin
from multicard.trace.kineto.content import read_text
from multicard.trace.kineto.document import Document, decode
from multicard.trace.kineto.events import TimedEvent, by_kind, with_times
from multicard.trace.kineto.findings import CUT, Findings, notices
from multicard.trace.kineto.messages import messages
from multicard.trace.kineto.processes import UNKNOWN_PROCESS, divided, numbered, processes_of
from multicard.trace.kineto.tables import EventTable, Process, event_table, joined
from multicard.trace.model import (
    Batch,
    EventSource,
    Groups,
    Trace,
    picked,
    rank_marks,
    reasons_for_absent,
)


def read(path: Path, large: bool = False) -> Trace:
    """Read one trace.

    `large`: if True, a gzipped file may unpack to any size. Else one that unpacks to very many times its size is
    refused, because it may be an attack.

    Raises `TraceError` if the file is not a trace, cannot be read, or is refused.
    """
    findings: Findings = Counter()
    try:
        document = decode(read_text(path, large, findings), findings)
        return _trace(path, document, findings)
    except msgspec.ValidationError as error:
        cut = ": cut before its events" if findings[CUT] else ""
        raise TraceError(
            f"{path}: no trace of PyTorch's profiler: its JSON has no list traceEvents of events{cut}"
        ) from error
    except OverflowError as error:
        raise TraceError(
            f"{path}: not a readable PyTorch profiler trace: found a number that is too large, expected times of at "
            f"most {MOST_NS / 1e9:.3g} s"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: {str(error)[:200]}") from error


@dataclass(frozen=True)
class _ProcessEvents:
    """The events of one process, by kind."""

    process: Process
    events: Mapping[str, list[TimedEvent]]


def _trace(path: Path, document: Document, findings: Findings) -> Trace:
    """Return the trace that a document holds."""
    parts = _events_of_processes(path, document, findings)
    tables = _tables(parts, findings)
    for table in tables.values():
        refuse_absurd(table.numbers)

    # The process that the file's statements about itself, such as the rank, are about. In a merged file it is the first
    # process, and only the clock is looked up with it.
    process = parts[0].process.number
    is_merged = len(parts) > 1
    stated_rank = origin.rank(document, findings)
    file_notices = notices(path.name, findings)
    if is_merged:
        several = listed([str(part.process.number) for part in parts])
        file_notices += (f"{path.name}: the traces of processes {several} in one file, so their ranks are unknown",)
    marked_ranks = rank_marks([(number, name) for number, _, name, _ in tables["ranges"].groups])
    used_devices: set[int | None] = set()
    for event_kind in ("kernels", "memory"):
        used_devices |= {device for _, device, *_ in tables[event_kind].groups}
    recorded = {event_kind: table for event_kind, table in tables.items() if len(table.codes)}
    first_starts = [int(table.numbers["start"].min()) for table in recorded.values()]

    def open_kind(kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
        return _source(kind, tables[kind], groups)

    return Trace(
        name=path.name.removesuffix(".gz").removesuffix(".json"),
        open=open_kind,
        absent=reasons_for_absent(recorded),
        ranks=marked_ranks if is_merged or stated_rank is None else {process: stated_rank},
        gpus=origin.gpus(document, used_devices),
        gpu_count=origin.gpu_count(document),
        gpu_identities={} if is_merged else origin.gpu_identities(document, process),
        clock=origin.clock(document, path, process, min(first_starts, default=None)),
        notices=file_notices,
    )


def _events_of_processes(path: Path, document: Document, findings: Findings) -> list[_ProcessEvents]:
    """Return the events of each process. A file has several processes if somebody merged the files of ranks."""
    events_of_kinds = by_kind(document.traceEvents, findings)
    calling_pids = list(dict.fromkeys(call.pid for call in events_of_kinds["api"]))
    if len(calling_pids) == 1:
        # If only one process id made calls, all other process ids stand for the same process, which has several ids if
        # it runs in a container.
        [pid] = calling_pids
        process = Process(numbered([pid])[pid], pid)
        return [_ProcessEvents(process, events_of_kinds)]

    complete = with_times([event for event in document.traceEvents if event.ph == "X"], findings)
    pids = processes_of(complete) or [UNKNOWN_PROCESS]
    events = {pids[0]: complete} if len(pids) == 1 else divided(path, complete, pids)
    numbers = numbered(pids)
    processes: list[_ProcessEvents] = []
    for pid, events_of_process in events.items():
        process = Process(numbers[pid], pid)
        processes.append(_ProcessEvents(process, by_kind(events_of_process, findings)))
    return processes


def _tables(parts: Sequence[_ProcessEvents], findings: Findings) -> dict[str, EventTable]:
    """Return the table of each kind of events, of all processes."""
    tables: dict[str, EventTable] = {}
    for event_kind in ("ranges", "api", "kernels", "memory"):
        by_process = [event_table(event_kind, part.events[event_kind], part.process, findings) for part in parts]
        tables[event_kind] = joined(by_process)
    tables["messages"] = joined([messages(part.events["kernels"], part.events["api"], part.process) for part in parts])
    return tables


def _source(kind: str, table: EventTable, groups: tuple[str, ...]) -> EventSource:
    """Return the events of a table, all of them as one part, with the group columns that are wanted."""
    merged = Groups()

    def read_all() -> Iterator[Batch]:
        # Groups that differ only in columns that are not wanted become one group.
        merged_codes = merged.codes(picked(kind, groups, table.groups))
        yield Batch(merged_codes[table.codes], table.numbers)

    return EventSource([read_all], lambda: merged.keys)
