"""How long a step of a capture takes: elapsed time over steps, from the start of each to the start of the next.

The mean, since a step that is typical need not be what a job pays for: loaders deliver in bursts, as 8, 8 and 232 ms
in turn, and a job of such steps takes 82.7 ms for each, not 8.
"""

from dataclasses import dataclass

import numpy as np

from multicard.stats.interval import LEVEL, Interval
from multicard.trace.steps import STEP
from multicard.trace.tables import ActivityTables

# Periods that an interval needs. Of fewer the correlation cannot be seen: where neighbours have one of 0.9, intervals
# from 8 periods hold in 91%, from 12 on in 93% or more.
FEWEST = 12

# Steps that stand out are beyond Tukey's outer fence of the logarithms, far longer than the median, and rare.
FEWEST_TO_STAND_OUT = 8  # periods
FENCE = 3.0  # quartile ranges beyond the upper quartile
LONGER = 1.5  # times the median, at least
RARE = 0.1  # part of the steps, at most

MOST_CORRELATED = 0.97  # neighbours, as far as a capture can show it


@dataclass(frozen=True)
class StepTime:
    """How long a step of a capture takes, in seconds, made by `step_time`.

    A period is the time from the start of a step to that of the next, mean over devices; of a single step it is how
    long that step lasts. `mean_s` is elapsed time over steps: the time from the first start to the last one over
    their number less one, mean over devices.
    """

    mean_s: float
    count: int  # steps
    median_s: float  # of the periods, as the quartiles
    quartiles_s: tuple[float, float]
    periods_s: tuple[float, ...]  # of each step but the last, in order; none of a single step

    @property
    def is_skewed(self) -> bool:
        """True if the median differs from the mean by more than 10%, so that one of them alone misleads."""
        return abs(self.median_s - self.mean_s) > 0.1 * self.mean_s


def step_time(found: ActivityTables) -> StepTime | None:
    """Return how long a step takes by the tables of a capture, or None if these show no step.

    On devices where the capture has some, each by its own extents of steps where launches tell them, else by those of
    the host; without devices by the host's ranges.
    """
    timeline = [row for row in found.rows.get("timeline", []) if row["scope"] == STEP]
    phases = [row for row in found.rows.get("phases", []) if row["phase"] == STEP]
    if timeline:
        places = _by_place(timeline, ("report", "process", "device"), "span_s")
    else:
        places = _by_place(phases, ("report", "process"), "duration_s")
    if not places:
        return None
    count = min(len(starts) for starts, _ in places)
    if count == 1:
        mean = float(np.mean([lengths[0] for _, lengths in places]))
        return StepTime(mean, 1, mean, (mean, mean), ())
    mean = float(np.mean([(starts[-1] - starts[0]) / (len(starts) - 1) for starts, _ in places]))
    # Where captures of ranks end apart by a step, all have the first ones.
    periods = np.mean([np.diff(starts[:count]) for starts, _ in places], axis=0)
    low, median, high = np.quantile(periods, [0.25, 0.5, 0.75]).tolist()
    return StepTime(mean, count, median, (low, high), tuple(periods.tolist()))


def _by_place(rows: list[dict[str, object]], names: tuple[str, ...], length: str) -> list[tuple[np.ndarray, ...]]:
    """Starts and lengths of the steps of each place, which these columns name, in order of time."""
    places: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row in rows:
        places.setdefault(tuple(row[name] for name in names), []).append((row["start_s"], row[length]))
    return [tuple(np.array(sorted(steps)).T) for steps in places.values()]


def long_steps(time: StepTime) -> list[int]:
    """Return the numbers, from 1, of the few steps that took far longer than the others.

    None where they are not rare or come at equal distances, as when a loader delivers in bursts or every tenth step
    writes a checkpoint: the job pays for these throughout.
    """
    periods = np.array(time.periods_s)
    if len(periods) < FEWEST_TO_STAND_OUT or periods.min() <= 0:
        return []
    logarithms = np.log(periods)
    low, high = np.quantile(logarithms, [0.25, 0.75])
    far = (logarithms > high + FENCE * (high - low)) & (periods > LONGER * time.median_s)
    steps = np.flatnonzero(far) + 1
    distances = np.diff(steps)
    is_pattern = len(distances) > 1 and bool((distances == distances[0]).all())
    return [] if is_pattern or len(steps) > RARE * len(periods) else steps.tolist()


