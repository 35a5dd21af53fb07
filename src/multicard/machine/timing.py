"""How long a call takes, measured by PyTorch's own timer, which waits for the GPU."""

from collections.abc import Callable
from typing import Any

from torch.utils.benchmark import Timer

BLOCKS = 7  # that a job of its own times: the median of as many has an exact interval
FEWEST = 4  # blocks of calls
SPREAD = 0.05  # interquartile range over median, below which they agree
LONGEST = 4  # times as long as asked for, after which a call that stays unsteady is left
TRIED = 3


def repeats_s(call: Callable[[], Any], seconds: float, threads: int = 1) -> list[float]:
    """Seconds of a call: the mean of a block of calls, for each of `FEWEST` blocks or more.

    As many as take `seconds`; more until they agree (`SPREAD`), up to `LONGEST` times as long: torch.utils.benchmark's
    `adaptive_autorange`. Calls before them, from which it finds the length of a block, are dropped.
    """
    timer = _timer(call, threads)
    found = timer.adaptive_autorange(SPREAD, min_run_time=seconds, max_run_time=LONGEST * seconds)
    times = found.times
    while len(times) < FEWEST:  # of a call that takes longer than was asked for
        times += timer.timeit(found.number_per_run).times
    return times


def least_s(call: Callable[[], Any], threads: int = 1) -> float:
    """Seconds of the fastest of a few calls: a rough time that hardly depends on what else runs."""
    timer = _timer(call, threads)
    return min(timer.timeit(1).median for _ in range(TRIED))


def _timer(call: Callable[[], Any], threads: int) -> Timer:
    return Timer("call()", globals={"call": call}, num_threads=threads)
