"""Find the API call that launched each device event: the call of the same process with the same correlation number.

Two processes may use the same correlation number, so the number alone does not identify a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.events import Events, Location, Owner
from multicard.trace.model import Integers

# Stands in for the start and the end of a launching call that was not recorded.
UNKNOWN = np.iinfo(np.int64).max
# Stands in for the number of the thread that made a launching call, if the call was not recorded.
NO_THREAD = np.iinfo(np.uint16).max


class LaunchCounts(NamedTuple):
    """How many calls of a process launch kernels, and for how many of these calls no device event was recorded."""

    without_kernel: int
    launches: int


def join_calls(api: Events, device_events: Sequence[Events]) -> dict[Owner, LaunchCounts]:
    """Add arrays to device events that describe the call that launched each event.

    `call` and `returned` are the start and the end of the call in nanoseconds, `UNKNOWN` if the call was not recorded.
    `thread` is the position in `calling_threads` of the thread that made the call, or `NO_THREAD`. `by_graph` is True
    for events that the launch of a graph started; this array is added only if `api` holds launches of graphs.

    If several calls of a process have the same correlation, the one that began first is the launching call, because a
    call of the runtime begins before the call of the driver inside it.

    Return the counts of each process that has device events and made calls that launch kernels.
    """
    calls = _Calls.of(api)
    for events in device_events:
        _add_arrays(events, has_graphs=bool(calls.launches_graph.any()))

    def join(owner: Owner) -> LaunchCounts | None:
        """Join the device events of one process."""
        first_calls = calls.first_of_each_correlation(owner)
        correlations: list[Integers] = []
        for events in device_events:
            for location in events.locations_of(owner):
                correlations.append(events.array_at("correlation", location))
                if len(first_calls.correlation):
                    _join_location(calls, first_calls, events, location)
        return calls.launch_counts(owner, correlations)

    owners = list(dict.fromkeys(location[:2] for events in device_events for location in events.locations))
    counts_of_owner: dict[Owner, LaunchCounts] = {}
    for owner, counts in zip(owners, in_parallel(join, owners), strict=True):
        if counts is not None:
            counts_of_owner[owner] = counts
    return counts_of_owner


def _add_arrays(events: Events, *, has_graphs: bool) -> None:
    """Add the arrays that `join_calls` fills, with the values for events whose launching call is not known."""
    count = len(events.code)
    events.arrays["call"] = np.full(count, UNKNOWN)
    events.arrays["returned"] = np.full(count, UNKNOWN)
    events.arrays["thread"] = np.full(count, NO_THREAD, np.uint16)
    if has_graphs:
        events.arrays["by_graph"] = np.zeros(count, bool)


def calling_threads(api: Events) -> list[tuple[Any, ...]]:
    """Return each thread that made calls, once, as (number of the trace, process id, thread id).

    The thread id is None where it was not recorded.
    """
    return list(dict.fromkeys(api.group_fields("process", "thread")))


def first_position(ordered: Integers, wanted: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return the first position of each wanted value in an ordered array, and True for each value that is in the array.

    The array must have at least one value. If it lacks a wanted value, the position for that value is arbitrary, but it
    lies within the array.

    >>> position, is_present = first_position(np.array([3, 5, 5]), np.array([5, 4]))
    >>> position.tolist(), is_present.tolist()
    ([1, 1], [True, False])
    """
    position = np.searchsorted(ordered, wanted)
    # For a wanted value above all others `searchsorted` returns the position behind the last value.
    position = np.minimum(position, len(ordered) - 1)
    is_present = ordered.take(position) == wanted
    return position, is_present


class _FirstCalls(NamedTuple):
    """For each correlation of the calls of a process, the call that began first: two arrays of one length.

    `correlation` holds each correlation once, in rising order. `call` holds the position of the call among all calls.
    """

    correlation: Integers
    call: Integers


