"""Whether the profiled window shows the job that was measured, or one that waits less or more for its loader."""

from scipy.stats import ttest_ind

from multicard.analysis.windows import Window

TOLERANCE = 0.05  # of a data share, and of the iteration time
LEVEL = 0.01  # rate at which equal windows are told apart by their step times, at most


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


def windows_differ(measured: Window, profiled: Window) -> bool:
    """Whether the profiled window is unlike the measured one by more than the profiler's overhead explains.

    It is where its data share lies outside of `expected_data_shares` by more than `TOLERANCE`, or its iteration time
    is shorter by more than `TOLERANCE` and than chance explains (Welch's t-test of the steps on the slowest rank, at
    `LEVEL`), since no profiler makes a step shorter.
    """
    step_s, profiled_s = measured.mean_iteration_time_s, profiled.mean_iteration_time_s
    data_s, profiled_data_s = measured.data_share * step_s, profiled.data_share * profiled_s
    low, high = expected_data_shares(data_s, step_s - data_s, profiled_s - profiled_data_s)
    if profiled.data_share < low - TOLERANCE or profiled.data_share > high + TOLERANCE:
        return True
    if profiled.count == 1 or profiled.iteration_time_s >= (1 - TOLERANCE) * measured.iteration_time_s:
        return False
    found = ttest_ind(profiled.pace_s, measured.pace_s, equal_var=False, alternative="less")
    return bool(found.pvalue < LEVEL)
