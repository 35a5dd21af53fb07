"""Read the events of all traces of a capture at once, on all cores, into as little memory as their use allows."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from multicard.core.system import usable_cpus
from multicard.trace.model import KINDS, BatchReader, EventSource, Integers, Trace
from multicard.trace.statistics import Grouped

T, R = TypeVar("T"), TypeVar("R")

_NARROW, _CODE = np.iinfo(np.uint32), np.iinfo(np.uint16)


def in_parallel(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """What a function gives for each item, in threads if there are several."""
    if len(items) < 2:  # to start a thread takes longer than to read a small trace
        return list(map(function, items))
    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:  # reading gains no more from others
        return list(pool.map(function, items))


@dataclass
class Events:
    """Events of one kind from all traces.

    `groups` holds, by code, the number of the trace and the values of `fields`. `arrays` are in the order of `code`:
    the numbers that were asked for, in half the space where they fit it.
    """

    fields: tuple[str, ...]
    groups: list[tuple[Any, ...]]
    code: Integers
    arrays: dict[str, Integers]

    def where(self, keep: npt.NDArray[np.bool_]) -> "Events":
        """The events of a mask, with the groups that still have some."""
        if keep.all():
            return self
        code = self.code[keep]
        used = np.bincount(code, minlength=len(self.groups)) > 0
        code = (np.cumsum(used) - 1).astype(code.dtype)[code]
        groups = [group for group, some in zip(self.groups, used.tolist(), strict=True) if some]
        return Events(self.fields, groups, code, {name: values[keep] for name, values in self.arrays.items()})

    def grouped(self, name: str = "duration") -> Grouped:
        """One of the numbers, by group."""
        return Grouped(self.code, self.arrays[name])

    def mask(self, groups: Iterable[bool]) -> npt.NDArray[np.bool_]:
        """Which events are of the groups that the values, one for each group, say yes to."""
        return np.fromiter(groups, bool, len(self.groups))[self.code]

    def described(self) -> list[dict[str, Any]]:
        """The fields of each group by name."""
        return [dict(zip(self.fields, group[1:], strict=True)) for group in self.groups]

    def values(self, *names: str) -> list[tuple[Any, ...]]:
        """Trace and some fields of each group."""
        at = [self.fields.index(name) + 1 for name in names]
        return [(group[0], *(group[i] for i in at)) for group in self.groups]


def collect(
    traces: Sequence[Trace],
    kind: str,
    numbers: Sequence[str],
    groups: Sequence[str] | None = None,
) -> Events | None:
    """Read all events of a kind; None when no trace recorded them.

    Parameters
    ----------
    traces
        Traces of one capture.
    kind
        One of `KINDS`.
    numbers
        The numbers to keep of each event.
    groups
        The columns that describe a group, all by default: fewer make fewer groups, and need less time.
    """
    fields, numbers = tuple(groups or KINDS[kind].groups), tuple(numbers)
    sources = [(i, trace.open(kind, numbers, fields)) for i, trace in enumerate(traces) if trace.has(kind)]
    if not sources:
        return None

    def read(job: tuple[int, EventSource, BatchReader]) -> tuple[int, Integers, list[Integers]]:
        i, _, part = job
        codes: list[Integers] = []
        kept: list[list[Integers]] = [[] for _ in numbers]
        for batch in part():
            codes.append(batch.group.astype(np.uint16) if batch.group.max(initial=0) <= _CODE.max else batch.group)
            for name, own in zip(numbers, kept, strict=True):
                own.append(_narrow(batch.numbers[name]))
        return i, _joined(codes), list(map(_joined, kept))

    done = in_parallel(read, [(i, source, part) for i, source in sources for part in source.parts])

    described: list[tuple[Any, ...]] = []
    first: dict[int, int] = {}
    for i, source in sources:
        first[i] = len(described)
        described += [(i, *values) for values in source.described(fields)]
    wide = np.uint16 if len(described) <= _CODE.max else np.int32
    code = _joined([code.astype(wide) + wide(first[i]) if first[i] else code for i, code, _ in done])
    arrays = {name: _joined([kept[at] for _, _, kept in done]) for at, name in enumerate(numbers)}
    return Events(fields, described, code, arrays)


def _narrow(values: Integers) -> Integers:
    """The same values in half the space, where they fit."""
    if values.dtype == np.int64 and len(values) and values.min() >= 0 and values.max() <= _NARROW.max:
        return values.astype(np.uint32)
    return values


def _joined(parts: list[Integers]) -> Integers:
    """Join arrays into one of the widest type among those that hold something."""
    parts = [part for part in parts if len(part)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
