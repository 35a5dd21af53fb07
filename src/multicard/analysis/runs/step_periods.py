"""The time that a step of a capture takes: elapsed time over steps, from the start of each to the start of the next.

It is a mean, since a step that is typical need not be what a job pays for: loaders deliver in bursts, as 8, 8 and
232 ms in turn, and a job of such steps takes 82.7 ms for each, not 8.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multicard.core.grouping import grouped
from multicard.stats.interval import LEVEL, Interval
from multicard.stats.outliers import far_above
from multicard.trace.steps import STEP
from multicard.trace.tables import ActivityTables

# Periods that an interval needs. From fewer the correlation cannot be estimated: where neighbours have one of 0.9,
# intervals from 8 periods hold in 91%, from 12 on in 93% or more.
FEWEST_PERIODS = 12

# Long steps are at most this share of the steps. What is more frequent is paid for throughout the job.
MOST_LONG_STEPS = 0.1

# Correlation of neighbours up to which a capture can show it.
HIGHEST_CORRELATION = 0.97


@dataclass(frozen=True)
class StepTime:
    """The time that a step of a capture takes, in seconds, made by `step_time`.

    A period is the time from the start of a step to that of the next, mean over devices. A single step has no period;
    its mean, median and quartiles are its length.
    """

    # Elapsed time over steps: the time from the first start to the last, over their number less 1; mean over devices.
    mean_s: float
    # Number of steps on the device that has fewest.
    count: int
    # Median and quartiles of the periods.
    median_s: float
    quartiles_s: tuple[float, float]
    # One for each step but the last, in order.
    periods_s: tuple[float, ...]

    @property
    def is_skewed(self) -> bool:
        """True if the median differs from the mean by more than 10%, so that one of them alone misleads."""
        return abs(self.median_s - self.mean_s) > 0.1 * self.mean_s


class _Steps(NamedTuple):
    """The steps of one device or process, ordered by start: when each starts, and how long it lasts, in seconds."""

    starts_s: np.ndarray
    lengths_s: np.ndarray

    @property
    def mean_period_s(self) -> float:
        """Mean time from the start of a step to the start of the next; needs two steps."""
        elapsed_s = self.starts_s[-1] - self.starts_s[0]
        period_count = len(self.starts_s) - 1
        return elapsed_s / period_count


def step_time(capture: ActivityTables) -> StepTime | None:
    """Return the time that a step takes by the tables of a capture, or None if these show no step.

    The steps are those of the capture's devices, which the table `timeline` has; of a capture without devices, those
    of its processes in the table `phases`.
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
    # The captures of some ranks may end a step later than those of others. All of them have the first steps.
    periods_of_devices_s = [np.diff(steps.starts_s[:count]) for steps in devices]
    periods_s = np.mean(periods_of_devices_s, axis=0)
    lower_s, median_s, upper_s = np.quantile(periods_s, [0.25, 0.5, 0.75]).tolist()
    quartiles_s = (lower_s, upper_s)
    return StepTime(mean_s, count, median_s, quartiles_s, tuple(periods_s.tolist()))


def _steps_by(keys: Sequence[str], length: str, rows: Iterable[Mapping[str, Any]]) -> list[_Steps]:
    """Return the steps of each device or process.

    `keys`: the columns that identify one; `length`: the column with the length of a step.
    """
    groups = grouped(rows, lambda row: tuple(row[key] for key in keys))
    steps = []
    for group in groups.values():
        in_order = sorted((row["start_s"], row[length]) for row in group)
        starts_s = np.array([start_s for start_s, _ in in_order])
        lengths_s = np.array([length_s for _, length_s in in_order])
        steps.append(_Steps(starts_s, lengths_s))
    return steps


def long_steps(time: StepTime) -> list[int]:
    """Return the numbers, from 1, of the few steps that took far longer than the others.

    There are none where such steps are not rare, or come at equal distances, as when a loader delivers in bursts or
    every tenth step writes a checkpoint: the job pays for these throughout.

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
    """Return the step time over that of `base`, with its interval, which is unknown for fewer than `FEWEST_PERIODS`.

    The interval is that of a ratio of means of steps that may have much in common with their neighbours, on the
    logarithm of the ratio, with degrees of freedom by Welch. It covers what varies within the two captures, not from
    one run to another.
    """
    ratio = time.mean_s / base.mean_s
    fewest = min(len(time.periods_s), len(base.periods_s))
    if fewest < FEWEST_PERIODS or min(time.mean_s, base.mean_s) <= 0:
        return Interval(ratio, None, None, 1)
    errors = [_error_of_mean(np.array(side.periods_s)) for side in (time, base)]
    squared_error = sum(error.squared for error in errors)
    freedom = 1.0
    # Without scatter any degrees of freedom give an interval of no width.
    if squared_error:
        # The degrees of freedom by Welch and Satterthwaite.
        weighted_squares = sum(error.squared**2 / error.freedom for error in errors)
        freedom = squared_error**2 / weighted_squares
    # Importing SciPy's functions takes as long as reading a small trace, so only what needs them imports them.
    from multicard.stats.student import critical_value

    quantile = critical_value(freedom)
    half_width = quantile * squared_error**0.5
    low = ratio * float(np.exp(-half_width))
    high = ratio * float(np.exp(half_width))
    return Interval(ratio, low, high, 1, LEVEL)


class _ErrorOfMean(NamedTuple):
    """The squared standard error of a mean over the squared mean, with its degrees of freedom."""

    squared: float
    freedom: int


def _error_of_mean(periods: np.ndarray) -> _ErrorOfMean:
    """Return the error of the mean of periods that may have much in common with their neighbours.

    How far a mean of dependent values may be off is seen in their slow variations alone. The first few cosine
    transforms of the whole series are slow, nearly independent of each other, and have n times the variance of the mean
    of n values. Bursts are fast: the long and short periods of one make up for each other, and leave the mean alone.

    In a short series not even the first transforms are slow beside a strong correlation. So each is multiplied by the
    height of the spectrum at frequency 0 over that at its own frequency, for a series in which each period follows the
    one before by the correlation r. At the frequency w that spectrum is proportional to 1 / ((1 - r)² + 4r sin²(w/2)).

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
    # The height of the spectrum at frequency 0 over that at the frequency of each transform.
    relative_height = 1 + 4 * correlation * squared_sines / (1 - correlation) ** 2
    # Each transform gives an estimate of n times the variance of the mean.
    estimates = relative_height * transforms**2
    squared = estimates.mean() / count / mean**2
    return _ErrorOfMean(float(squared), len(orders))


def _number_of_transforms(count: int, correlation: float) -> int:
    """Return how many cosine transforms of a series are slow enough to show the error of its mean, at least 2."""
    number = 0.4 * count ** (2 / 3)
    if correlation > 0:
        # The spectrum of a series with this correlation falls to half its height at the frequency `half_power`.
        # Transforms up to half of that frequency show the height. The transform j has the frequency πj/n.
        half_power = (1 - correlation) / correlation**0.5
        number = min(number, half_power / 2 * count / np.pi)
    return max(2, int(number))


def _assumed_correlation(values: np.ndarray) -> float:
    """Return the correlation of neighbours that is assumed, between 0 and `HIGHEST_CORRELATION`.

    It is what the series shows, plus the bias by which short series show too little (M. G. Kendall, Biometrika 41,
    1954), plus a margin of 0.7 standard errors, each 1/√n. An interval that assumes too little correlation misses by
    far more than one that assumes too much.
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
