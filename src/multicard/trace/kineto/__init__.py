"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped.

| module | its question |
|---|---|
| `content` | what is the text of the file? |
| `document`, `repair` | what does the text say, even if it is not quite JSON? |
| `events` | which events are of which kind? |
| `processes` | whose are they, if ranks were merged into one file? |
| `tables`, `messages`, `copies` | what are the groups and numbers of a kind? |
| `origin` | which rank, GPUs and clock are they of? |
| `findings` | what was out of order in the file? |
| `values` | which number does a value of JSON stand for? |
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from multicard.core.errors import TraceError
from multicard.core.text import listed
from multicard.trace.encoding import MOST_NS, refuse_absurd
from multicard.trace.kineto import findings as found
from multicard.trace.kineto import origin
from multicard.trace.kineto.content import read_text
from multicard.trace.kineto.document import Document, decode
from multicard.trace.kineto.events import by_kind, with_times
from multicard.trace.kineto.messages import messages
from multicard.trace.kineto.processes import UNKNOWN_PROCESS, divided, numbered, processes_of
from multicard.trace.kineto.tables import Process, Table, joined, table
from multicard.trace.model import (
    KINDS,
    NOT_RECORDED,
    Batch,
    EventSource,
    Groups,
    Trace,
    picked,
    rank_marks,
)


def read(path: Path, large: bool = False) -> Trace:
    """Read one trace.

    `large`: whether a gzipped file may unpack to very many times its size, which else is refused as an attack would be.

    Raises `TraceError` if the file is not a trace.
    """
    findings: found.Findings = Counter()
    try:
        document = decode(read_text(path, large, findings), findings)
        return _trace(path, document, findings)
    except msgspec.ValidationError as error:
        cut = ": cut before its events" if findings[found.CUT] else ""
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


def _trace(path: Path, document: Document, findings: found.Findings) -> Trace:
    kinds = by_kind(document.traceEvents, findings)
    # If one process alone made calls, other ids are of the same, as containers give a process more than one.
    pids = list(dict.fromkeys(call.pid for call in kinds["api"]))
    shares = dict.fromkeys(pids, kinds)
    if len(pids) != 1:
        complete = with_times([event for event in document.traceEvents if event.ph == "X"], findings)
        pids = processes_of(complete) or [UNKNOWN_PROCESS]
        divisions = {pids[0]: complete} if len(pids) == 1 else divided(path, complete, pids)
        shares = {pid: by_kind(own, findings) for pid, own in divisions.items()}
    numbers = numbered(pids)
    processes = [Process(numbers[pid], pid) for pid in shares]
    tables = _tables([(process, shares[process.pid]) for process in processes], findings)
    for own in tables.values():
        refuse_absurd(own.numbers)

    rank = origin.rank(document, findings)
    notices = found.lines(path.name, findings)
    ranks = rank_marks([(process, name) for process, _, name, _ in tables["ranges"].groups])
    first = processes[0].number
    if len(processes) == 1:
        ranks = ranks if rank is None else {first: rank}
    else:
        several = listed([str(process.number) for process in processes])
        notices += (f"{path.name}: the traces of processes {several} in one file, so their ranks are unknown",)
    used = {device for kind in ("kernels", "memory") for _, device, *_ in tables[kind].groups}
    starts = [int(own.numbers["start"].min()) for own in tables.values() if len(own.code)]
    return Trace(
        path.name.removesuffix(".gz").removesuffix(".json"),
        lambda kind, _, groups: _source(kind, tables[kind], groups),
        {kind: NOT_RECORDED[kind] for kind in KINDS if kind not in tables or not len(tables[kind].code)},
        ranks,
        origin.gpus(document, used),
        gpu_count=origin.gpu_count(document),
        gpu_identities=origin.gpu_identities(document, first) if len(processes) == 1 else {},
        clock=origin.clock(document, path, first, min(starts, default=None)),
        notices=notices,
    )


def _tables(shares: list[tuple[Process, dict]], findings: found.Findings) -> dict[str, Table]:
    """Return the table of each kind of events, of all processes."""
    tables = {
        kind: joined([table(kind, events[kind], process, findings) for process, events in shares])
        for kind in ("ranges", "api", "kernels", "memory")
    }
    tables["messages"] = joined([messages(events["kernels"], events["api"], process) for process, events in shares])
    return tables


def _source(kind: str, own: Table, groups: tuple[str, ...]) -> EventSource:
    """Return the events of a kind as one part."""
    coded = Groups()

    def read_all() -> Iterator[Batch]:
        yield Batch(coded.codes(picked(kind, groups, own.groups))[own.code], own.numbers)

    return EventSource([read_all], lambda: coded.keys)
