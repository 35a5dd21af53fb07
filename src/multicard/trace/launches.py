"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.collect import Events, Place
from multicard.trace.model import Integers

UNKNOWN = np.iinfo(np.int64).max
NO_THREAD = np.iinfo(np.uint16).max


def join_calls(api: Events, sets: Sequence[Events]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Give device events the arrays `call` and `returned`: start and end of their launching calls, or `UNKNOWN`.

    The array `thread` has the position in `calling_threads` of the thread that made the call, or `NO_THREAD`. Where
    graphs were launched, the array `by_graph` has whether the call launched one. Of calls with one correlation the one
    that began first counts: a runtime call comes before the driver call inside.

    Return by trace and process how many launches of kernels have none recorded, and how many there are.
    """
    for own in sets:
        own.arrays |= {name: np.full(len(own.code), UNKNOWN) for name in ("call", "returned")}
        own.arrays["thread"] = np.full(len(own.code), NO_THREAD, np.uint16)
    groups = api.values("process", "api", "name", "thread")
    calls_once = [kind != "backtrace" for _, _, kind, _, _ in groups]
    launches = [kind != "backtrace" and bool(KERNEL_LAUNCH.match(name)) for _, _, kind, name, _ in groups]
    known_threads = calling_threads(api)
    thread_number = np.array(
        [known_threads.index((trace, process, thread)) for trace, process, _, _, thread in groups], np.uint16
    )
    of_graph = np.array([bool(GRAPH_LAUNCH.match(name)) for _, _, _, name, _ in groups], bool)
    if of_graph.any():
        for own in sets:
            own.arrays["by_graph"] = np.zeros(len(own.code), bool)
    correlation, start = api.arrays["correlation"], api.arrays["start"]

    def join(owner: Place) -> tuple[int, int] | None:
        mine = api.at(owner)
        known = np.flatnonzero((correlation[mine] >= 0) & api.mask(calls_once, mine)) + mine.start
        number, calls = _firsts(correlation, start, known)
        on_device = []
        for own, place in ((each, place) for each in sets for place in each.places if place[:2] == owner):
            wanted = own.arrays["correlation"][own.at(place)]
            on_device.append(wanted)
            if not len(number):
                continue
            at = np.minimum(np.searchsorted(number, wanted), len(number) - 1)
            joined = np.flatnonzero(number.take(at) == wanted)
            events, call = joined + own.at(place).start, calls.take(at.take(joined))
            begun, code = start.take(call), api.code.take(call)
            own.arrays["call"][events] = begun
            own.arrays["thread"][events] = thread_number.take(code)
            if of_graph.any():
                own.arrays["by_graph"][events] = of_graph.take(code)
            own.arrays["returned"][events] = begun + api.arrays["duration"].take(call).astype(np.int64)
        launched = correlation[mine].take(np.flatnonzero(api.mask(launches, mine)))
        if not len(launched):
            return None
        return int((~np.isin(launched, np.concatenate(on_device)) | (launched < 0)).sum()), len(launched)

    owners = list(dict.fromkeys(place[:2] for own in sets for place in own.places))
    found = zip(owners, in_parallel(join, owners), strict=True)
    return {owner: counts for owner, counts in found if counts is not None}


def calling_threads(api: Events) -> list[tuple[Any, ...]]:
    """Return trace, process and number of each thread that makes calls."""
    return list(dict.fromkeys(api.values("process", "thread")))


def _firsts(correlation: Integers, start: Integers, calls: Integers) -> tuple[Integers, Integers]:
    """Return the correlations of some calls in order, each once, and the call of each that began first."""
    number = correlation.take(calls)
    if (number[1:] > number[:-1]).all():
        return number, calls
    calls = calls[np.argsort(start[calls], kind="stable")]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    number = correlation[calls]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else calls
    return number[first], calls[first]
