"""Whether the clocks of a GPU and its host agree in a capture: what they show must not break causality."""

from typing import NamedTuple

import numpy as np

from multicard.core.units import SECONDS, with_unit
from multicard.trace.collect import Events
from multicard.trace.model import Integers

TOLERANCE_NS = 1_000_000  # profilers align the clocks within microseconds
FEW = 0.01  # part of the launches that may be joined to a wrong call


class Difference(NamedTuple):
    """By how much the clock of a GPU is ahead of its host's, in nanoseconds: at least and at most.

    The clocks drift apart, or more than clocks is wrong, where the least exceeds the most.
    """

    least: int
    most: int

    @property
    def can_be_corrected(self) -> bool:
        """Whether one difference explains all of the capture."""
        return self.least <= self.most

    @property
    def ns(self) -> int:
        """The difference: the middle of what is possible."""
        return (self.least + self.most) // 2

    def __str__(self) -> str:
        if self.can_be_corrected:
            return f"GPU and host clocks differ by {with_unit(abs(self.ns) / 1e9, SECONDS)}"
        ends = " to ".join(with_unit(value / 1e9, SECONDS) for value in (self.most, self.least))
        return f"GPU and host clocks do not agree, and differ by a changing amount: {ends}"


def difference(latency: Integers, late: Integers) -> Difference | None:
    """Difference of the clocks of a GPU and its host; None where they agree as far as can be told.

    Parameters
    ----------
    latency
        Time from each launching call's start to what it launched, which cannot be negative.
    late
        Time from the end of each call that waits for a copy to the end of that copy, which cannot be positive.
    """
    if not len(latency):
        return None
    ahead = len(late) and np.median(late) > TOLERANCE_NS
    behind = np.quantile(latency, FEW) < -TOLERANCE_NS
    if not (ahead or behind):
        return None
    most = int(latency.min())
    return Difference(int(late.max()) if len(late) else most, most)


class WaitingCalls:
    """When the host is known to have waited for copies to its memory.

    The call that copies to pageable memory waits itself (CUDA Runtime API, "API synchronization behavior"). For any
    other copy, a cudaStreamSynchronize waits that its thread calls next, as PyTorch's `.item()` does.
    """

    def __init__(self, api: Events) -> None:
        """`api` carries process, name, thread, start and duration."""
        values = api.values("process", "name", "thread")
        owners = {owner: number for number, owner in enumerate(dict.fromkeys((t, p, th) for t, p, _, th in values))}
        start = api.arrays["start"].astype(np.int64)
        numbers = np.array([owners[t, p, th] for t, p, _, th in values])
        thread = numbers.astype(np.min_scalar_type(len(owners)))[api.code]  # narrow ones are sorted in half the time
        order = np.lexsort((start, thread))
        waits = api.mask("StreamSynchronize" in name for _, _, name, _ in values)
        followed = (thread[order][1:] == thread[order][:-1]) & waits[order][1:]
        at, after = order[:-1][followed], order[1:][followed]
        by_start = np.argsort(start[at])
        self._starts = start[at][by_start]
        self._ends = (start + api.arrays["duration"])[after][by_start]

    def ends(self, call: Integers) -> tuple[Integers, Integers]:
        """Of the calls that began at these moments: which of them are followed by a wait, and when these waits end."""
        at = np.minimum(np.searchsorted(self._starts, call), max(0, len(self._starts) - 1))
        found = self._starts[at] == call if len(self._starts) else np.zeros(len(call), bool)
        return found, self._ends[at[found]]
