"""The time that a step of a capture takes, from its start to the start of the next step, averaged over the steps.

It is a mean because the median may be far from the cost of a step to the job. A loader delivers in bursts: if steps
take 8, 8 and 232 ms by turns, the job takes 82.7 ms for each of them, and the median is 8 ms.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from multicard.core.grouping import grouped
from multicard.core.values import Row
from multicard.stats.interval import LEVEL, Interval
from multicard.stats.outliers import far_above
from multicard.trace.tables import STEP, STEPS, ActivityTables

# Columns of the table `timeline` that identify a device of a capture.
DEVICE = ["report", "process", "device"]

# With fewer periods than this there is no interval, because the correlation of neighbouring periods is not known. If it
# is 0.9, intervals from 8 periods contain the true value in 91% of cases, and intervals from 12 periods or more in at
# least 93%.
FEWEST_PERIODS = 12

# If more than this share of the periods is long, none counts as an exception: the job has such steps throughout.
MOST_LONG_STEPS = 0.1

# Highest correlation of neighbouring periods that is assumed. No capture is long enough to show a higher one.
HIGHEST_CORRELATION = 0.97


@dataclass(frozen=True)
class StepTime:
    """The time that a step of a capture takes, in seconds. Made by `step_time`.

    A period is the time from the start of a step to the start of the next, averaged over devices. If a device has only
    one step, there are no periods. Mean, median and quartiles are then the length of the first step, averaged over
    devices.
    """

    # For each device: the time from the start of the first step to the start of the last, divided by the number of
    # steps minus 1. Then averaged over devices.
    mean_s: float
    # Number of steps of the device that has fewest.
    count: int
    # Median and lower and upper quartile of the periods.
    median_s: float
    quartiles_s: tuple[float, float]
    # The periods in the order of the steps: `count` minus 1.
    periods_s: tuple[float, ...]

    @property
    def is_skewed(self) -> bool:
        """True if the median differs from the mean by more than 10% of the mean, so that either alone misleads."""
        return abs(self.median_s - self.mean_s) > 0.1 * self.mean_s


class _Steps(NamedTuple):
    """The steps of one device or process, ordered by start: the start and the length of each, in seconds."""

    starts_s: np.ndarray
    lengths_s: np.ndarray

    @property
    def mean_period_s(self) -> float:
        """Mean time from the start of a step to the start of the next, for two or more steps."""
        elapsed_s = self.starts_s[-1] - self.starts_s[0]
        period_count = len(self.starts_s) - 1
        return elapsed_s / period_count


def step_time(capture: ActivityTables) -> StepTime | None:
    """Return the time that a step takes in a capture; None if its tables show no step.

    The steps are those of the devices, from the table `timeline`. If it has no steps, they are those of the processes,
    from the table `phases`.
    """
    on_devices = [row for row in capture.rows.get("timeline", []) if row["scope"] == STEP]
    on_hosts = [row for row in capture.rows.get("phases", []) if row["phase"] == STEP]
    if on_devices:
        devices = _steps_by(("report", "process", "device"), "span_s", on_devices)
    else:
        devices = _steps_by(("report", "process"), "duration_s", on_hosts)
    if not devices:
        return None
    count = min(len(steps.starts_s) for steps in devices)
    if count == 1:
        first_lengths_s = [steps.lengths_s[0] for steps in devices]
        length_s = float(np.mean(first_lengths_s))
        return StepTime(length_s, 1, length_s, (length_s, length_s), ())
    mean_s = float(np.mean([steps.mean_period_s for steps in devices]))
    # The captures of some ranks may end a step later than those of others. Only the first `count` steps are on all
    # devices.
    periods_of_devices_s = [np.diff(steps.starts_s[:count]) for steps in devices]
    periods_s = np.mean(periods_of_devices_s, axis=0)
    lower_s, median_s, upper_s = np.quantile(periods_s, [0.25, 0.5, 0.75]).tolist()
    quartiles_s = (lower_s, upper_s)
    return StepTime(mean_s, count, median_s, quartiles_s, tuple(periods_s.tolist()))


def _steps_by(keys: Sequence[str], length: str, rows: Iterable[Mapping[str, Any]]) -> list[_Steps]:
    """Return the steps of each device or process.

    `keys`: the columns that identify a device or process; `length`: the column with the length of a step.
    """
    groups = grouped(rows, lambda row: tuple(row[key] for key in keys))
    steps = []
    for group in groups.values():
        in_order = sorted((row["start_s"], row[length]) for row in group)
        starts_s = np.array([start_s for start_s, _ in in_order])
        lengths_s = np.array([length_s for _, length_s in in_order])
        steps.append(_Steps(starts_s, lengths_s))
    return steps


def per_period(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each device from the start of a step to the start of the next one, averaged over its steps.

    This is the time that a step costs the job, because it includes the time between steps. For a device with n steps,
    it is the row about all steps minus the row of the last step, divided by n - 1. For a single step it is the row
    about all steps, as there is no next step. A device without steps has no row.

    Columns: those of `DEVICE`, the durations of the timeline, `extent`, and `periods`, which is n - 1.
    """
    durations = [name for name in timeline if name.endswith("_s") and name != "start_s"]
    rows: list[Row] = []
    for device, rows_of_device in timeline.groupby(DEVICE, sort=False, dropna=False):
        is_of_all_steps = rows_of_device["scope"] == STEPS
        is_of_one_step = rows_of_device["scope"] == STEP
        rows_of_all_steps = rows_of_device[is_of_all_steps]
        steps = rows_of_device[is_of_one_step].sort_values("step")
        if rows_of_all_steps.empty or steps.empty:
            continue
        all_steps = rows_of_all_steps.iloc[0]
        seconds = all_steps[durations].astype(float)
        periods = len(steps) - 1
        if periods:
            last_step_s = steps.iloc[-1][durations].astype(float)
            to_last_start_s = seconds - last_step_s
            seconds = to_last_start_s / periods
        identity = dict(zip(DEVICE, device, strict=True))
        rows.append({**identity, **seconds, "extent": all_steps["extent"], "periods": periods})
    return pd.DataFrame(rows, columns=[*DEVICE, *durations, "extent", "periods"])