def ratio_of_step_times(time: StepTime, base: StepTime) -> Interval:
    """Return the step time over that of `base`, with its interval, which is unknown for fewer than `FEWEST` periods.

    The interval is that of a ratio of means of steps that may have much in common with their neighbours, on the
    logarithm of the ratio, with degrees of freedom by Welch. It covers what varies within the two captures, not from
    one run to another.
    """
    value = time.mean_s / base.mean_s
    if min(len(time.periods_s), len(base.periods_s)) < FEWEST or min(time.mean_s, base.mean_s) <= 0:
        return Interval(value, None, None, 1)
    errors = [_squared_error(np.array(own.periods_s)) for own in (time, base)]
    total = sum(square for square, _ in errors)
    freedom = total**2 / sum(square**2 / degrees for square, degrees in errors) if total else 1.0
    from scipy.special import stdtrit  # as long to import as a small trace to read

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * total**0.5
    return Interval(value, value * float(np.exp(-half)), value * float(np.exp(half)), 1, LEVEL)


def _squared_error(periods: np.ndarray) -> tuple[float, int]:
    """Return the squared standard error of a mean, as a part of the mean, and its degrees of freedom.

    How far a mean of dependent values may be off is seen in their slow variations alone. Their first few cosine
    transforms, each over the whole series, are slow, nearly independent of each other, and of that variance. Bursts
    are fast: their long and short periods make up for each other within a burst, and leave the mean alone.

    In a short series not even the first transforms are slow beside a strong correlation. Each is multiplied by how much
    higher the spectrum is at frequency 0 than at its own, if each period follows the one before by that correlation.

    E. Lazarus, D. Lewis, J. Stock, M. Watson, "HAR inference: recommendations for practice", Journal of Business &
    Economic Statistics 36, 2018: equal-weighted cosine transforms, as many as 0.4 n^(2/3). D. Andrews, C. Monahan,
    "An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator", Econometrica 60, 1992:
    spectra relative to those of a first-order autoregression.
    """
    count = len(periods)
    number = 0.4 * count ** (2 / 3)
    common = _correlation(periods)
    if common > 0:
        # The spectrum of such a series falls to half at this frequency; transforms up to half of that show its height.
        # The transform j has the frequency πj/n.
        half_power = (1 - common) / common**0.5
        number = min(number, half_power / 2 * count / np.pi)
    orders = np.arange(1, max(2, int(number)) + 1)
    moments = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * np.outer(orders, moments))
    transforms = (2 / count) ** 0.5 * waves @ (periods - periods.mean())
    # The spectrum at frequency w is as 1 / ((1 - common)² + 4 common sin²(w/2)).
    fallen = 1 + 4 * common * np.sin(np.pi * orders / count / 2) ** 2 / (1 - common) ** 2
    return float((fallen * transforms**2).mean() / count / periods.mean() ** 2), len(orders)


def _correlation(values: np.ndarray) -> float:
    """Return the correlation of neighbours that is assumed, between 0 and `MOST_CORRELATED`.

    It is what the series shows, less its bias in short ones (M. G. Kendall, Biometrika 41, 1954), and 0.7 standard
    errors of that, each 1/√n. An interval that assumes too little correlation misses by far more than one that
    assumes too much.
    """
    away = values - values.mean()
    square = float(away @ away)
    if square == 0:
        return 0.0
    count = len(values)
    found = float(away[1:] @ away[:-1]) / square
    return min(MOST_CORRELATED, max(0.0, found + (1 + 3 * found) / count + 0.7 / count**0.5))
