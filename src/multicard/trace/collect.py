"""Read the events of all traces of a capture at once, on all cores, into as little memory as their use allows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.core.text import counted, listed
from multicard.trace.api_names import call_name
from multicard.trace.model import KINDS, BatchReader, EventSource, Integers, Trace
from multicard.trace.statistics import Grouped

Place = tuple[Any, ...]  # trace, process and, of what ran there, device
# Number of the trace, the code and the numbers of its events, each in pieces, and how many events were left out.
Part = tuple[int, list[list[Integers]], int]

_NARROW, _CODE = np.iinfo(np.uint32), np.iinfo(np.uint16)


@dataclass
class Events:
    """Events of one kind from all traces.

    `groups` holds, by code, the number of the trace and the values of `fields`. `arrays` are in the order of `code`:
    the numbers that were asked for, in half the space where they fit it. Events of one place lie side by side in
    the order in which they were recorded; `places` says where. For durations alone there is one place, ().
    `left_out` counts, by trace, the events that end before they begin, which are not among these.
    """

    fields: tuple[str, ...]
    groups: list[tuple[Any, ...]]
    code: Integers
    arrays: dict[str, Integers]
    places: dict[Place, slice]
    left_out: dict[int, int] = field(default_factory=dict)

    def where(self, keep: npt.NDArray[np.bool_]) -> "Events":
        """The events of a mask, with the groups that still have some."""
        if keep.all():
            return self
        kept = np.flatnonzero(keep)
        code = self.code.take(kept)
        used = np.bincount(code, minlength=len(self.groups)) > 0
        code = (np.cumsum(used) - 1).astype(code.dtype).take(code)
        groups = [group for group, some in zip(self.groups, used.tolist(), strict=True) if some]
        edges = {place: np.searchsorted(kept, (own.start, own.stop)).tolist() for place, own in self.places.items()}
        places = {place: slice(*own) for place, own in edges.items() if own[0] < own[1]}
        arrays = {name: values.take(kept) for name, values in self.arrays.items()}
        return Events(self.fields, groups, code, arrays, places, self.left_out)

    def at(self, place: Place) -> slice:
        """Where the events of a place lie."""
        return self.places.get(place, slice(0, 0))

    @cached_property
    def durations(self) -> Grouped:
        """Durations by group."""
        return Grouped(self.code, self.arrays["duration"])

    def mask(self, groups: Iterable[bool], part: slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Which events, of a part of them, are of the groups that the values, one for each group, say yes to."""
        chosen = np.fromiter(groups, bool, len(self.groups))
        code = self.code[part]
        return np.full(len(code), chosen[0]) if len(set(chosen.tolist())) == 1 else chosen.take(code)

    def described(self) -> list[dict[str, Any]]:
        """The fields of each group by name."""
        return [dict(zip(self.fields, group[1:], strict=True)) for group in self.groups]

    def values(self, *names: str) -> list[tuple[Any, ...]]:
        """Trace and some fields of each group."""
        at = [self.fields.index(name) + 1 for name in names]
        return [(group[0], *(group[i] for i in at)) for group in self.groups]