def long_steps(time: StepTime) -> list[int]:
    """Return the numbers, from 1, of the few steps that took far longer than the others.

    The list is empty if such steps are not rare (`MOST_LONG_STEPS`), or if three or more of them have equal distances.
    Then the job has such steps throughout: a loader delivers in bursts, or every tenth step writes a checkpoint.

    >>> from dataclasses import replace
    >>> time = StepTime(0.1, 13, 0.1, (0.1, 0.1), (0.1,) * 12)
    >>> long_steps(replace(time, periods_s=(0.1,) * 5 + (0.9,) + (0.1,) * 6))
    [6]
    """
    periods_s = np.array(time.periods_s)
    if len(periods_s) == 0 or periods_s.min() <= 0:
        return []
    steps = np.flatnonzero(far_above(periods_s)) + 1
    distances = np.diff(steps)
    is_regular = len(distances) > 1 and bool((distances == distances[0]).all())
    is_frequent = len(steps) > MOST_LONG_STEPS * len(periods_s)
    return [] if is_regular or is_frequent else steps.tolist()


def ratio_of_step_times(time: StepTime, base: StepTime) -> Interval:
    """Return the mean step time divided by that of `base`, with its interval.

    There is no interval if one of the two has fewer than `FEWEST_PERIODS` periods, or a mean that is not above 0.

    The interval is computed for the logarithm of the ratio, with Welch's degrees of freedom. It takes the correlation
    of neighbouring steps into account. It covers variation within the two captures, but not from one run to another.
    """
    ratio = time.mean_s / base.mean_s
    fewest = min(len(time.periods_s), len(base.periods_s))
    if fewest < FEWEST_PERIODS or min(time.mean_s, base.mean_s) <= 0:
        return Interval(ratio, None, None, 1)
    errors = [_error_of_mean(np.array(side.periods_s)) for side in (time, base)]
    squared_error = sum(error.squared for error in errors)
    freedom = 1.0
    # If the error is 0, the interval has no width for any degrees of freedom.
    if squared_error:
        # The degrees of freedom by Welch and Satterthwaite.
        weighted_squares = sum(error.squared**2 / error.freedom for error in errors)
        freedom = squared_error**2 / weighted_squares
    # Imported here because importing SciPy's functions takes as long as reading a small trace.
    from multicard.stats.student import critical_value

    quantile = critical_value(freedom)
    half_width = quantile * squared_error**0.5
    low = ratio * float(np.exp(-half_width))
    high = ratio * float(np.exp(half_width))
    return Interval(ratio, low, high, 1, LEVEL)


