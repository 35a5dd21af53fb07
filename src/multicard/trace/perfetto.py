"""A capture as Chrome JSON trace events, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and
https://perfetto.dev/docs/getting-started/other-formats. Times are microseconds from the start of the capture.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write
from multicard.core.text import printable
from multicard.trace.captured_events import CapturedEvents
from multicard.trace.collect import Events, collect
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.model import Integers, Trace

CHUNK = 50_000  # events that are text at the same time
BACKTRACE = "backtrace"

# Kinds of events as slices: what describes a group.
SLICES: dict[str, tuple[str, ...]] = {
    "ranges": ("process", "domain", "name", "thread"),
    "api": ("process", "api", "name", "thread"),
    "kernels": ("process", "device", "name", "grid", "block", "stream"),
    "memory": ("process", "device", "operation", "host_memory", "stream"),
}


def write_perfetto(traces: Sequence[Trace], out: Path) -> None:
    """Write the events of one capture, as a stream, gzipped if `out` ends in .gz.

    There is a process per process and per device of a process. Slices lie on a track per thread (ranges, CUDA calls) or
    stream (kernels, memory operations); steps have a track of their own. Slices that overlap without nesting, which
    Perfetto would drop, lie on further tracks of the same name. Arrows lead from a call to what it started on a device,
    where the trace joins them. A row that repeats a call with its backtrace is left out.

    Raises
    ------
    TraceError
        If there are no events, or a trace turns out to be damaged.
    UserError
        If there is no space left for the file.
    """
    if not any(trace.has(kind) for trace in traces for kind in SLICES):
        raise TraceError(f"{', '.join(trace.name for trace in traces)}: no events to show on a timeline")
    with atomic_write(out) as temporary, _opened(temporary, out.suffix == ".gz") as file:
        _write(traces, file)


@contextmanager
def _opened(path: Path, compressed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if not compressed:
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0) as packed:
            yield packed


@dataclass
class _Ids:
    """Numbers for processes and tracks, all different, and the events that name them."""

    named: list[str] = field(default_factory=list)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def process(self, key: tuple[Any, ...], name: str) -> int:
        """Number of a process."""
        return self._number(("process", *key), None, "process", name)

    def track(self, process: int, key: tuple[Any, ...], name: str) -> int:
        """Number of a track of a process."""
        return self._number((process, *key), process, "thread", name)

    def _number(self, key: tuple[Any, ...], process: int | None, what: str, name: str) -> int:
        if key not in self._known:
            number = self._known[key] = len(self._known) + 1
            where = f'"ts":0,"pid":{process or number},"tid":{number if process else 0}'
            self.named += [
                f'{{"ph":"M","name":"{what}_name",{where},"args":{{"name":{_text(name)}}}}}',
                f'{{"ph":"M","name":"{what}_sort_index",{where},"args":{{"sort_index":{number}}}}}',
            ]
        return self._known[key]


@dataclass(frozen=True)
class _Placed:
    """Slices of one kind in their order on the tracks: group, start in ns, process and track of each."""

    events: Events
    code: Integers
    start: Integers
    process: Integers
    track: Integers
    correlation: Integers


def _write(traces: Sequence[Trace], file: IO[bytes]) -> None:
    ids, origins = _Ids(), _origins(traces)
    separator = b'{"displayTimeUnit":"ns","traceEvents":[\n'

    def put(lines: Iterable[str]) -> None:
        nonlocal separator
        text = ",\n".join(lines)
        if text:
            file.write(separator + text.encode())
            separator = b",\n"

    put(_steps(traces, origins, ids))
    calls = None
    for kind, groups in SLICES.items():
        numbers = ("start", "end") if kind == "ranges" else ("start", "end", "correlation")
        events = collect(traces, kind, groups=groups, keep=numbers, sort=None)
        if events is None or not len(events.code):
            continue
        placed = _put_slices(kind, events, traces, origins, ids, put)
        if kind == "api":
            calls = placed
        elif calls is not None and kind != "ranges":
            _put_arrows(kind, calls, placed, put)
    put(ids.named)
    file.write(b"\n]}\n")


def _origins(traces: Sequence[Trace]) -> list[int]:
    """Of each trace, the time on its own clock that counts as 0: the first event on that clock."""
    first: dict[tuple[str, int | str], int] = {}
    keys, shifts = [], []
    for i, trace in enumerate(traces):
        starts = [
            int(batch.numbers["start"].min())
            for kind in SLICES
            if trace.has(kind)
            for part in trace.open(kind, ("start", "end"), SLICES[kind]).parts
            for batch in part()
            if len(batch.group)
        ]
        keys.append(("clock", trace.clock[0]) if trace.clock else ("trace", i))
        shifts.append(trace.clock[1] if trace.clock else 0)
        if starts:
            first[keys[i]] = min(first.get(keys[i], min(starts) + shifts[i]), min(starts) + shifts[i])
    return [first.get(key, shift) - shift for key, shift in zip(keys, shifts, strict=True)]


def _process(ids: _Ids, traces: Sequence[Trace], trace: int, process: int | None) -> int:
    rank = traces[trace].ranks.get(process) if process is not None else None
    words = [f"process {process}", *([] if rank is None else [f"rank {rank}"])]
    several = f", {traces[trace].name}" if len(traces) > 1 else ""
    return ids.process((trace, process), f"{' · '.join(words)}{several}")


def _steps(traces: Sequence[Trace], origins: Sequence[int], ids: _Ids) -> Iterator[str]:
    for (trace, process), (starts, ends, _) in CapturedEvents(traces, {"ranges"}, None).marks.steps.items():
        pid = _process(ids, traces, trace, process)
        tid = ids.track(pid, ("steps",), "steps")
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), 1):
            yield (
                f'{{"ph":"X","cat":"step","name":"step {number}","pid":{pid},"tid":{tid},'
                f'"ts":{_microseconds(start - origins[trace])},"dur":{_microseconds(end - start)}}}'
            )


def _put_slices(
    kind: str, events: Events, traces: Sequence[Trace], origins: Sequence[int], ids: _Ids, put: Any
) -> _Placed:
    """Write the events of a kind as slices on their tracks."""
    heads, tails, processes, tracks = [], [], [], []
    names: dict[tuple[int, str], int] = {}  # number by process and name of a track
    for group in events.groups:
        values = dict(zip(events.fields, group[1:], strict=True))
        category, name, arguments, track = _words(kind, values)
        pid = _process(ids, traces, group[0], values["process"])
        if "device" in values:
            device = f"device {values['device']} of process {values['process']}"
            more = f", {traces[group[0]].name}" if len(traces) > 1 else ""
            pid = ids.process((*group[:2], values["device"], "device"), f"{device}{more}")
        processes.append(pid)
        tracks.append(names.setdefault((pid, track), len(names)))
        heads.append(f'{{"ph":"X","cat":"{category}","name":{_text(name)},"pid":{pid},"tid":')
        known = {key: value for key, value in arguments.items() if value is not None}
        tails.append(f',"args":{json.dumps(known)}}}' if known else "}")
    keep = None
    if kind == "api":
        keep = np.flatnonzero(events.mask(api != BACKTRACE for _, api in events.values("api")))
    code = events.code if keep is None else events.code[keep]
    origin = np.array([origins[group[0]] for group in events.groups], np.int64)[code]
    start, end, *more = (
        (values if keep is None else values[keep]).astype(np.int64) for values in events.arrays.values()
    )
    start, end = start - origin, np.maximum(end, start) - origin
    track = np.array(tracks, np.int64)[code]
    order = np.lexsort((-end, start, track))
    code, start, end, track = code[order], start[order], end[order], track[order]
    lane = _lanes(track, start, end)
    lanes = int(lane.max(initial=0)) + 1
    combined, at = np.unique(track * lanes + lane, return_inverse=True)
    of_track = list(names)
    tids = []
    for number in combined.tolist():
        pid, name = of_track[number // lanes]
        tids.append(ids.track(pid, (kind, number), name))
    tid = np.array(tids, np.int64)[at]
    for first in range(0, len(code), CHUNK):
        some = slice(first, first + CHUNK)
        put(
            f'{heads[c]}{t},"ts":{_microseconds(s)},"dur":{_microseconds(d)}{tails[c]}'
            for c, t, s, d in zip(
                code[some].tolist(), tid[some].tolist(), start[some].tolist(), (end - start)[some].tolist(), strict=True
            )
        )
    correlation = more[0][order] if more else np.empty(0, np.int64)
    return _Placed(events, code, start, np.array(processes, np.int64)[code], tid, correlation)


def _words(kind: str, values: dict[str, Any]) -> tuple[str, str, dict[str, Any], str]:
    """Category, name, arguments and track of a group."""
    if kind == "ranges":
        return "range", values["name"], {"domain": values["domain"]}, f"thread {_or(values['thread'])}: ranges"
    if kind == "api":
        return "cuda_api", values["name"], {"api": values["api"]}, f"thread {_or(values['thread'])}: CUDA calls"
    stream = "" if values["stream"] is None else f"stream {values['stream']}: "
    if kind == "memory":
        arguments = {"host_memory": values["host_memory"]}
        return "memory", values["operation"], arguments, f"{stream}memory operations"
    name = values["name"]
    arguments = {"class": kernel_class(name), "collective": collective(name)}
    arguments |= {"grid": values["grid"], "block": values["block"]}
    category = "collective" if arguments["class"] == "communication" else "kernel"
    return category, name, arguments, f"{stream}kernels"


def _put_arrows(kind: str, calls: _Placed, started: _Placed, put: Any) -> None:
    """Write an arrow from the first call of a correlation to all that it started, within a process."""
    owners = {owner: i for i, owner in enumerate(dict.fromkeys(started.events.values("process")))}
    of_call = np.array([owners.get(owner, -1) for owner in calls.events.values("process")], np.int64)[calls.code]
    of_started = np.array([owners[owner] for owner in started.events.values("process")], np.int64)[started.code]
    for owner in owners.values():
        call = np.flatnonzero((of_call == owner) & (calls.correlation >= 0))
        event = np.flatnonzero((of_started == owner) & (started.correlation >= 0))
        if not len(call):
            continue
        call = call[np.lexsort((calls.start[call], calls.correlation[call]))]
        known, firsts = np.unique(calls.correlation[call], return_index=True)
        at = np.minimum(np.searchsorted(known, started.correlation[event]), len(known) - 1)
        joined = known[at] == started.correlation[event]
        event, call = event[joined], call[firsts[at[joined]]]
        for first in range(0, len(event), CHUNK):
            some = slice(first, first + CHUNK)
            ends = (("s", "", calls, call[some]), ("f", '"bp":"e",', started, event[some]))
            for phase, binding, placed, which in ends:
                put(
                    f'{{"ph":"{phase}",{binding}"cat":"launch","name":"launch","id":"{kind}-{owner}-{number}",'
                    f'"pid":{pid},"tid":{tid},"ts":{_microseconds(start)}}}'
                    for number, pid, tid, start in zip(
                        event[some].tolist(), placed.process[which].tolist(), placed.track[which].tolist(),
                        placed.start[which].tolist(), strict=True,
                    )
                )  # fmt: skip


def _lanes(track: Integers, start: Integers, end: Integers) -> Integers:
    """Of slices ordered by track, start and falling end: on which lane each lies, so that all of a lane nest."""
    lane = np.zeros(len(track), np.int64)
    edges = np.flatnonzero(np.diff(track, prepend=-1, append=-1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        reach = np.maximum.accumulate(end[low:high])
        opens = np.flatnonzero(start[low + 1 : high] >= reach[:-1]) + 1
        bounds = np.concatenate(([0], opens, [high - low])) + low
        several = np.flatnonzero(np.diff(bounds) > 1)
        for first, last in zip(bounds[several].tolist(), bounds[several + 1].tolist(), strict=True):
            lane[first:last] = _lanes_of(start[first:last].tolist(), end[first:last].tolist())
    return lane


def _lanes_of(starts: list[int], ends: list[int]) -> list[int]:
    open_ends: list[list[int]] = []  # by lane, those of the slices that are open, the innermost last
    found = []
    for start, end in zip(starts, ends, strict=True):
        free = len(open_ends)
        for lane, innermost in enumerate(open_ends):
            while innermost and innermost[-1] <= start:
                innermost.pop()
            if not innermost or innermost[-1] >= end:
                free = lane
                break
        else:
            open_ends.append([])
        open_ends[free].append(end)
        found.append(free)
    return found


def _microseconds(nanoseconds: int) -> str:
    """Exact, where a float would round.

    >>> _microseconds(1_234_567), _microseconds(-5)
    ('1234.567', '-0.005')
    """
    sign, size = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def _text(text: str) -> str:
    return json.dumps(printable(text))


def _or(number: int | None) -> str:
    return "unknown" if number is None else str(number)
