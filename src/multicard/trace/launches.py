"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.collect import Events, Location
from multicard.trace.model import Integers

UNKNOWN = np.iinfo(np.int64).max  # instead of a time: the launching call was not recorded
NO_THREAD = np.iinfo(np.uint16).max


def join_calls(api: Events, sets: Sequence[Events]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Add the arrays `call` and `returned` to device events: start and end of their launching calls, or `UNKNOWN`.

    The array `thread` has the position in `calling_threads` of the thread that made the call, or `NO_THREAD`. Where
    graphs were launched, the array `by_graph` is True if the call launched one. Of calls with one correlation the one
    that began first counts: a runtime call comes before the driver call inside.

    Return by trace and process how many launches of kernels have none recorded, and how many launches there are.
    """
    calls = _Calls.of(api)
    for events in sets:
        _add_arrays(events, has_graphs=bool(calls.launches_graph.any()))

    def join(owner: Location) -> tuple[int, int] | None:
        parts = [
            (events, part) for events in sets for location, part in events.locations.items() if location[:2] == owner
        ]
        first_calls = calls.first_of_each_correlation(owner)
        if len(first_calls.correlation):
            for events, part in parts:
                _join_part(calls, first_calls, events, part)
        return calls.without_kernel(owner, [events.arrays["correlation"][part] for events, part in parts])

    owners = list(dict.fromkeys(location[:2] for events in sets for location in events.locations))
    counts = zip(owners, in_parallel(join, owners), strict=True)
    return {owner: count for owner, count in counts if count is not None}


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
    position = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return position, ordered.take(position) == wanted


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
        """Return what the names of calls and their threads mean."""
        names = api.group_field("name")
        is_call = [api_of_call != "backtrace" for api_of_call in api.group_field("api")]
        is_kernel_launch = [KERNEL_LAUNCH.match(name) is not None for name in names]
        threads = {thread: number for number, thread in enumerate(calling_threads(api))}
        return cls(
            events=api,
            is_call=is_call,
            launches_kernel=[call and launch for call, launch in zip(is_call, is_kernel_launch, strict=True)],
            launches_graph=np.array([GRAPH_LAUNCH.match(name) is not None for name in names], bool),
            thread=np.array([threads[thread] for thread in api.group_fields("process", "thread")], np.uint16),
        )

    def first_of_each_correlation(self, owner: Location) -> _FirstCalls:
        """Return the calls of a process that may have launched something."""
        part = self.events.slice_of(owner)
        correlation = self.events.arrays["correlation"]
        can_launch = (correlation[part] >= 0) & self.events.mask(self.is_call, part)
        calls = np.flatnonzero(can_launch) + part.start
        number = correlation.take(calls)
        # Profilers mostly write calls in the order of their correlations, each once: then there is nothing to sort.
        if (number[1:] > number[:-1]).all():
            return _FirstCalls(number, calls)
        calls = self.events.in_time_order(calls)
        calls = calls.take(np.argsort(correlation.take(calls), kind="stable"))
        number = correlation.take(calls)
        first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
        return _FirstCalls(number.take(first), calls.take(first))

    def without_kernel(self, owner: Location, on_device: list[Integers]) -> tuple[int, int] | None:
        """Return how many launches of kernels of a process have none among these correlations, and how many there are.

        None if the process launched no kernels.
        """
        part = self.events.slice_of(owner)
        launches = np.flatnonzero(self.events.mask(self.launches_kernel, part))
        if not len(launches):
            return None
        correlation = self.events.arrays["correlation"][part].take(launches)
        is_lacking = ~np.isin(correlation, np.concatenate(on_device)) | (correlation < 0)
        return int(is_lacking.sum()), len(launches)


def _join_part(calls: _Calls, first_calls: _FirstCalls, events: Events, part: slice) -> None:
    """Write the launching calls of a part of some device events, which is of one process, into their arrays."""
    position, is_joined = first_position(first_calls.correlation, events.arrays["correlation"][part])
    joined = np.flatnonzero(is_joined)
    launching_call = first_calls.call.take(position.take(joined))
    launching_code = calls.events.code.take(launching_call)
    chosen = joined + part.start
    events.arrays["call"][chosen] = calls.events.arrays["start"].take(launching_call)
    events.arrays["returned"][chosen] = calls.events.ends(launching_call)
    events.arrays["thread"][chosen] = calls.thread.take(launching_code)
    if "by_graph" in events.arrays:
        events.arrays["by_graph"][chosen] = calls.launches_graph.take(launching_code)