@dataclass(frozen=True)
class _Calls:
    """The calls of all processes, and properties of each group of calls, by the code of the group.

    `is_call` is False for groups of rows that repeat a call with its backtrace. `launches_kernel` and `launches_graph`
    are True if calls of the group launch a kernel, or a graph. `thread` is the position in `calling_threads` of the
    thread that made the calls.
    """

    events: Events
    is_call: list[bool]
    launches_kernel: list[bool]
    launches_graph: npt.NDArray[np.bool_]
    thread: Integers

    @classmethod
    def of(cls, api: Events) -> "_Calls":
        """Return the calls, with the properties of their groups, which follow from names and threads."""
        is_call: list[bool] = []
        launches_kernel: list[bool] = []
        launches_graph: list[bool] = []
        for _, api_of_call, name in api.group_fields("api", "name"):
            is_call.append(api_of_call != "backtrace")
            launches_kernel.append(is_call[-1] and KERNEL_LAUNCH.match(name) is not None)
            launches_graph.append(GRAPH_LAUNCH.match(name) is not None)
        number_of_thread = {thread: number for number, thread in enumerate(calling_threads(api))}
        thread_numbers = [number_of_thread[thread] for thread in api.group_fields("process", "thread")]
        return cls(
            events=api,
            is_call=is_call,
            launches_kernel=launches_kernel,
            launches_graph=np.array(launches_graph, bool),
            thread=np.array(thread_numbers, np.uint16),
        )

    def first_of_each_correlation(self, owner: Owner) -> _FirstCalls:
        """Return the first call of a process for each correlation.

        Left out are calls without a correlation, because they launched nothing, and rows that repeat a call with its
        backtrace. In the example the calls at the positions 0 and 1 both have the correlation 7. The call at position 1
        began first, so it is the launching call:

        >>> api = Events(
        ...     fields=("process", "api", "name", "thread"),
        ...     groups=[(0, 4242, "runtime", "cudaLaunchKernel", 1)],
        ...     code=np.array([0, 0, 0, 0]),
        ...     arrays={"start": np.array([30, 10, 20, 40]), "correlation": np.array([7, 7, -1, 6])},
        ...     locations={(0, 4242): slice(0, 4)},
        ... )
        >>> first_calls = _Calls.of(api).first_of_each_correlation((0, 4242))
        >>> first_calls.correlation.tolist(), first_calls.call.tolist()
        ([6, 7], [3, 1])
        """
        part = self.events.slice_of(owner)
        correlation = self.events.arrays["correlation"]
        can_launch = (correlation[part] >= 0) & self.events.mask(self.is_call, part)
        calls = np.flatnonzero(can_launch) + part.start
        ordered = correlation.take(calls)
        # Profilers mostly write calls in the order of their correlations, and each correlation once. Such calls need no
        # sorting.
        if (ordered[1:] > ordered[:-1]).all():
            return _FirstCalls(ordered, calls)

        # A stable sort keeps calls with one correlation in the order of their starts.
        calls = self.events.in_time_order(calls)
        order = np.argsort(correlation.take(calls), kind="stable")
        calls = calls.take(order)
        ordered = correlation.take(calls)
        differs_from_last = np.append(True, ordered[1:] != ordered[:-1])
        firsts = np.flatnonzero(differs_from_last)
        return _FirstCalls(ordered.take(firsts), calls.take(firsts))

    def launch_counts(self, owner: Owner, on_device: list[Integers]) -> LaunchCounts | None:
        """Return how many calls of a process launch kernels, and how many of these calls have no device event.

        `on_device`: the correlations of all device events of the process, an array for each location. A call without a
        correlation counts as one without a device event. Return None if no call of the process launches kernels.
        """
        is_launch = self.events.mask(self.launches_kernel, self.events.slice_of(owner))
        launches = np.flatnonzero(is_launch)
        if not len(launches):
            return None
        correlation = self.events.array_at("correlation", owner).take(launches)
        is_on_device = np.isin(correlation, np.concatenate(on_device))
        has_kernel = is_on_device & (correlation >= 0)
        return LaunchCounts(without_kernel=int((~has_kernel).sum()), launches=len(launches))


def _join_location(calls: _Calls, first_calls: _FirstCalls, events: Events, location: Location) -> None:
    """Write the launching calls of the device events at one location into the arrays of these events."""
    position, is_joined = first_position(first_calls.correlation, events.array_at("correlation", location))
    joined = np.flatnonzero(is_joined)
    launching_call = first_calls.call.take(position.take(joined))
    launching_code = calls.events.codes(launching_call)

    # Slices are views, so writing to them changes the arrays of `events`.
    events.array_at("call", location)[joined] = calls.events.arrays["start"].take(launching_call)
    events.array_at("returned", location)[joined] = calls.events.ends(launching_call)
    events.array_at("thread", location)[joined] = calls.thread.take(launching_code)
    if "by_graph" in events.arrays:
        events.array_at("by_graph", location)[joined] = calls.launches_graph.take(launching_code)
