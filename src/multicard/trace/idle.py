"""Why a device is idle: every moment of it, by what the host does meanwhile.

An idle gap is ended by an activity of the device. Until the call that launches this activity has returned, the gap is
the host's: each moment of it counts to what the launching thread does in that moment. After that the activity was
launched in time, and waits on the device: for another stream, or for an event.
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

# The host is in a call: one that launches; one that allocates, frees or registers memory; one that loads code onto the
# device; a synchronization or a blocking copy; another one.
LAUNCHING = "idle_launching"
ALLOCATING = "idle_allocating"
LOADING_CODE = "idle_loading_code"
WAITING = "idle_waiting"
OTHER_CALLS = "idle_other_calls"
# The host is in no call: for a short time, between one call and the next; while it loads data; for long.
BETWEEN_CALLS = "idle_between_calls"
DATA_LOADING = "idle_data_loading"
ELSEWHERE = "idle_host_elsewhere"
# The device is idle although the next activity was launched in time: between two kernels of one replay of a CUDA graph,
# or for another reason that lies on the device.
IN_GRAPH = "idle_in_graph"
QUEUED = "idle_queued"
# The launch of the next activity was not recorded.
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

# Causes of which the function of the host is named.
NAMED = (*_CALL_OF_CAUSE, ELSEWHERE)

# Stands for the number of a host thread: whichever thread of the process.
ANY_THREAD = -1

# The function of a cause is looked for if the cause takes more than this part of the time.
_LEAST_NAMED_SHARE = 0.001


@dataclass(frozen=True)
class ThreadActivity:
    """What a thread of the host does.

    `data`, `elsewhere`: moments in which no thread that launches onto the device is in a call, while data is loaded,
    and otherwise for long.
    """

    thread: HostThread
    data: Intervals
    elsewhere: Intervals


# Returns what a thread does, by its number in `Openers` or `ANY_THREAD`, between two moments at least.
ActivityOfThread = Callable[[int, int, int], ThreadActivity]


@dataclass(frozen=True)
class Openers:
    """The activities that open each busy interval of a device, in order of time: arrays of one length.

    `call` and `returned`: start and end of the launching call, `UNKNOWN` where it was not recorded. `thread`: number of
    the thread that made it. `migrates`: True for a page of managed memory that migrates, for which there is no call.
    `continues`: True for a later part of a graph's replay, of which something ran before.
    """

    call: Integers
    returned: Integers
    thread: Integers
    migrates: npt.NDArray[np.bool_]
    continues: npt.NDArray[np.bool_]


class CauseFunction(NamedTuple):
    """The host's function in which most of an idle cause's time lies, and the nanoseconds of that cause."""

    cause: str
    length: int
    function: str


class Idleness:
    """The idle moments of a device by cause, within a time; made by `Device.between`."""

    def __init__(self, busy: Intervals, openers: Openers, activity_of: ActivityOfThread, first: int, last: int) -> None:
        """Divide the gaps between busy intervals, between the first and the last moment that will be asked for.

        The device works from 10 to 20 on what a call launched that returned at 12, and the time ends at 30:

            gap      activity that ends it    the host is responsible    afterwards
            0-10     launched until 12        0-10                       nothing is left of the gap
            20-30    none                     20-30                      nothing is left of the gap

        If the call had returned at 4, the activity would have been launched in time: 0-4 would be the host's, and from
        4 to 10 the activity was queued.
        """
        self._first = first
        self._last = last
        # There is a gap before each busy interval, and one after the last. No activity ends that last gap: so it has no
        # call by any thread, and the host may have been doing anything. It is the last element of each array below.
        busy_starts, busy_ends = busy.T
        gap_starts = np.clip(np.append(first, busy_ends), first, last)
        gap_ends = np.clip(np.append(busy_starts, last), first, last)
        has_call = np.append(openers.call != UNKNOWN, False)
        returned = np.clip(np.append(openers.returned, UNKNOWN), gap_starts, gap_ends)
        thread = np.where(has_call, np.append(openers.thread, ANY_THREAD), ANY_THREAD)
        needs_no_call = np.append(openers.migrates, True)
        continues_graph = np.append(openers.continues, False)

        # Each gap is of one of four sorts.
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
        """Return the host's function of each cause in `NAMED` that takes more than a thousandth of the time.

        It is the function in which most of that time lies. A cause is left out if its function is unknown.
        """
        longest: dict[str, CauseFunction] = {}
        for gaps in self._by_thread:
            for candidate in gaps.functions(self._first, self._last):
                longest_so_far = longest.get(candidate.cause)
                if longest_so_far is None or candidate.length > longest_so_far.length:
                    longest[candidate.cause] = candidate
        return {cause: candidate.function for cause, candidate in longest.items()}

    def between(self, starts: Integers, ends: Integers, idle: Integers) -> dict[str, Integers]:
        """Return the nanoseconds of each of `CAUSES` within each [start, end), of which `idle` nanoseconds are idle."""
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
        """Take the gaps, at least one, and the number of the thread."""
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
        """Return the nanoseconds of each cause within each [start, end).

        The moments in calls and outside of them add up to the gaps. `HostThread.moments` leaves out launching calls,
        which are what remains of all calls, and a short pause is what remains outside calls.
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
        """Yield the function of each cause that takes long enough between two moments, if the function is known."""
        least = (last - first) * _LEAST_NAMED_SHARE
        lengths: dict[str, int] = {}
        for cause, values in self.between(np.array([first]), np.array([last])).items():
            lengths[cause] = int(values[0])
        for cause, activity in _CALL_OF_CAUSE.items():
            if lengths[cause] > least:
                function = self._thread.function_in(activity, self._gaps)
                if function is not None:
                    yield CauseFunction(cause, lengths[cause], function)
        # If several threads may be meant, some always wait in the operating system, which explains nothing.
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
    """Return the measure of some disjoint intervals in order of time, of those that are chosen and not empty."""
    chosen = np.flatnonzero(is_chosen & (ends > starts))
    if not len(chosen):
        return Measure(NOTHING)
    return Measure(np.stack((starts.take(chosen), ends.take(chosen))).T)
