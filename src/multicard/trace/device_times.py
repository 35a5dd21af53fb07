"""Measure for how long a device did each kind of work within windows of time.

All of these times are lengths of unions of intervals. They are never sums over streams, which would count a moment once
for each stream that is active in it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multicard.trace.idle import CAUSES, ActivityOfThread, Idleness, Openers
from multicard.trace.intervals import NOTHING, Intervals, Measure, merged
from multicard.trace.model import Integers

# Kinds of activity on a device. COMPUTE is a kernel that does not communicate, COMMUNICATION one that does. GRAPH is
# the replay of a CUDA graph whose kernels and copies were not recorded. MIGRATION moves pages of managed memory.
COMPUTE, COMMUNICATION, MEMORY, GRAPH, MIGRATION = range(5)
_KIND_COUNT = 5

# The times that are measured in each window, as `Device.between` defines them.
SHARES = (
    "span", "busy", "compute", "communication", "memory", "graphs", "overlapped", "exposed_communication", "idle",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceTimes:
    """What a device did within some windows, made by `Device.between`.

    `nanoseconds`: for each name in `SHARES` and `CAUSES`, a list with one number for each window. For the causes it is
    None if no calls were recorded, or if `Device.between` was not told what the host does. `functions`: by cause, the
    function of the host in which most of this cause's time lies, as `Idleness.functions` returns it for the time from
    the first start of a window to the last end.
    """

    nanoseconds: dict[str, list[int] | None]
    functions: dict[str, str]


class Launches:
    """The call that launched each activity of a device: when it began and returned, and which thread made it.

    `call` and `returned` are in nanoseconds, `UNKNOWN` where the call was not recorded. `thread` is the position of the
    calling thread in `calling_threads`, `NO_THREAD` where the call was not recorded. `by_graph` is True where the call
    replayed a CUDA graph, which launches several activities; None if no call replayed one.
    """

    def __init__(
        self, call: Integers, returned: Integers, thread: Integers, by_graph: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self.call = call
        self.returned = returned
        self.thread = thread
        self.by_graph = by_graph

    def openers(self, order: Integers, first_positions: Integers, migrates: npt.NDArray[np.bool_]) -> Openers:
        """Return the launches of those activities that open a busy interval.

        `order`: the indices of the activities in order of time. `first_positions`: the position in `order` of the
        activity that opens each interval. `migrates`: for each interval, True if that activity is a migration.
        """
        openers = order.take(first_positions)
        continues = np.zeros(len(first_positions), bool)
        if self.by_graph is not None and self.by_graph.any():
            continues = self._continues_graph(order).take(first_positions)
        return Openers(
            call=self.call.take(openers),
            returned=self.returned.take(openers),
            thread=self.thread.take(openers),
            migrates=migrates,
            continues=continues,
        )

    def _continues_graph(self, order: Integers) -> npt.NDArray[np.bool_]:
        """Return the mask, in `order`, of the activities that are part of a graph's replay, but not its first part.

        All activities whose graph-launching calls began in the same nanosecond belong to one replay.
        """
        assert self.by_graph is not None
        continues = self.by_graph.take(order)
        in_graphs = np.flatnonzero(continues)
        call_of_replay = self.call.take(order.take(in_graphs))
        _, first_of_replay = np.unique(call_of_replay, return_index=True)
        continues[in_graphs.take(first_of_replay)] = False
        return continues


class Device:
    """What ran on one device, in order of time.

    >>> device = Device(
    ...     start=np.array([0, 6, 14]),
    ...     end=np.array([10, 12, 20]),
    ...     kind=np.array([COMPUTE, COMMUNICATION, COMPUTE]),
    ... )
    >>> times = device.between(np.array([0]), np.array([20])).nanoseconds
    >>> {name: times[name] for name in ("busy", "compute", "communication", "overlapped", "exposed_communication")}
    {'busy': [18], 'compute': [16], 'communication': [6], 'overlapped': [4], 'exposed_communication': [2]}
    """

    def __init__(self, start: Integers, end: Integers, kind: Integers, launches: Launches | None = None) -> None:
        """Take the activities, at least one, in any order, with start and end in nanoseconds and the kind of each.

        `launches`: the calls that launched the activities; None if no calls were recorded.
        """
        self.first = int(start.min())
        self.last = int(end.max())
        # Positions of the activities that take time, in the order of their starts.
        order = np.flatnonzero(end > start)
        starts = start.take(order)
        is_ordered = (starts[1:] >= starts[:-1]).all()
        if not is_ordered:
            order = order.take(np.argsort(starts, kind="stable"))
            starts = start.take(order)
        begins_with_next = np.flatnonzero(starts[1:] == starts[:-1])
        if launches is not None and len(begins_with_next):
            # Of activities that begin at the same moment, the one that was launched first opens the interval, so it
            # has to come first.
            tied = np.union1d(begins_with_next, begins_with_next + 1)
            tied_activities = order.take(tied)
            tied_calls = launches.call.take(tied_activities)
            order[tied] = tied_activities.take(np.lexsort((tied_calls, starts.take(tied))))
        self._order = order
        self._start = starts
        self._end = end.take(order)
        self._kind = kind.take(order)
        self._launches = launches

    def between(self, starts: Integers, ends: Integers, activity_of: ActivityOfThread | None = None) -> DeviceTimes:
        """Return how long the device did each kind of work within each window [start, end).

        |…| is the length of a set of moments within the window:

            span                   the length of the window
            busy                   |any activity|
            compute                |compute|, kernels that do not communicate
            communication          |communication|, kernels that communicate
            memory                 |copies, fills and migrations|
            graphs                 |compute or graphs| - |compute|: replays while no recorded kernel computes
            overlapped             |compute| + |communication| - |compute or communication|
            exposed_communication  |compute or graphs or communication| - |compute or graphs|
            idle                   span - busy, which `Idleness` divides by cause

        A replay whose content was not recorded may compute, so communication during a replay does not count as exposed.
        The sets are unions over all streams, so communication counts as overlapped while any stream computes.

        `activity_of` returns what a thread of the host does, by the number of the thread. The causes of idle time are
        None if `activity_of` is None, or if no calls were recorded.
        """
        busy, busy_openers = self._busy()
        union_times = _UnionTimes(self._start, self._end, self._kind, starts, ends)
        compute = union_times.of(COMPUTE)
        communication = union_times.of(COMMUNICATION)
        compute_or_communication = union_times.of(COMPUTE, COMMUNICATION)
        compute_or_graphs = union_times.of(COMPUTE, GRAPH)
        compute_graphs_or_communication = union_times.of(COMPUTE, COMMUNICATION, GRAPH)
        span = ends - starts
        busy_time = Measure(busy).between(starts, ends)
        idle = span - busy_time
        lengths = {
            "span": span,
            "busy": busy_time,
            "compute": compute,
            "communication": communication,
            "memory": union_times.of(MEMORY, MIGRATION),
            "graphs": compute_or_graphs - compute,
            "overlapped": compute + communication - compute_or_communication,
            "exposed_communication": compute_graphs_or_communication - compute_or_graphs,
            "idle": idle,
        }
        functions: dict[str, str] = {}
        if self._launches is not None and activity_of is not None:
            migrates = self._kind.take(busy_openers) == MIGRATION
            openers = self._launches.openers(self._order, busy_openers, migrates)
            idleness = Idleness(busy, openers, activity_of, int(starts.min()), int(ends.max()))
            lengths |= idleness.between(starts, ends, idle)
            functions = idleness.functions()
        nanoseconds: dict[str, list[int] | None] = dict.fromkeys((*SHARES, *CAUSES))
        nanoseconds |= {name: values.tolist() for name, values in lengths.items()}
        return DeviceTimes(nanoseconds, functions)

    def _busy(self) -> tuple[Intervals, Integers]:
        """Return the busy intervals, and for each of them the position of the activity that opens it.

        The positions count in order of time, as `_order` does.
        """
        if not len(self._start):
            return NOTHING, np.empty(0, np.int64)
        return merged(self._start, self._end)


class _UnionTimes:
    """The nanoseconds in which activities of given kinds ran within each window; each union is computed only once."""

    def __init__(self, start: Integers, end: Integers, kind: Integers, starts: Integers, ends: Integers) -> None:
        """Take activities that are ordered by start and all take time, and the windows [start, end)."""
        self._start = start
        self._end = end
        self._kind = kind
        self._window_starts = starts
        self._window_ends = ends
        counts = np.bincount(kind, minlength=_KIND_COUNT)
        self._present = set(np.flatnonzero(counts).tolist())
        self._times: dict[tuple[int, ...], Integers] = {}

    def of(self, *kinds: int) -> Integers:
        """Return the length of the union of all activities of these kinds within each window."""
        # Most captures have no graphs, and many have no communication. Without the kinds that do not occur, several
        # unions are often the same one.
        present = tuple(number for number in kinds if number in self._present)
        if present not in self._times:
            moments = Measure(self._moments(present))
            self._times[present] = moments.between(self._window_starts, self._window_ends)
        return self._times[present]

    def _moments(self, kinds: tuple[int, ...]) -> Intervals:
        if not kinds:
            return NOTHING
        # For so few kinds comparisons are faster than `np.isin`.
        is_chosen = self._kind == kinds[0]
        for other_kind in kinds[1:]:
            is_chosen |= self._kind == other_kind
        chosen = np.flatnonzero(is_chosen)
        moments, _ = merged(self._start.take(chosen), self._end.take(chosen))
        return moments
