"""How long a device did what between any two moments: lengths of unions of intervals, never sums over streams."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multicard.trace.idle import CAUSES, ActivityOfThread, Idleness, Openers
from multicard.trace.intervals import NOTHING, Intervals, Measure, merged
from multicard.trace.model import Integers

# Kinds of activity on a device. MIGRATION is that of pages of managed memory, GRAPH a replay of unknown content.
COMPUTE, COMMUNICATION, MEMORY, GRAPH, MIGRATION = range(5)
_KIND_COUNT = 5

SHARES = (
    "span", "busy", "compute", "communication", "memory", "graphs", "overlapped", "exposed_communication", "idle",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceTimes:
    """What a device did within some windows, made by `Device.between`.

    `nanoseconds`: for each of `SHARES` and `CAUSES` one number for each window; None for the causes if no calls were
    recorded. `functions`: the host's function by cause, as `Idleness.functions` returns it for all windows together.
    """

    nanoseconds: dict[str, list[int] | None]
    functions: dict[str, str]


class Launches:
    """The launching call of each activity of a device: when it began and returned, by which thread.

    `call` and `returned` are nanoseconds, `UNKNOWN` where the call was not recorded; `thread` is the number of a thread
    among `calling_threads`. `by_graph` is True where the call replayed a CUDA graph, and so launched several
    activities; None if no call did.
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

        `order`: the activities in order of time. `first_positions`: positions in `order` of those that open an
        interval. `migrates`: True for those of them that are migrations.
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
        """Return for each activity in order of time whether it is part of a replay, and not the first one.

        The activities of one replay of a graph are those whose call began in the same nanosecond.
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
        """Take the activities in any order, with start and end in nanoseconds, and the calls that launched them.

        `launches` is None if no calls were recorded.
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
            # If activities begin together, the one that was launched first opens the interval.
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
        """Return how long the device did what within each window [start, end).

        With |…| the length of a set of moments within the window, these are:

            span                   the window
            busy                   |any activity|
            compute                |compute|, kernels that do not communicate
            communication          |communication|, kernels that do
            memory                 |copies, fills and migrations|
            graphs                 |compute or graphs| - |compute|: replays while no recorded kernel computes
            overlapped             |compute| + |communication| - |compute or communication|
            exposed_communication  |compute or graphs or communication| - |compute or graphs|
            idle                   span - busy, which `Idleness` divides by cause

        A replay of unknown content may compute, so communication is not called exposed meanwhile. The sets are unions
        over streams, so communication is overlapped with all streams that compute.

        `activity_of` returns what a thread of the host does, by its number; without it, and without recorded calls, the
        causes are None.
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
        """Return the moments of any activity, and for each interval the position of the activity that opens it."""
        if not len(self._start):
            return NOTHING, np.empty(0, np.int64)
        return merged(self._start, self._end)


class _UnionTimes:
    """Nanoseconds in which activity of some kinds ran within each of some windows, each union computed once."""

    def __init__(self, start: Integers, end: Integers, kind: Integers, starts: Integers, ends: Integers) -> None:
        """Take activities that are ordered by start and not empty, and the windows [start, end)."""
        self._start = start
        self._end = end
        self._kind = kind
        self._window_starts = starts
        self._window_ends = ends
        counts = np.bincount(kind, minlength=_KIND_COUNT)
        self._present = set(np.flatnonzero(counts).tolist())
        self._times: dict[tuple[int, ...], Integers] = {}

    def of(self, *kinds: int) -> Integers:
        """Return the length of the union of the activity of these kinds within each window."""
        # Most captures have no graphs, and many no communication, so several unions are often the same one.
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
