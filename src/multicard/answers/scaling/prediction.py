"""Predict the time of a step on a number of devices that was not measured, from runs on other numbers, by Bayes.

`step_model` has the model, `posterior.ScalingPrior` the assumptions before any run. docs/predicting.md says how often
intervals held in public tables. The value of a prediction is the median of draws of the true mean time, and its
interval has the middle 95% of them. The time of a single further run scatters more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.answers.scaling.posterior import Array, Draws, ScalingPrior
from multicard.answers.scaling.step_model import SHOWING_HIDDEN, ScalingPoint, Target, draw_busy, draw_loading
from multicard.answers.scaling.work import SAME_WORK, is_same_work
from multicard.core.text import counted
from multicard.core.units import percent
from multicard.stats.interval import LEVEL, Interval
from multicard.stats.pool import geometric_mean_interval
from multicard.stats.student import critical_value

PRIOR = ScalingPrior()
# The runs contradict every curve of the model if they deviate by more than this many times what the prior expects.
CONTRADICTION = 3
# Scaling is super-linear if each device is faster than a device of a smaller number by more than this share.
SUPERLINEAR_GAIN = 0.05
NEVER_WAITED = "the loader never made a rank wait, so its limit is not known"
CONTRADICTING_WAITS = "in some runs the loader takes longer than whole steps of others, so its limit is not known"


@dataclass(frozen=True)
class Prediction:
    """The predicted step on a number of devices, or the reason why none is predicted."""

    devices: int
    # Seconds of a step; `repeats` is the number of runs behind it. None if nothing is predicted.
    step_s: Interval | None
    # Time of a step on the smallest measured number of devices over the predicted time; None if nothing is predicted.
    gain: Interval | None = None
    caveats: tuple[str, ...] = ()
    reason: str | None = None
    # Units of work per second; None if the work of such a step is not known.
    throughput: Interval | None = None
    # Speed-up over the run on one device; None without such a run. The interval includes the scatter of that run.
    speedup: Interval | None = None
    # The measured numbers of devices that the prediction is made from.
    measured: tuple[int, ...] = ()


@dataclass(frozen=True)
class PredictionCheck:
    """The measured time of a step on a number of devices, and its prediction from smaller numbers of devices."""

    predicted: Prediction
    # Seconds of a step.
    measured: Interval

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less 1; None if nothing was predicted."""
        step_s = self.predicted.step_s
        return None if step_s is None else step_s.value / self.measured.value - 1

    @property
    def inside(self) -> bool | None:
        """True if the measured mean is inside the predicted interval; None if there is no such interval."""
        step_s = self.predicted.step_s
        if step_s is None or step_s.low is None or step_s.high is None:
            return None
        return step_s.low <= self.measured.value <= step_s.high


def predict(
    points: Sequence[ScalingPoint], devices: int, devices_per_node: int, samples: float, prior: ScalingPrior = PRIOR
) -> Prediction:
    """Predict the time of a step on a number of devices, each of which computes `samples` samples in a step.

    Runs on two or more other numbers of devices are needed. With fewer the result has a `reason` and no time.

    If steps take 100 ms on one device and on two, they are expected to take little longer on four. By the median of the
    prior, the first doubling adds 1% and the second about as much. So the value is near 100 ms. The interval reaches
    further up than down, because communication that the backward pass hides so far may show on four:

    >>> points = [ScalingPoint(devices, devices, 64.0, (0.1, 0.1, 0.1), (0.0, 0.0, 0.0)) for devices in (1, 2)]
    >>> step_s = predict(points, 4, 4, 64.0).step_s
    >>> round(step_s.value, 2), step_s.high - step_s.value > step_s.value - step_s.low
    (0.1, True)
    """
    points = sorted(points, key=lambda point: point.devices)
    if len({point.devices for point in points}) < 2:
        return Prediction(devices, None, reason="runs on one number of devices only: run another number")
    target = Target(devices, devices_per_node, samples)
    busy = draw_busy(points, target, prior)
    loading = draw_loading(points, target, prior)
    log_step, log_first_step = busy.target, busy.level
    if loading is not None:
        log_step = np.maximum(log_step, loading.target)
        if points[0].is_waiting:
            log_first_step = np.maximum(log_first_step, loading.level)
    runs = sum(len(point.step_s) for point in points)
    caveats = [
        *_caveats_of_runs(points, busy, prior),
        *([_unknown_loading(points)] if loading is None else []),
        *_caveats_of_target(points, target),
    ]
    return Prediction(
        devices,
        step_s=_interval(log_step, runs),
        gain=_interval(log_first_step - log_step, runs),
        caveats=tuple(caveats),
    )


def checks(points: Sequence[ScalingPoint], prior: ScalingPrior = PRIOR) -> list[PredictionCheck]:
    """Predict the step on each measured number of devices, except the smallest, from the smaller numbers.

    The second smallest number has no predicted time, because one number of devices is too few to predict from.
    """
    all_checks = []
    for point in sorted(points, key=lambda point: point.devices)[1:]:
        smaller = [other for other in points if other.devices < point.devices]
        predicted = predict(smaller, point.devices, point.devices_per_node, point.samples, prior)
        measured = geometric_mean_interval(point.step_s)
        all_checks.append(PredictionCheck(predicted, measured))
    return all_checks