class _ErrorOfMean(NamedTuple):
    """The squared standard error of a mean, divided by the square of the mean, with its degrees of freedom."""

    squared: float
    freedom: int


def _error_of_mean(periods: np.ndarray) -> _ErrorOfMean:
    """Return the error of the mean of periods that may be correlated with their neighbours.

    Only slow variations of a series change its mean. Fast ones such as bursts do not, because their long and short
    periods balance each other. The first few cosine transforms of a series show its slow variations. They are nearly
    independent of each other, and each has n times the variance of the mean of the n values. So the mean of their
    squares, divided by n, estimates the variance of the mean.

    In a short series with a strong correlation, even the first transforms are not slow enough. So the square of each
    transform is multiplied by a correction: the height of the spectrum at frequency 0, divided by its height at the
    frequency of the transform. The spectrum is that of a first-order autoregression with the correlation r. At the
    frequency w it is proportional to 1 / ((1 - r)² + 4r sin²(w/2)).

    E. Lazarus, D. Lewis, J. Stock, M. Watson, "HAR inference: recommendations for practice", Journal of Business &
    Economic Statistics 36, 2018: equal-weighted cosine transforms, as many as 0.4 n^(2/3). D. Andrews, C. Monahan,
    "An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator", Econometrica 60, 1992:
    spectra relative to those of a first-order autoregression.
    """
    count = len(periods)
    mean = periods.mean()
    correlation = _assumed_correlation(periods)
    orders = np.arange(1, _number_of_transforms(count, correlation) + 1)
    midpoints = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * np.outer(orders, midpoints))
    deviations = periods - mean
    scale = (2 / count) ** 0.5
    transforms = scale * waves @ deviations
    # The transform j has the frequency πj/n.
    frequencies = np.pi * orders / count
    squared_sines = np.sin(frequencies / 2) ** 2
    # The height of the spectrum at frequency 0, divided by its height at the frequency of each transform.
    relative_height = 1 + 4 * correlation * squared_sines / (1 - correlation) ** 2
    # Each transform gives an estimate of n times the variance of the mean.
    estimates = relative_height * transforms**2
    squared = estimates.mean() / count / mean**2
    return _ErrorOfMean(float(squared), len(orders))


def _number_of_transforms(count: int, correlation: float) -> int:
    """Return the number of cosine transforms of a series that are slow enough to show the error of its mean; 2 or more.

    `count`: number of values in the series. `correlation`: that of neighbouring values.
    """
    number = 0.4 * count ** (2 / 3)
    if correlation > 0:
        # The spectrum of a series with this correlation falls to half its height at the frequency `half_power`.
        # Transforms up to half of that frequency show the height. The transform j has the frequency πj/n.
        half_power = (1 - correlation) / correlation**0.5
        number = min(number, half_power / 2 * count / np.pi)
    return max(2, int(number))


def _assumed_correlation(values: np.ndarray) -> float:
    """Return the correlation of neighbouring values that is assumed, between 0 and `HIGHEST_CORRELATION`.

    It is the correlation in the series, plus the amount by which short series show too little (M. G. Kendall,
    Biometrika 41, 1954), plus a margin of 0.7 standard errors. A standard error is 1/√n for n values. The margin is
    there because assuming too little correlation makes an interval wrong by more than assuming too much. Values that
    are all equal have the correlation 0.
    """
    deviations = values - values.mean()
    squares = float(deviations @ deviations)
    if squares == 0:
        return 0.0
    count = len(values)
    neighbours = float(deviations[1:] @ deviations[:-1])
    estimate = neighbours / squares
    bias = (1 + 3 * estimate) / count
    margin = 0.7 / count**0.5
    assumed = max(0.0, estimate + bias + margin)
    return min(HIGHEST_CORRELATION, assumed)
