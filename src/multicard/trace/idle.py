"""Why a device is idle: every moment of it, by what the host does meanwhile.

An idle gap is ended by an activity of the device. Until the call that launches this activity has returned, the gap is
the host's: each moment of it counts to what the launching thread does in that moment. After that the activity was
launched in time, and waits on the device: for another stream, or for an event.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multicard.trace.api_calls import HostActivity
from multicard.trace.host import HostThread
from multicard.trace.intervals import NOTHING, CommonMeasure, Intervals, Measure, intersection
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers

# Idle while the host is …
LAUNCHING = "idle_launching"  # in a call that launches
ALLOCATING = "idle_allocating"  # in a call that allocates, frees or registers memory
LOADING_CODE = "idle_loading_code"  # in a call that loads code onto the device
WAITING = "idle_waiting"  # in a synchronization or a blocking copy
OTHER_CALLS = "idle_other_calls"  # in another call
BETWEEN_CALLS = "idle_between_calls"  # in no call for a short time, between one call and the next
DATA_LOADING = "idle_data_loading"  # in no call, while it loads data
ELSEWHERE = "idle_host_elsewhere"  # in no call for long
# Idle although the next activity was launched in time:
IN_GRAPH = "idle_in_graph"  # between two kernels of one replay of a CUDA graph
QUEUED = "idle_queued"  # for another reason that lies on the device
UNKNOWN_CAUSE = "idle_unknown"  # the launch was not recorded

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


@dataclass(frozen=True)
class Doing:
    """What a thread of the host does.

    `data`, `elsewhere`: moments in which no thread that launches onto the device is in a call, while data is loaded,
    and otherwise for long.
    """

    thread: HostThread
    data: Intervals
    elsewhere: Intervals


ThreadOf = Callable[[int, int, int], Doing]

WORTH_A_NAME = 0.001  # share of the time, above which the function of a cause is looked for

ANY_THREAD = -1  # number of a host thread: whichever thread of the process


@dataclass(frozen=True)
class Openers:
    """What opens each busy interval of a device, in order of time: arrays of one length.

    `call` and `returned`: start and end of the launching call, `UNKNOWN` where it was not recorded. `thread`: number of
    the thread that made it. `migrates`: whether it is a page of managed memory that migrates, for which there is no
    call. `continues`: whether it is a later part of a graph's replay, of which something ran before.
    """

    call: Integers
    returned: Integers
    thread: Integers
    migrates: npt.NDArray[np.bool_]
    continues: npt.NDArray[np.bool_]


class Idleness:
    """The idle moments of a device by cause, within a time."""

    def __init__(self, busy: Intervals, openers: Openers, thread_of: ThreadOf, first: int, last: int) -> None:
        """Divide the gaps between busy intervals, between the first and the last moment that will be asked for.

        `thread_of` gives what a thread does by its number in `openers`, and for `ANY_THREAD` what the process does,
        between two moments at least.
        """
        self._window = np.array([first]), np.array([last])
        gap_starts = np.clip(np.append(first, busy[:, 1]), first, last)
        gap_ends = np.clip(np.append(busy[:, 0], last), first, last)
        # Nothing follows the last gap; the host may have been doing anything.
        launched = np.append(openers.call != UNKNOWN, False)
        of_host = ~launched & np.append(openers.migrates, True)
        continues = np.append(openers.continues, False) & launched
        returned = np.clip(np.append(openers.returned, UNKNOWN), gap_starts, gap_ends)
        # The host is responsible for a gap from its start to this moment.
        host_ends = np.select([launched & ~continues, of_host], [returned, gap_ends], default=gap_starts)

        # What remains of the idle time is queued.
        self._in_graph = _measure(gap_starts, gap_ends, continues)
        self._unknown = _measure(gap_starts, gap_ends, ~launched & ~of_host)
        self._by_thread = []
        own_gaps = np.flatnonzero(host_ends > gap_starts)
        own_thread = np.where(launched, np.append(openers.thread, ANY_THREAD), ANY_THREAD).take(own_gaps)
        for position in np.flatnonzero(np.bincount(own_thread - ANY_THREAD)).tolist():
            number = position + ANY_THREAD
            own = own_gaps.take(np.flatnonzero(own_thread == number))
            gaps = np.stack((gap_starts.take(own), host_ends.take(own))).T
            doing = thread_of(number, int(gaps[0, 0]), int(gaps[-1, 1]))
            self._by_thread.append(_HostGaps(gaps, doing, is_one_thread=number != ANY_THREAD))

    def functions(self) -> dict[str, str]:
        """Return the host's function of each cause in `NAMED` that takes more than `WORTH_A_NAME` of the time.

        It is the function in which most of that time lies. A cause of which it is not known is left out.
        """
        longest: dict[str, tuple[int, str]] = {}
        for gaps in self._by_thread:
            for cause, length, function in gaps.functions(*self._window):
                if length > longest.get(cause, (0, ""))[0]:
                    longest[cause] = (length, function)
        return {cause: function for cause, (_, function) in longest.items()}

    def between(self, starts: Integers, ends: Integers, idle: Integers) -> dict[str, Integers]:
        """Return the nanoseconds of each of `CAUSES` within each [start, end), of which so many are idle."""
        found = {cause: np.zeros(len(starts), np.int64) for cause in CAUSES}
        for gaps in self._by_thread:
            for cause, length in gaps.between(starts, ends).items():
                found[cause] += length
        found[IN_GRAPH] += self._in_graph.between(starts, ends)
        found[UNKNOWN_CAUSE] += self._unknown.between(starts, ends)
        found[QUEUED] = idle - sum(found.values())
        return found


class _HostGaps:
    """The parts of idle gaps that one thread of the host is responsible for."""

    def __init__(self, gaps: Intervals, doing: Doing, *, is_one_thread: bool) -> None:
        self._gaps, self._doing, self._is_one_thread = gaps, doing, is_one_thread
        self._all = Measure(gaps)
        thread = doing.thread
        self._in_calls = CommonMeasure(self._all, thread.calls)
        self._by_call = {
            _CAUSE_OF_CALL[activity]: CommonMeasure(self._all, moments) for activity, moments in thread.moments.items()
        }
        self._outside = {
            DATA_LOADING: CommonMeasure(self._all, doing.data),
            ELSEWHERE: CommonMeasure(self._all, doing.elsewhere),
        }

    def between(self, starts: Integers, ends: Integers) -> dict[str, Integers]:
        """Return the nanoseconds of each cause within each [start, end)."""
        in_calls = self._in_calls.between(starts, ends)
        by_call = {cause: common.between(starts, ends) for cause, common in self._by_call.items()}
        outside = {cause: common.between(starts, ends) for cause, common in self._outside.items()}
        whole = self._all.between(starts, ends)
        # The moments of calls leave launching calls out, so these are what remains.
        return {
            LAUNCHING: in_calls - sum(by_call.values()),
            BETWEEN_CALLS: whole - in_calls - sum(outside.values()),
            **by_call,
            **outside,
        }

    def functions(self, start: Integers, end: Integers) -> Iterator[tuple[str, int, str]]:
        """Yield cause, nanoseconds and function, for each cause within [start, end) of which the function is known.

        Of causes that take less than a thousandth of the time none is looked for.
        """
        least = int((end - start)[0]) * WORTH_A_NAME
        lengths = self.between(start, end)
        for cause, activity in _CALL_OF_CAUSE.items():
            length = int(lengths[cause][0])
            function = self._doing.thread.function_in(activity, self._gaps) if length > least else None
            if function is not None:
                yield cause, length, function
        # Of several threads some always wait in the operating system, which says nothing.
        away = int(lengths[ELSEWHERE][0]) if self._is_one_thread else 0
        function = None
        if away > least:
            function = self._doing.thread.library_function_in(intersection(self._gaps, self._doing.elsewhere))
        if function is not None:
            yield ELSEWHERE, away, function


def _measure(starts: Integers, ends: Integers, chosen: npt.NDArray[np.bool_]) -> Measure:
    """Return the measure of the chosen ones of some disjoint intervals in order of time."""
    own = np.flatnonzero(chosen & (ends > starts))
    return Measure(np.stack((starts.take(own), ends.take(own))).T if len(own) else NOTHING)
