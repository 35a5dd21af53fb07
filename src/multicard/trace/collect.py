"""Read the events of all traces of a capture at once, on all cores, into as little memory as their use allows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.trace.model import KINDS, BatchReader, EventSource, Integers, Trace
from multicard.trace.statistics import Grouped

Place = tuple[Any, ...]  # trace, process and, of what ran there, device

_NARROW, _CODE = np.iinfo(np.uint32), np.iinfo(np.uint16)


@dataclass
class Events:
    """Events of one kind from all traces.

    `groups` holds, by code, the number of the trace and the values of `fields`. `arrays` are in the order of `code`:
    the numbers that were asked for, in half the space where they fit it. Events of one place lie side by side in
    the order in which they were recorded; `places` says where. For durations alone there is one place, ().
    """

    fields: tuple[str, ...]
    groups: list[tuple[Any, ...]]
    code: Integers
    arrays: dict[str, Integers]
    places: dict[Place, slice]

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
        return Events(self.fields, groups, code, arrays, places)

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
    groups, and need less time.
    """
    fields, numbers = tuple(groups or KINDS[kind].groups), tuple(numbers)
    sources = [(i, trace.open(kind, numbers, fields)) for i, trace in enumerate(traces) if trace.has(kind)]
    if not sources:
        return None

    def read(job: tuple[int, EventSource, BatchReader]) -> tuple[int, list[list[Integers]]]:
        """Number of the trace, and the code and the numbers of its events, each in pieces."""
        i, _, part = job
        pieces: list[list[Integers]] = [[] for _ in (None, *numbers)]
        for batch in part():
            code = batch.group.astype(np.uint16) if batch.group.max(initial=0) <= _CODE.max else batch.group
            for own, values in zip(pieces, (code, *(_narrow(batch.numbers[name]) for name in numbers)), strict=True):
                own.append(values)
        return i, [[_joined(own)] for own in pieces] if "start" in numbers else pieces

    done = in_parallel(read, [(i, source, part) for i, source in sources for part in source.parts])

    described: list[tuple[Any, ...]] = []
    first: dict[int, int] = {}
    for i, source in sources:
        first[i] = len(described)
        described += [(i, *values) for values in source.described()]
    at = [0, *(fields.index(name) + 1 for name in ("process", "device") if name in fields)]
    place_of = [tuple(group[i] for i in at) if "start" in numbers else () for group in described]
    places = list(dict.fromkeys(place_of))
    wide = np.uint16 if len(described) <= _CODE.max else np.int32
    number_of = np.array([places.index(place) for place in place_of], wide)

    def by_place(part: tuple[int, list[list[Integers]]]) -> tuple[Integers, list[list[list[Integers]]]]:
        """How many events of each place a part has, and of each of its arrays, the code first, pieces by place."""
        i, (codes, *kept) = part
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
    return Events(fields, described, code, dict(zip(numbers, arrays, strict=True)), where)


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
