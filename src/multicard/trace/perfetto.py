"""A capture as Chrome JSON trace events, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and
https://perfetto.dev/docs/getting-started/other-formats. Times are microseconds from the start of the capture.
"""

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write
from multicard.core.text import printable
from multicard.trace.api_names import api_name
from multicard.trace.collect import Events, collect
from multicard.trace.kernel_classes import kernel_class
from multicard.trace.model import Trace
from multicard.trace.steps import Marks

SLICES = ("ranges", "api", "kernels", "memory")


def write_perfetto(traces: Sequence[Trace], out: Path) -> None:
    """Write the events of one capture, gzipped if `out` ends in .gz.

    There is a process per process and per device of a process. Slices lie on a track per thread (ranges, calls of an
    API) or stream (kernels, memory operations); steps have a track of their own. Slices that overlap without nesting,
    which Perfetto would drop, lie on further tracks of the same name. A row that repeats a call with its backtrace is
    left out.

    Raises `TraceError` if there are no events, or a trace turns out to be damaged. Raises `UserError` if there is no
    space left for the file.
    """
    found = {kind: collect(traces, kind, ("start", "duration")) for kind in SLICES}
    events = {kind: own for kind, own in found.items() if own is not None and len(own.code)}
    if not events:
        raise TraceError(f"{', '.join(trace.name for trace in traces)}: no events to show on a timeline")
    if "api" in events:
        events["api"] = events["api"].where(
            events["api"].mask(api != "backtrace" for _, api in events["api"].values("api"))
        )
    opened = partial(gzip.open, compresslevel=4) if out.suffix == ".gz" else open
    with atomic_write(out) as temporary, opened(temporary, "wb") as file:
        separator = b'{"displayTimeUnit":"ns","traceEvents":[\n'
        for line in _lines(traces, events):
            file.write(separator + line.encode())
            separator = b",\n"
        file.write(b"\n]}\n")


class _Ids:
    """Numbers for processes and tracks, all different, and the events that name them."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def number(self, key: tuple[Any, ...], name: str, process: int | None = None) -> int:
        """Number of a process, or of a track of one."""
        if key not in self._known:
            number = self._known[key] = len(self._known) + 1
            what = "thread" if process else "process"
            where = f'"ts":0,"pid":{process or number},"tid":{number if process else 0}'
            self.named += [
                f'{{"ph":"M","name":"{what}_name",{where},"args":{{"name":{_text(name)}}}}}',
                f'{{"ph":"M","name":"{what}_sort_index",{where},"args":{{"sort_index":{number}}}}}',
            ]
        return self._known[key]


def _lines(traces: Sequence[Trace], events: dict[str, Events]) -> Iterator[str]:
    ids, origins = _Ids(), _origins(traces, events)
    steps = Marks(events.get("ranges"), traces).steps
    for (trace, process), own in steps.items():
        pid = _process(ids, traces, trace, process)
        tid = ids.number((pid, "steps"), "steps", pid)
        for number, (start, end) in enumerate(zip(own.starts.tolist(), own.ends.tolist(), strict=True), 1):
            times = f'"ts":{_microseconds(start - origins[trace])},"dur":{_microseconds(end - start)}'
            yield f'{{"ph":"X","cat":"step","name":"step {number}","pid":{pid},"tid":{tid},{times}}}'
    for kind, own in events.items():
        yield from _slices(kind, own, traces, origins, ids)
    yield from ids.named


def _origins(traces: Sequence[Trace], events: dict[str, Events]) -> list[int]:
    """Of each trace, the time that counts as 0: its first event."""
    first = [sys.maxsize] * len(traces)
    for own in events.values():
        for place, part in own.places.items():
            first[place[0]] = min(first[place[0]], int(own.arrays["start"][part].min()))
    return first


def _process(ids: _Ids, traces: Sequence[Trace], trace: int, process: int | None, device: str = "") -> int:
    """Number of a process, or of one of its devices."""
    rank = traces[trace].ranks.get(process) if process is not None else None
    words = f"process {process}" if rank is None else f"process {process} · rank {rank}"
    words = f"device {device} of process {process}" if device else words
    several = f", {traces[trace].name}" if len(traces) > 1 else ""
    return ids.number((trace, process, device), words + several)


def _slices(kind: str, events: Events, traces: Sequence[Trace], origins: Sequence[int], ids: _Ids) -> Iterator[str]:
    """The events of a kind as slices on their tracks."""
    heads, tails, tracks = [], [], []
    of_track: dict[tuple[int, str], int] = {}
    calls = f"{api_name(name for _, name in events.values('name'))} calls" if kind == "api" else ""
    for (trace, *_), values in zip(events.groups, events.described(), strict=True):
        category, name, arguments, track = _words(kind, values, calls)
        pid = _process(ids, traces, trace, values["process"], str(values["device"]) if "device" in values else "")
        tracks.append(of_track.setdefault((pid, track), len(of_track)))
        heads.append(f'{{"ph":"X","cat":"{category}","name":{_text(name)},"pid":{pid},"tid":')
        known = {key: value for key, value in arguments.items() if value is not None}
        tails.append(f',"args":{json.dumps(known)}}}' if known else "}")
    origin = np.array([origins[trace] for trace, *_ in events.groups], np.int64)[events.code]
    start = events.arrays["start"].astype(np.int64) - origin
    end = start + events.arrays["duration"].astype(np.int64)
    track = np.array(tracks, np.int64)[events.code]
    order = np.lexsort((-end, start, track))
    code, start, end, track = events.code[order], start[order], end[order], track[order]
    names = list(of_track)
    tids: list[int] = []
    edges = [*np.flatnonzero(np.diff(track, prepend=-1)).tolist(), len(track)]
    for first, last in pairwise(edges):
        pid, name = names[track[first]]
        lanes = _lanes(start[first:last].tolist(), end[first:last].tolist())
        tids += [ids.number((pid, kind, name, lane), name, pid) for lane in lanes]
    columns = (code.tolist(), tids, start.tolist(), (end - start).tolist())
    for c, tid, begin, duration in zip(*columns, strict=True):
        yield f'{heads[c]}{tid},"ts":{_microseconds(begin)},"dur":{_microseconds(duration)}{tails[c]}'


def _words(kind: str, values: dict[str, Any], calls: str) -> tuple[str, str, dict[str, Any], str]:
    """Category, name, arguments and track of a group; `calls` is what tracks of calls are named."""
    if kind in ("ranges", "api"):
        thread = "unknown" if values["thread"] is None else values["thread"]
        if kind == "ranges":
            return "range", values["name"], {"domain": values["domain"]}, f"thread {thread}: ranges"
        return "cuda_api", values["name"], {"api": values["api"]}, f"thread {thread}: {calls}"
    stream = "" if values["stream"] is None else f"stream {values['stream']}: "
    if kind == "memory":
        return "memory", values["operation"], {"host_memory": values["host_memory"]}, f"{stream}memory operations"
    of = kernel_class(values["name"])
    return "collective" if of == "communication" else "kernel", values["name"], {"class": of}, f"{stream}kernels"


def _lanes(starts: list[int], ends: list[int]) -> list[int]:
    """Of slices of a track by start and falling end: on which lane each lies, so that all of a lane nest."""
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