def collect(
    traces: Sequence[Trace], kind: str, numbers: Sequence[str], groups: Sequence[str] | None = None
) -> Events | None:
    """Read all events of a kind; None when no trace recorded them.

    `numbers` are kept of each event; `groups`: the columns that describe a group, all by default: fewer make fewer
    groups, and need less time. Events of a negative duration, which broken captures hold, are left out if durations
    are among the numbers.
    """
    fields, numbers = tuple(groups or KINDS[kind].groups), tuple(numbers)
    sources = [(i, trace.open(kind, numbers, fields)) for i, trace in enumerate(traces) if trace.has(kind)]
    if not sources:
        return None

    def read(job: tuple[int, EventSource, BatchReader]) -> Part:
        i, _, part = job
        pieces: list[list[Integers]] = [[] for _ in (None, *numbers)]
        reversed_count = 0
        for batch in part():
            code = batch.group.astype(np.uint16) if batch.group.max(initial=0) <= _CODE.max else batch.group
            arrays = [code, *(_narrow(batch.numbers[name]) for name in numbers)]
            if "duration" in numbers:
                arrays, in_batch = _without_reversed(arrays, 1 + numbers.index("duration"))
                reversed_count += in_batch
            for own, values in zip(pieces, arrays, strict=True):
                own.append(values)
        return i, [[_joined(own)] for own in pieces] if "start" in numbers else pieces, reversed_count

    done = in_parallel(read, [(i, source, part) for i, source in sources for part in source.parts])
    left_out = _left_out(done)

    described: list[tuple[Any, ...]] = []
    first: dict[int, int] = {}
    for i, source in sources:
        first[i] = len(described)
        described += [(i, *values) for values in _described(kind, fields, source)]
    at = [0, *(fields.index(name) + 1 for name in ("process", "device") if name in fields)]
    place_of = [tuple(group[i] for i in at) if "start" in numbers else () for group in described]
    places = list(dict.fromkeys(place_of))
    wide = np.uint16 if len(described) <= _CODE.max else np.int32
    number_of = np.array([places.index(place) for place in place_of], wide)

    def by_place(part: Part) -> tuple[Integers, list[list[list[Integers]]]]:
        """How many events of each place a part has, and of each of its arrays, the code first, pieces by place."""
        i, (codes, *kept), _ = part
        codes = [code.astype(wide) + wide(first[i]) for code in codes] if first[i] else codes
        if len(places) == 1:
            return np.array([sum(map(len, codes))]), [[each] for each in (codes, *kept)]
        number = number_of.take(_joined(codes))
        order, counts = np.argsort(number, kind="stable"), np.bincount(number, minlength=len(places))
        edges = np.cumsum(counts)[:-1]
        return counts, [[[own] for own in np.split(_joined(each).take(order), edges)] for each in (codes, *kept)]

    divided = in_parallel(by_place, done)
    done.clear()

    def joined(array: int) -> Integers:
        return _joined([piece for place in range(len(places)) for _, part in divided for piece in part[array][place]])

    code, *arrays = in_parallel(joined, range(1 + len(numbers)))
    ends = np.cumsum([0, *sum(counts for counts, _ in divided)]).tolist()
    where = {place: slice(*own) for place, own in zip(places, pairwise(ends), strict=True) if own[0] < own[1]}
    return Events(fields, described, code, dict(zip(numbers, arrays, strict=True)), where, left_out)


_NAMES = {
    "ranges": "range", "api": "call", "kernels": "kernel", "memory": "memory operation", "graphs": "graph replay",
    "host_calls": "call of a library",
}  # fmt: skip


def left_out_notices(traces: Sequence[Trace], events: Mapping[str, Events | None]) -> list[str]:
    """Return a line per trace that has events, given by kind, that end before they begin."""
    notices = []
    for i, trace in enumerate(traces):
        counts = {kind: own.left_out.get(i, 0) for kind, own in events.items() if own is not None}
        parts = [counted(count, _NAMES[kind]) for kind, count in counts.items() if count]
        if parts:
            end = "ends before it begins" if sum(counts.values()) == 1 else "end before they begin"
            notices.append(f"{trace.name}: {listed(parts)} {end}, left out")
    return notices


def _left_out(parts: Iterable[Part]) -> dict[int, int]:
    """Return how many events were left out, by trace, of those that lack some."""
    counts = Counter[int]()
    for i, _, count in parts:
        counts[i] += count
    return dict(+counts)


def _without_reversed(arrays: list[Integers], at: int) -> tuple[list[Integers], int]:
    """Return arrays of events without those of a negative duration, the array `at`, and how many these are."""
    durations = arrays[at]
    # Where all durations are known to be positive, they are narrow already.
    if durations.dtype == np.uint32 or not len(durations) or durations.min() >= 0:
        return arrays, 0
    kept = np.flatnonzero(durations >= 0)
    return [values.take(kept) for values in arrays], len(durations) - len(kept)


def _described(kind: str, fields: tuple[str, ...], source: EventSource) -> list[tuple[Any, ...]]:
    """Return the values of the fields of each group, with the names of calls as programs have them."""
    groups = source.described()
    if kind != "api" or "name" not in fields:
        return groups
    at = fields.index("name")
    return [(*group[:at], call_name(group[at]), *group[at + 1 :]) for group in groups]


def _narrow(values: Integers) -> Integers:
    """The same values in half the space, where they fit."""
    if values.dtype == np.int64 and len(values) and values.min() >= 0 and values.max() <= _NARROW.max:
        return values.astype(np.uint32)
    return values


def _joined(parts: list[Integers]) -> Integers:
    """Join arrays into one of the widest type among those that hold something; a single one as it is."""
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
