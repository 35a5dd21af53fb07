"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.collect import Events, Place
from multicard.trace.model import Integers

UNKNOWN = np.iinfo(np.int64).max
LAUNCH = re.compile(r"(?:cuda|cu)(?:Launch|GraphLaunch)")
KERNEL_LAUNCH = re.compile(r"(?:cuda|cu)Launch(?:Cooperative)?Kernel")


def join_calls(
    api: Events, sets: Sequence[Events], threads: Collection[tuple[Any, ...]]
) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Give device events the start and end of their launching calls: arrays `call` and `returned`, or `UNKNOWN`.

    The array `by_thread` says whether one of `threads` made the call, each with its trace and process. Of calls with
    one correlation the one that began first counts: a runtime call comes before the driver call inside.

    Gives by trace and process how many launches of kernels have none recorded, and how many there are.
    """
    for own in sets:
        own.arrays |= {name: np.full(len(own.code), UNKNOWN) for name in ("call", "returned")}
        own.arrays["by_thread"] = np.zeros(len(own.code), bool)
    groups = api.values("process", "api", "name", "thread")
    calls_once = [kind != "backtrace" for _, _, kind, _, _ in groups]
    launches = [kind != "backtrace" and bool(KERNEL_LAUNCH.match(name)) for _, _, kind, name, _ in groups]
    by_thread = np.array([(trace, process, thread) in threads for trace, process, _, _, thread in groups], bool)
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
            begun = start.take(call)
            own.arrays["call"][events] = begun
            own.arrays["by_thread"][events] = by_thread.take(api.code.take(call))
            own.arrays["returned"][events] = begun + api.arrays["duration"].take(call).astype(np.int64)
        launched = correlation[mine].take(np.flatnonzero(api.mask(launches, mine)))
        if not len(launched):
            return None
        return int((~np.isin(launched, np.concatenate(on_device)) | (launched < 0)).sum()), len(launched)

    owners = list(dict.fromkeys(place[:2] for own in sets for place in own.places))
    found = zip(owners, in_parallel(join, owners), strict=True)
    return {owner: counts for owner, counts in found if counts is not None}


def _firsts(correlation: Integers, start: Integers, calls: Integers) -> tuple[Integers, Integers]:
    """The correlations of some calls in order, each once, and the call of each that began first."""
    number = correlation.take(calls)
    if (number[1:] > number[:-1]).all():
        return number, calls
    calls = calls[np.argsort(start[calls], kind="stable")]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    number = correlation[calls]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else calls
    return number[first], calls[first]
