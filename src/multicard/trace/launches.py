"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.events import Events, Location, Owner
from multicard.trace.model import Integers

# Stands for a time if the launching call was not recorded.
UNKNOWN = np.iinfo(np.int64).max
# Stands for the number of a thread if the launching call was not recorded.
NO_THREAD = np.iinfo(np.uint16).max


class LaunchCounts(NamedTuple):
    """How many calls of a process launched kernels, and how many of these kernels were not recorded."""

    without_kernel: int
    launches: int


def join_calls(api: Events, device_events: Sequence[Events]) -> dict[Owner, LaunchCounts]:
    """Add to device events the arrays `call` and `returned`: start and end of their launching calls, or `UNKNOWN`.

    The array `thread` has the position in `calling_threads` of the thread that made the call, or `NO_THREAD`. If graphs
    were launched, the array `by_graph` is True for what a graph launched. Of calls with one correlation the one that
    began first counts: a runtime call comes before the driver call inside.

    Return the counts of the processes that launched kernels.
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
    """Add the arrays of device events whose launching calls are not yet known."""
    count = len(events.code)
    events.arrays["call"] = np.full(count, UNKNOWN)
    events.arrays["returned"] = np.full(count, UNKNOWN)
    events.arrays["thread"] = np.full(count, NO_THREAD, np.uint16)
    if has_graphs:
        events.arrays["by_graph"] = np.zeros(count, bool)


def calling_threads(api: Events) -> list[tuple[Any, ...]]:
    """Return trace, process and number of each thread that makes calls."""
    return list(dict.fromkeys(api.group_fields("process", "thread")))


def first_position(ordered: Integers, wanted: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return the first position of each wanted value in an ordered array, and whether it is there at all.

    The array has at least one value. The position of a value that it lacks is arbitrary.

    >>> position, is_present = first_position(np.array([3, 5, 5]), np.array([5, 4]))
    >>> position.tolist(), is_present.tolist()
    ([1, 1], [True, False])
    """
    position = np.searchsorted(ordered, wanted)
    # A value above all others would have the position behind the last one.
    position = np.minimum(position, len(ordered) - 1)
    is_present = ordered.take(position) == wanted
    return position, is_present


class _FirstCalls(NamedTuple):
    """The correlations of the calls of a process in order, each once, and the position of its call that began first."""

    correlation: Integers
    call: Integers


@dataclass(frozen=True)
class _Calls:
    """The calls of all processes, and for each of their groups: made by whom, and what it launches.

    `is_call` is False for groups of rows that repeat a call with its backtrace. `thread` is the position in
    `calling_threads`.
    """

    events: Events
    is_call: list[bool]
    launches_kernel: list[bool]
    launches_graph: npt.NDArray[np.bool_]
    thread: Integers

    @classmethod
    def of(cls, api: Events) -> "_Calls":
        """Return the calls, with what their names and threads mean."""
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
        """Return the calls of a process that may have launched something.

        A call without a correlation launched nothing. Of two calls with one correlation, such as 7, the one that began
        first launched; it is at position 1:

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
        # Profilers mostly write calls in the order of their correlations, each once: then there is nothing to sort.
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
        """Return how many calls of a process launched kernels, and how many of them have none among the correlations.

        `on_device`: correlations of what ran on its devices. None if the process launched no kernels.
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
    """Write the launching calls of the device events of one location into their arrays."""
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
