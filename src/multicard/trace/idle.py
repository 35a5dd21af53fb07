"""Divide the idle time of a device by cause: by what the host does in each idle moment.

An idle gap lasts until the next activity of the device begins. Until the call that launches this activity returns, the
host is responsible for the gap: the cause of each moment is what the launching thread does in it. After that, the
activity is queued: it waits on the device, for another stream or for an event.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.trace.api_calls import HostActivity
from multicard.trace.host import HostThread
from multicard.trace.intervals import NOTHING, CommonMeasure, Intervals, Measure, intersection
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers

# The host is in a call. In the order of these causes: the call launches work; it allocates, frees, registers or maps
# memory; it loads code onto the device; it waits in a synchronization or in a blocking copy; it does anything else.
LAUNCHING = "idle_launching"
ALLOCATING = "idle_allocating"
LOADING_CODE = "idle_loading_code"
WAITING = "idle_waiting"
OTHER_CALLS = "idle_other_calls"
# The host is in no call. In the order of these causes: it is between two calls, for a short time; it loads data; it
# makes no call for long.
BETWEEN_CALLS = "idle_between_calls"
DATA_LOADING = "idle_data_loading"
ELSEWHERE = "idle_host_elsewhere"
# The device is idle although its next activity is already launched. In the order of these causes: this activity is a
# later part of a CUDA graph whose replay has begun; it waits for any other reason, which lies on the device.
IN_GRAPH = "idle_in_graph"
QUEUED = "idle_queued"
# The call that launched the next activity was not recorded, though such an activity needs one.
UNKNOWN_CAUSE = "idle_unknown"

CAUSES = (
    LAUNCHING, BETWEEN_CALLS, OTHER_CALLS, ALLOCATING, LOADING_CODE, WAITING, DATA_LOADING, ELSEWHERE, IN_GRAPH,
    QUEUED, UNKNOWN_CAUSE,
)  # fmt: skip

_CAUSE_OF_CALL = {
    HostActivity.LOADING_CODE: LOADING_CODE,
    HostActivity.ALLOCATING: ALLOCATING,
    HostActivity.WAITING: WAITING,
    HostActivity.OTHER: OTHER_CALLS,
}

_CALL_OF_CAUSE = {cause: activity for activity, cause in _CAUSE_OF_CALL.items()} | {LAUNCHING: HostActivity.LAUNCHING}

# Causes for which the function is named that the host spends most of the time in.
NAMED = (*_CALL_OF_CAUSE, ELSEWHERE)

# Takes the place of the number of a thread if all threads of the process are meant together.
ANY_THREAD = -1

# The function of a cause is looked for only if the cause takes more than this part of the whole time, busy and idle, in
# the gaps that one thread is responsible for.
_LEAST_NAMED_SHARE = 0.001


@dataclass(frozen=True)
class ThreadActivity:
    """What a thread of the host does.

    `data`: the moments in which the process loads data, and no thread that launches onto the device is in a call.
    `elsewhere`: all other moments in which, for long, no thread that launches onto the device is in a call.
    """

    thread: HostThread
    data: Intervals
    elsewhere: Intervals


# Takes the number of a thread as in `Openers`, or `ANY_THREAD`, and two moments. Returns what the thread does between
# these moments. The result may also say what it does before or after them.
ActivityOfThread = Callable[[int, int, int], ThreadActivity]


@dataclass(frozen=True)
class Openers:
    """The activity that opens each busy interval of a device, in order of time: arrays with one element per interval.

    `call` and `returned`: start and end of the launching call, `UNKNOWN` where it was not recorded. `thread`: number of
    the thread that made the call. `migrates`: True if the activity is the migration of a page of managed memory, which
    no call launches. `continues`: True if the activity is part of a graph's replay, but not the first part.
    """

    call: Integers
    returned: Integers
    thread: Integers
    migrates: npt.NDArray[np.bool_]
    continues: npt.NDArray[np.bool_]


class CauseFunction(NamedTuple):
    """A function of the host in which a thread spends most of the time of an idle cause.

    `length`: nanoseconds of the cause in all gaps that this thread is responsible for.
    """

    cause: str
    length: int
    function: str


class Idleness:
    """The idle moments of a device by cause, between two moments; made by `Device.between`."""

    def __init__(self, busy: Intervals, openers: Openers, activity_of: ActivityOfThread, first: int, last: int) -> None:
        """Divide the gaps before, between and after the busy intervals by cause, from `first` to `last`.

        `openers`: the activity that opens each of the intervals `busy`. `first` and `last`: the earliest start and the
        latest end of the windows that `between` will be called with.

        In the time from 0 to 30, the device works from 10 to 20. The call that launched this work returned at 12:

            gap      activity that ends it    the host is responsible    the activity is queued
            0-10     launched until 12        0-10                       never
            20-30    none                     20-30                      never

        If the call had returned at 4, the host would be responsible from 0 to 4, and the activity would be queued from
        4 to 10.
        """
        self._first = first
        self._last = last
        # There is a gap before each busy interval, and one after the last interval, which is the last element of each
        # array below. No activity ends this last gap, so it has no launching call, and the host is responsible for all
        # of it, with any of its threads.
        busy_starts, busy_ends = busy.T
        gap_starts = np.clip(np.append(first, busy_ends), first, last)
        gap_ends = np.clip(np.append(busy_starts, last), first, last)
        has_call = np.append(openers.call != UNKNOWN, False)
        returned = np.clip(np.append(openers.returned, UNKNOWN), gap_starts, gap_ends)
        thread = np.where(has_call, np.append(openers.thread, ANY_THREAD), ANY_THREAD)
        needs_no_call = np.append(openers.migrates, True)
        continues_graph = np.append(openers.continues, False)

        # Each gap is of exactly one of four sorts, in this order: an activity ends it that is a later part of a graph's
        # replay; any other activity ends it whose call was recorded; a migration ends it, which needs no call, or no
        # activity ends it; an activity ends it whose call was not recorded.
        is_in_graph = has_call & continues_graph
        is_launched = has_call & ~continues_graph
        is_without_launch = ~has_call & needs_no_call
        is_unknown = ~has_call & ~needs_no_call
        # The host is responsible from the start of a gap to this moment; after it the activity is queued.
        host_ends = np.select([is_launched, is_without_launch], [returned, gap_ends], default=gap_starts)

        self._in_graph = _measure(gap_starts, gap_ends, is_in_graph)
        self._unknown = _measure(gap_starts, gap_ends, is_unknown)
        host_gaps = np.flatnonzero(host_ends > gap_starts)
        self._by_thread: list[_HostGaps] = []
        for number, gaps in _by_number(thread, host_gaps):
            moments = np.stack((gap_starts.take(gaps), host_ends.take(gaps))).T
            self._by_thread.append(_HostGaps(moments, number, activity_of))

    def functions(self) -> dict[str, str]:
        """Return by cause, for those in `NAMED`, the function of the host that takes most of the cause's time.

        `HostThread.function_in` and, for `ELSEWHERE`, `HostThread.library_function_in` find the function of a thread.
        If several threads are responsible for gaps, it is the function of the thread with most time of the cause. A
        cause is left out if in the gaps of no thread it takes more than a thousandth of the time from `first` to
        `last`, or if its function is unknown.
        """
        longest: dict[str, CauseFunction] = {}
        for gaps in self._by_thread:
            for candidate in gaps.functions(self._first, self._last):
                longest_so_far = longest.get(candidate.cause)
                if longest_so_far is None or candidate.length > longest_so_far.length:
                    longest[candidate.cause] = candidate
        return {cause: candidate.function for cause, candidate in longest.items()}

    def between(self, starts: Integers, ends: Integers, idle: Integers) -> dict[str, Integers]:
        """Return the nanoseconds of each of `CAUSES` within each window [start, end).

        `idle`: the nanoseconds in which the device is idle within each window, to which the causes add up.
        """
        lengths: dict[str, Integers] = {cause: np.zeros(len(starts), np.int64) for cause in CAUSES}
        for gaps in self._by_thread:
            for cause, length in gaps.between(starts, ends).items():
                lengths[cause] += length
        lengths[IN_GRAPH] += self._in_graph.between(starts, ends)
        lengths[UNKNOWN_CAUSE] += self._unknown.between(starts, ends)
        # What remains of the idle time is queued.
        lengths[QUEUED] = idle - np.sum(list(lengths.values()), axis=0)
        return lengths


class _HostGaps:
    """The parts of idle gaps that one thread of the host is responsible for."""

    def __init__(self, gaps: Intervals, number: int, activity_of: ActivityOfThread) -> None:
        """Take the gaps, at least one, and the number of the thread, or `ANY_THREAD`."""
        activity = activity_of(number, int(gaps[0, 0]), int(gaps[-1, 1]))
        self._gaps = gaps
        self._thread = activity.thread
        self._elsewhere = activity.elsewhere
        self._is_one_thread = number != ANY_THREAD
        self._all = Measure(gaps)
        self._in_calls = CommonMeasure(self._all, self._thread.calls)
        self._by_call: dict[str, CommonMeasure] = {}
        for activity_in_call, moments in self._thread.moments.items():
            self._by_call[_CAUSE_OF_CALL[activity_in_call]] = CommonMeasure(self._all, moments)
        self._outside_calls = {
            DATA_LOADING: CommonMeasure(self._all, activity.data),
            ELSEWHERE: CommonMeasure(self._all, activity.elsewhere),
        }

    def between(self, starts: Integers, ends: Integers) -> dict[str, Integers]:
        """Return the nanoseconds of each cause for which the host is responsible, within each window [start, end).

        Two of the causes are remainders. In calls, what none of `HostThread.moments` has is launching. Outside of
        calls, what is neither data loading nor elsewhere is between calls.
        """
        whole = self._all.between(starts, ends)
        in_calls = self._in_calls.between(starts, ends)
        by_call = {cause: common.between(starts, ends) for cause, common in self._by_call.items()}
        outside_calls = {cause: common.between(starts, ends) for cause, common in self._outside_calls.items()}
        return {
            LAUNCHING: in_calls - sum(by_call.values()),
            BETWEEN_CALLS: whole - in_calls - sum(outside_calls.values()),
            **by_call,
            **outside_calls,
        }

    def functions(self, first: int, last: int) -> Iterator[CauseFunction]:
        """Yield the function of each cause in `NAMED`, if it is known and the cause takes long enough.

        Long enough is more than `_LEAST_NAMED_SHARE` of the time from `first` to `last`.
        """
        least = (last - first) * _LEAST_NAMED_SHARE
        lengths: dict[str, int] = {}
        for cause, values in self.between(np.array([first]), np.array([last])).items():
            lengths[cause] = int(values[0])
        for cause, activity in _CALL_OF_CAUSE.items():
            if lengths[cause] > least:
                function = self._thread.function_in(activity, self._gaps)
                if function is not None:
                    yield CauseFunction(cause, lengths[cause], function)
        # For `ANY_THREAD` no function of the operating system is named: some of the threads always wait in one, which
        # explains nothing.
        if self._is_one_thread and lengths[ELSEWHERE] > least:
            gaps_elsewhere = intersection(self._gaps, self._elsewhere)
            function = self._thread.library_function_in(gaps_elsewhere)
            if function is not None:
                yield CauseFunction(ELSEWHERE, lengths[ELSEWHERE], function)


def _by_number(numbers: Integers, positions: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each number that occurs at some positions, and the positions at which it does.

    >>> numbers = np.array([2, ANY_THREAD, 2, 5])
    >>> [(number, chosen.tolist()) for number, chosen in _by_number(numbers, np.array([0, 1, 2]))]
    [(-1, [1]), (2, [0, 2])]
    """
    chosen = numbers.take(positions)
    # `ANY_THREAD` is the lowest number; counting needs no sort of what may be millions of gaps.
    counts = np.bincount(chosen - ANY_THREAD)
    for index in np.flatnonzero(counts).tolist():
        number = index + ANY_THREAD
        yield number, positions.take(np.flatnonzero(chosen == number))


def _measure(starts: Integers, ends: Integers, is_chosen: npt.NDArray[np.bool_]) -> Measure:
    """Return the measure of the chosen ones of some disjoint intervals, which are in order of time and may be empty."""
    chosen = np.flatnonzero(is_chosen & (ends > starts))
    if not len(chosen):
        return Measure(NOTHING)
    return Measure(np.stack((starts.take(chosen), ends.take(chosen))).T)
