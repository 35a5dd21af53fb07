"""Periods of the steps of a capture, from the start of each to the start of the next, and what their medians tell."""

import numpy as np

from multicard.analysis.statistics import LEVEL, Interval
from multicard.trace.steps import DEVICE, STEP
from multicard.trace.tables import ActivityTables

FAR = 5  # median absolute deviations from the median
MOST_BLOCKS, LEAST_STEPS = 8, 3  # blocks of a capture, and steps of each
OUTLYING = 0.1  # part of the median by which an outlying step differs from it at least


def step_periods(found: ActivityTables) -> np.ndarray:
    """Seconds from the start of each step to the start of the next, in order; empty without two steps of one process.

    By each device that tells its own steps, else by each process; the mean over them.
    """
    starts: dict[tuple[object, ...], list[float]] = {}
    for row in found.rows.get("timeline", []):
        if row["scope"] == STEP and row["extent"] == DEVICE:
            starts.setdefault((row["report"], row["process"], row["device"]), []).append(row["start_s"])
    if max(map(len, starts.values()), default=0) < 2:
        starts = {}
        for row in found.rows.get("phases", []):
            if row["phase"] == STEP:
                starts.setdefault((row["report"], row["process"]), []).append(row["start_s"])
    periods = [np.diff(own) for own in starts.values() if len(own) > 1]
    shortest = min(map(len, periods), default=0)
    return np.mean([own[:shortest] for own in periods], axis=0) if shortest else np.empty(0)


def outlying(periods: np.ndarray) -> list[int]:
    """Numbers, from 1, of the steps whose period stands out from the others."""
    away = np.abs(periods - np.median(periods))
    far = max(FAR * np.median(away), OUTLYING * np.median(periods))
    return [int(at) + 1 for at in np.flatnonzero(away > far)]


def ratio_of_medians(periods: np.ndarray, base: np.ndarray) -> Interval:
    """Median period over that of `base`, with its interval, which is unknown for few steps.

    The interval is by sectioning: logarithms of the medians of consecutive blocks, which keep what neighbours have in
    common, vary about that of all steps (Asmussen and Glynn, Stochastic Simulation, 2007, III.5; Welch's degrees of
    freedom). It covers what varies within the two captures, not from one run to another.
    """
    value = float(np.median(periods) / np.median(base))
    errors = [_squared_error(own) for own in (periods, base)]
    if None in errors:
        return Interval(value, None, None, 1)
    squares = [square for square, _ in errors]
    total = sum(squares)
    freedom = total**2 / sum(square**2 / degrees for square, degrees in errors) if total else 1.0
    from scipy.special import stdtrit  # as long to import as a small trace to read

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * total**0.5
    return Interval(value, value * float(np.exp(-half)), value * float(np.exp(half)), 1, LEVEL)


def _squared_error(periods: np.ndarray) -> tuple[float, int] | None:
    """Squared standard error of the logarithm of a median, and its degrees of freedom; None for too few steps."""
    count = min(MOST_BLOCKS, len(periods) // LEAST_STEPS)
    if count < 2 or periods.min() <= 0:
        return None
    medians = np.log([np.median(block) for block in np.array_split(periods, count)])
    return float(((medians - np.log(np.median(periods))) ** 2).sum() / (count - 1) / count), count - 1