def superlinear(points: Sequence[ScalingPoint], prior: ScalingPrior) -> dict[int, float]:
    """Return the numbers of devices on which each device is faster than on fewer devices, and how many times as fast.

    Only gains count that exceed 5% by more than repeats explain at a level of 95%. Without repeats the scatter is that
    of the prior. No model has a reason why a device is faster together with others than alone. The data, clocks or
    software may have differed, or smaller parts of the work fit into caches.

    Two devices that each take half of the time of one for a sample are twice as fast:

    >>> points = [ScalingPoint(1, 1, 64.0, (0.2,), (0.0,)), ScalingPoint(2, 2, 64.0, (0.1,), (0.0,))]
    >>> {devices: round(factor, 6) for devices, factor in superlinear(points, PRIOR).items()}
    {2: 2.0}
    """
    ordered = sorted(points, key=lambda point: point.devices)
    # Logarithms of the seconds that a device takes for one sample, of each repeat.
    log_times = {point.devices: np.log(np.array(point.step_s) / point.samples) for point in ordered}
    noise = _pooled_noise(list(log_times.values()), prior)
    factors: dict[int, float] = {}
    for devices, times in log_times.items():
        gains = [
            _shown_gain(times_on_fewer, times, noise)
            for fewer_devices, times_on_fewer in log_times.items()
            if fewer_devices < devices
        ]
        largest_gain = max(gains, default=0.0)
        if largest_gain > 0:
            factors[devices] = float(np.exp(largest_gain))
    return factors


@dataclass(frozen=True)
class _Noise:
    """The standard deviation of the logarithms of repeats, and its degrees of freedom."""

    deviation: float
    freedom: float


def _pooled_noise(log_times: Sequence[Array], prior: ScalingPrior) -> _Noise:
    """Return the scatter of repeats around the mean of their number of devices. The prior counts as further repeats."""
    squares = sum(float(((times - times.mean()) ** 2).sum()) for times in log_times)
    freedom = sum(len(times) - 1 for times in log_times) + prior.noise_freedom
    variance = (squares + prior.noise_freedom * prior.noise**2) / freedom
    return _Noise(float(np.sqrt(variance)), freedom)


def _shown_gain(slower: Array, faster: Array, noise: _Noise) -> float:
    """Return by how much the mean of log times falls from `slower` to `faster`; 0 if the fall shows nothing.

    The fall is the logarithm of how many times as fast the second sample is. It shows something only if it exceeds 5%
    by more than the scatter of repeats explains (Student's t).
    """
    gain = float(slower.mean() - faster.mean())
    error = noise.deviation * np.sqrt(1 / len(faster) + 1 / len(slower))
    quantile = critical_value(noise.freedom)
    return gain if gain > quantile * error + np.log1p(SUPERLINEAR_GAIN) else 0.0


def _caveats_of_runs(points: Sequence[ScalingPoint], busy: Draws, prior: ScalingPrior) -> Iterator[str]:
    """Yield doubts about the runs that a prediction is made from. They do not depend on what is predicted."""
    for devices, factor in superlinear(points, prior).items():
        yield (
            f"super-linear: on {counted(devices, 'device')} each is {factor:.2f} times as fast as on fewer, more than "
            "repeats explain (other data, clocks or software?)"
        )
    deviation = float(np.median(busy.deviation))
    if deviation > CONTRADICTION * float(np.median(busy.expected_deviation)):
        yield f"the runs deviate from every curve of the model, by {percent(deviation)} in a doubling of the devices"
    if all(len(point.step_s) == 1 for point in points):
        yield f"no repeats: their scatter is taken to be about {percent(prior.noise)}, as in public tables"


def _unknown_loading(points: Sequence[ScalingPoint]) -> str:
    """Return why the time of loading was not drawn: no rank waited, or the runs without waits exclude every draw."""
    return CONTRADICTING_WAITS if any(point.is_waiting for point in points) else NEVER_WAITED


def _caveats_of_target(points: Sequence[ScalingPoint], target: Target) -> Iterator[str]:
    """Yield doubts that depend on what is predicted: whether the runs are too few, or too different from it."""
    samples = [point.samples for point in points]
    if len(points) < SHOWING_HIDDEN:
        stay = is_same_work([*samples, target.samples], target.samples)
        also = "" if stay else ", and do not show communication that both hide"
        third = _third_count(points[0].devices, points[1].devices, target.devices)
        yield f"two numbers of devices leave the interval wide{also}: run {third}, too"
    if not min(samples) * (1 - SAME_WORK) <= target.samples <= max(samples) * (1 + SAME_WORK):
        yield f"each of {target.devices} devices gets fewer or more samples than in any run: its time is extrapolated"


def _third_count(smaller: int, larger: int, target: int) -> str:
    """Return in words a third number of devices to run, so that the interval of the prediction for `target` narrows.

    It is twice the larger measured number if that is below the target, else twice the smaller one if that is below the
    larger one. If neither is, no number is named.

    >>> _third_count(1, 2, 8), _third_count(1, 8, 16), _third_count(1, 2, 4)
    ('4 devices', '2 devices', 'a third number')
    """
    between = range(2 * larger, target, larger) or range(2 * smaller, larger, smaller)
    return counted(between[0], "device") if between else "a third number"


def _interval(log_draws: Array, runs: int) -> Interval:
    """Return the exponentials of the median and of the bounds of the middle 95% of draws; `runs` are its repeats."""
    quantiles = np.quantile(log_draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    low, value, high = (float(np.exp(quantile)) for quantile in quantiles)
    return Interval(value, low, high, runs, coverage=LEVEL)
