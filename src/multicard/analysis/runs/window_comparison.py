"""Whether the profiled window shows the job that was measured, or one that waits less or more for its loader."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import stdtrit

from multicard.analysis.runs.windows import Window

TOLERANCE = 0.05  # of a data share, and of the iteration time
LEVEL = 0.01  # rate at which each of the two tests tells equal windows apart by chance, about


def expected_data_shares(data_s: float, rest_s: float, profiled_rest_s: float) -> tuple[float, float]:
    """Data shares, the lower first, that a longer step explains without any change of the loader.

    A profiler lengthens what a step does besides waiting for data. A loader that works meanwhile is waited for as much
    less, so that steps start at the same pace: (T − p) / T, where T = d + r is the measured step, d its wait for data
    and p the rest of the profiled step; nothing where p is longer than T. One that does not, since it has no
    processes of its own, is waited for as before: d / (d + p).

    >>> expected_data_shares(0.5, 0.5, 0.75), expected_data_shares(0.25, 0.75, 0.75)
    ((0.25, 0.4), (0.25, 0.25))
    """
    step_s = data_s + rest_s
    same_pace = max(0.0, step_s - profiled_rest_s) / max(step_s, profiled_rest_s)
    same_wait = data_s / (data_s + profiled_rest_s) if data_s else 0.0
    return min(same_pace, same_wait), max(same_pace, same_wait)


def block_length(record: Mapping[str, Any]) -> int:
    """Consecutive steps that share one burst of the loader: the batches that it reads ahead, by run.json; at least 1.

    Twice as many are dropped before the profiled steps.
    """
    return max(1, (record.get("profiled_window") or {}).get("settling_steps", 0) // 2)


def windows_differ(measured: Window, profiled: Window, block: int = 1) -> bool | None:
    """Whether the profiled window is unlike the measured one by more than the profiler's overhead and chance explain.

    It is where its data share lies outside of `expected_data_shares` by more than `TOLERANCE` and than chance explains
    (a t-test at `LEVEL` with the error of a delete-one-block jackknife of both windows: H. R. Künsch, "The jackknife
    and the bootstrap for general stationary observations", Annals of Statistics 17(3), 1989; with the degrees of
    freedom of the window that has fewer blocks). It also is where its iteration time is shorter by more than
    `TOLERANCE` and than chance explains (Welch's statistic of the blocks' paces on the slowest rank, at `LEVEL` with
    the same degrees of freedom), since no profiler makes a step shorter. None where a window has fewer than two blocks,
    which tell no error.

    Parameters
    ----------
    block
        Consecutive steps that depend on each other, as `block_length`: a loader that delivers in bursts is waited for
        once in so many steps.
    """
    windows = measured, profiled
    freedom = min(window.count for window in windows) // block - 1
    if freedom < 1:
        return None
    phases = [_phases(window) for window in windows]
    means = [each.mean(axis=0) for each in phases]
    excess = _excess(*means)
    if abs(excess) > TOLERANCE:
        blocks = [_block_means(each, block) for each in phases]
        without = [(each.sum(axis=0) - each) / (len(each) - 1) for each in blocks]
        replicates = [_excess(each, means[1]) for each in without[0]], [_excess(means[0], each) for each in without[1]]
        error = np.sqrt(sum((len(values) - 1) * np.var(values) for values in replicates))
        if abs(excess) > stdtrit(freedom, 1 - LEVEL / 2) * error:
            return True
    if profiled.iteration_time_s >= (1 - TOLERANCE) * measured.iteration_time_s:
        return False
    paces = [_block_means(window.pace_s, block) for window in windows]
    error = np.sqrt(sum(values.var(ddof=1) / len(values) for values in paces))
    return bool(paces[1].mean() - paces[0].mean() < stdtrit(freedom, LEVEL) * error)


def _phases(window: Window) -> np.ndarray:
    """Of each step, in order, the means over ranks of the wait for data and of the rest, in seconds: two columns."""
    found = window.steps[["step", "data_s", "duration_s"]].fillna({"data_s": 0.0}).groupby("step").mean()
    return np.column_stack([found["data_s"], found["duration_s"] - found["data_s"]])


def _block_means(steps: np.ndarray, length: int) -> np.ndarray:
    """Means of blocks of so many consecutive steps, some longer where the length does not divide their number."""
    return np.array([block.mean(axis=0) for block in np.array_split(steps, len(steps) // length)])


def _excess(measured: np.ndarray, profiled: np.ndarray) -> float:
    """By how much the data share is above, or if negative below, the expected ones; of the two columns' means."""
    low, high = expected_data_shares(*measured, profiled[1])
    share = profiled[0] / profiled.sum()
    return share - min(max(share, low), high)
