"""Read the events of all traces of a capture at once, on all cores, into as little memory as their use allows."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from multicard.core.system import usable_cpus
from multicard.trace.model import KINDS, Batch, BatchReader, EventSource, Integers, Trace
from multicard.trace.statistics import Grouped, Sorted, by_group

Progress = Callable[[int], None]
See = Callable[[int, EventSource, Batch], None]
Where = Callable[[int, EventSource, Batch], npt.NDArray[np.bool_]]

T, R = TypeVar("T"), TypeVar("R")

_NARROW, _CODE = np.iinfo(np.uint32), np.iinfo(np.uint16)


def cores() -> int:
    """Cores that this process may use, at most 8: reading gains no more from others."""
    return min(8, usable_cpus())


def in_parallel(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """What a function gives for each item, in threads if there are several."""
    if len(items) < 2:  # to start a thread takes longer than to read a small trace
        return list(map(function, items))
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(function, items))


@dataclass
class Events:
    """Events of one kind from all traces.

    `groups` holds, by code, the number of the trace and the values of `fields`. `arrays` are in the order of `code`:
    the numbers that were asked for, in half the space where they fit it. `grouped` are the values of the number that
    statistics were asked of, `sort`.
    """

    fields: tuple[str, ...]
    groups: list[tuple[Any, ...]]
    code: Integers
    arrays: dict[str, Integers]
    grouped: Grouped
    sort: str | None

    def where(self, keep: npt.NDArray[np.bool_]) -> "Events":
        """The events of a mask, with the groups that still have some; `sort` must be among the numbers kept."""
        if keep.all():
            return self
        code = self.code[keep]
        used = np.bincount(code, minlength=len(self.groups)) > 0
        code = (np.cumsum(used) - 1).astype(code.dtype)[code]
        arrays = {name: values[keep] for name, values in self.arrays.items()}
        grouped = Grouped([by_group(code, arrays[self.sort])] if self.sort else [])
        groups = [group for group, some in zip(self.groups, used.tolist(), strict=True) if some]
        return Events(self.fields, groups, code, arrays, grouped, self.sort)

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
    *,
    groups: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    sort: str | None = "duration",
    see: See | None = None,
    where: Where | None = None,
    progress: Progress | None = None,
) -> Events | None:
    """Read all events of a kind; None when no trace recorded them.

    Parameters
    ----------
    traces
        Traces of one capture.
    kind
        One of `KINDS`.
    groups
        The columns that describe a group, all by default: fewer make fewer groups, and need less time.
    keep
        The numbers to keep of each event.
    sort
        The number to give `grouped`.
    see
        Called with the number of the trace, the source and every batch with all numbers, from several threads.
    where
        Called likewise, after `see`: says which events of the batch to take.
    progress
        Called with the number of events that were read since the last call.
    """
    fields = tuple(groups or KINDS[kind].groups)
    wanted = tuple(dict.fromkeys((*keep, sort) if sort else keep))
    needed = tuple(dict.fromkeys((*wanted, *KINDS[kind].numbers) if see else wanted))
    sources = [(i, trace.open(kind, needed, fields)) for i, trace in enumerate(traces) if trace.has(kind)]
    if not sources:
        return None

    def read(job: tuple[int, EventSource, BatchReader]) -> tuple[int, Integers, dict[str, Integers], Sorted | None]:
        i, source, part = job
        codes: list[Integers] = []
        batches: dict[str, list[Integers]] = {name: [] for name in wanted}
        for batch in part():
            if see is not None:
                see(i, source, batch)
            if progress is not None:
                progress(len(batch.group))
            if where is not None and not (taken := where(i, source, batch)).all():
                batch = batch.where(taken)
            codes.append(batch.group.astype(np.uint16) if batch.group.max(initial=0) <= _CODE.max else batch.group)
            for name, kept in batches.items():
                kept.append(_narrow(batch.numbers[name]))
        code, arrays = _joined(codes), {name: _joined(kept) for name, kept in batches.items()}
        ordered = by_group(code, arrays[sort]) if sort else None
        return i, code if keep else code[:0], {name: arrays[name] for name in keep}, ordered

    jobs = [(i, source, part) for i, source in sources for part in source.parts]
    done = in_parallel(read, jobs)

    described: list[tuple[Any, ...]] = []
    first: dict[int, int] = {}
    for i, source in sources:
        first[i] = len(described)
        described += [(i, *values) for values in source.described(fields)]
    wide = np.uint16 if len(described) <= _CODE.max else np.int32
    code = _joined([code.astype(wide) + wide(first[i]) if first[i] else code for i, code, _, _ in done])
    joined = {name: _joined([arrays.pop(name) for _, _, arrays, _ in done]) for name in keep}
    parts = [part._replace(codes=part.codes + first[i]) for i, _, _, part in done if part is not None]
    return Events(fields, described, code, joined, Grouped(parts), sort)


def _narrow(values: Integers) -> Integers:
    """The same values in half the space, where they fit."""
    if values.dtype == np.int64 and len(values) and values.min() >= 0 and values.max() <= _NARROW.max:
        return values.astype(np.uint32)
    return values


def _joined(parts: list[Integers]) -> Integers:
    """Join arrays into one of the widest type among them, freeing them as they are copied."""
    kinds = {part.dtype for part in parts if len(part)}
    joined = np.empty(sum(map(len, parts)), np.result_type(*kinds) if kinds else np.int64)
    at = 0
    for i, part in enumerate(parts):
        joined[at : at + len(part)] = part
        at += len(part)
        parts[i] = part[:0]
    return joined
