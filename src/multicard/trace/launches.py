"""The calls that launched what ran on a device: joined on process and correlation, which alone is not unique."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from multicard.trace.collect import Events
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

    Returns
    -------
    By trace and process: how many launches of kernels have none recorded, and how many there are.
    """
    for own in sets:
        own.arrays |= {name: np.full(len(own.code), UNKNOWN) for name in ("call", "returned")}
        own.arrays["by_thread"] = np.zeros(len(own.code), bool)
    groups = api.values("process", "api", "name", "thread")
    launches = api.mask(kind != "backtrace" and bool(KERNEL_LAUNCH.match(name)) for _, _, kind, name, _ in groups)
    by_thread = np.array([(trace, process, thread) in threads for trace, process, _, _, thread in groups], bool)
    correlation, start = api.arrays["correlation"], api.arrays["start"]
    lacking = {}
    for owner in dict.fromkeys(owner for own in sets for owner in own.values("process")):
        mine = api.mask((trace, process) == owner and kind != "backtrace" for trace, process, kind, *_ in groups)
        number, calls = _firsts(correlation, start, np.flatnonzero(mine & (correlation >= 0)))
        on_device = []
        for own in sets:
            events = np.flatnonzero(own.mask(of == owner for of in own.values("process")))
            wanted = own.arrays["correlation"][events]
            on_device.append(wanted)
            if not len(number):
                continue
            at = np.minimum(np.searchsorted(number, wanted), len(number) - 1)
            joined = number[at] == wanted
            events, call = events[joined], calls[at[joined]]
            own.arrays["call"][events] = start[call]
            own.arrays["by_thread"][events] = by_thread[api.code[call]]
            own.arrays["returned"][events] = start[call] + api.arrays["duration"][call].astype(np.int64)
        launched = correlation[launches & mine]
        if len(launched):
            lacking[owner] = int((~np.isin(launched, np.concatenate(on_device)) | (launched < 0)).sum()), len(launched)
    return lacking


def _firsts(correlation: Integers, start: Integers, calls: Integers) -> tuple[Integers, Integers]:
    """The correlations of some calls in order, each once, and the call of each that began first."""
    calls = calls[np.argsort(start[calls], kind="stable")]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    number = correlation[calls]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else calls
    return number[first], calls[first]
