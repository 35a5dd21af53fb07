"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

import re
import threading
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.trace.collect import Events
from multicard.trace.model import Batch, EventSource, Integers

UNKNOWN = np.iinfo(np.int64).max
LAUNCH = re.compile(r"(?:cuda|cu)(?:Launch|GraphLaunch)")
KERNEL_LAUNCH = re.compile(r"(?:cuda|cu)Launch(?:Cooperative)?Kernel")

_SPARSE = 8  # correlations per event from which on a table by correlation would waste memory


class Launches:
    """Looks out for the calls that launched some device events while all calls pass by.

    Where several calls carry the same correlation, the one that began first counts: a runtime call comes before the
    driver call inside it.
    """

    def __init__(self, events: Sequence[Events], threads: Collection[tuple[Any, ...]] = ()) -> None:
        """`events` carry process and correlation; `by_thread` asks for `threads`, each with its trace and process."""
        self._threads = threads
        owners = dict.fromkeys(owner for own in events for owner in own.values("process"))
        self._owners = {owner: i for i, owner in enumerate(owners)}
        self._slots = [np.full(len(own.code), -1, np.int32) for own in events]
        self._tables: list[tuple[int, Integers] | tuple[Integers, int]] = []
        self._known: dict[int, tuple[Integers, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]] = {}
        self._made: dict[int, list[tuple[Integers, npt.NDArray[np.bool_]]]] = {}
        self._lock = threading.Lock()
        of_event = [
            np.array([self._owners[owner] for owner in own.values("process")], np.int32)[own.code] for own in events
        ]
        slots = 0
        for owner in range(len(self._owners)):
            mine = [np.flatnonzero(of == owner) for of in of_event]
            numbers = [own.arrays["correlation"][at] for own, at in zip(events, mine, strict=True)]
            table, count = _table(np.concatenate(numbers), slots)
            self._tables.append(table)
            for slot, at, number in zip(self._slots, mine, numbers, strict=True):
                slot[at] = _find(table, number)
            slots += count
        self._start = np.full(slots, UNKNOWN)
        self._end = np.full(slots, UNKNOWN)
        self._by_thread = np.zeros(slots, bool)

    def see(self, trace: int, source: EventSource, batch: Batch) -> None:
        """Take note of the calls in a batch."""
        owners, of_threads, launching = self._callers(trace, source, batch.group)
        owner = owners[batch.group]
        for i in np.flatnonzero(np.bincount(owner + 1, minlength=1)[1:]).tolist():
            mine = owner == i
            slot = _find(self._tables[i], batch.numbers["correlation"][mine])
            found = slot >= 0
            launches = launching[batch.group[mine]]
            made = batch.numbers["start"][mine][launches], found[launches]
            slot, start = slot[found], batch.numbers["start"][mine][found]
            end = batch.numbers["end"][mine][found]
            by_thread = slot[of_threads[batch.group[mine][found]]] if self._threads else slot[:0]
            with self._lock:
                np.minimum.at(self._start, slot, start)
                first = self._start[slot] == start
                self._end[slot[first]] = end[first]
                self._by_thread[by_thread] = True
                self._made.setdefault(i, []).append(made)

    def _callers(
        self, trace: int, source: EventSource, codes: Integers
    ) -> tuple[Integers, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Of each group of calls: its process by number, or -1; if its thread is wanted; if it launches a kernel."""
        known = self._known.get(trace)
        if known is None or codes.max(initial=-1) >= len(known[0]):
            thread = ("thread",) if self._threads else ()
            described = source.described(("process", "api", "name", *thread))
            owners = [
                -1 if api == "backtrace" else self._owners.get((trace, process), -1) for process, api, *_ in described
            ]
            wanted = [(trace, process, *thread) in self._threads for process, _, _, *thread in described]
            launching = [bool(KERNEL_LAUNCH.match(name)) for _, _, name, *_ in described]
            known = self._known[trace] = np.array(owners), np.array(wanted, bool), np.array(launching, bool)
        return known

    def without_kernel(self) -> dict[tuple[Any, ...], tuple[Integers, Integers]]:
        """When each process launched kernels, in order; and how many of the launches up to each have none recorded."""
        found = {}
        for owner, number in self._owners.items():
            if number in self._made:
                start, has = map(np.concatenate, zip(*self._made[number], strict=True))
                order = np.argsort(start, kind="stable")
                found[owner] = start[order], np.cumsum(~has[order])
        return found

    def done(self) -> None:
        """Free what only looking out for calls needs."""
        self._tables.clear()

    def keep(self, which: int, events: npt.NDArray[np.bool_]) -> None:
        """Leave only some events, a mask, in the set `which`."""
        self._slots[which] = self._slots[which][events]

    def start_of(self, which: int, events: Any) -> Integers:
        """Start of the launching calls of some events (a mask or slice) of the set `which`, or `UNKNOWN`."""
        return self._times_of(which, events, self._start)

    def end_of(self, which: int, events: Any) -> Integers:
        """End of the same calls."""
        return self._times_of(which, events, self._end)

    def by_thread(self, which: int, events: Any) -> npt.NDArray[np.bool_]:
        """Whether one of the threads made the launching calls of the same."""
        slot = self._slots[which][events]
        return (slot >= 0) & self._by_thread[slot] if len(self._by_thread) else np.zeros(len(slot), bool)

    def _times_of(self, which: int, events: Any, times: Integers) -> Integers:
        slot = self._slots[which][events]
        return np.where(slot >= 0, times[slot], UNKNOWN) if len(times) else np.full(len(slot), UNKNOWN)


def _table(numbers: Integers, first: int) -> tuple[Any, int]:
    """Look-up of a slot, counted from `first`, for each distinct number that is not negative; how many there are."""
    numbers = numbers[numbers >= 0]
    if len(numbers) == 0:
        return (np.empty(0, np.int64), first), 0
    low, high = int(numbers.min()), int(numbers.max())
    if high - low + 1 > _SPARSE * len(numbers) + 1_000_000:
        distinct = np.unique(numbers)
        return (distinct, first), len(distinct)
    slots = np.zeros(high - low + 1, np.int32)
    slots[numbers - low] = 1
    present = slots > 0
    np.cumsum(slots, out=slots)
    slots += first - 1
    slots[~present] = -1
    return (low, slots), int(present.sum())


def _find(table: Any, numbers: Integers) -> Integers:
    """Slot of each number, -1 where there is none."""
    head, tail = table
    if isinstance(head, int):
        at = numbers.astype(np.int64) - head
        inside = (at >= 0) & (at < len(tail))
        return np.where(inside, tail[np.where(inside, at, 0)], np.int32(-1))
    if len(head) == 0:
        return np.full(len(numbers), -1, np.int32)
    at = np.minimum(np.searchsorted(head, numbers), len(head) - 1)
    return np.where(head[at] == numbers, at + tail, -1).astype(np.int32)
