"""Step time on a number of devices that did not run, from runs on others: one model, by Bayes.

T(n) = max(loading(n), compute(n) + growth(n)), times a random walk over the doublings of n.

- Compute grows with the samples of a device, but for a fixed share, which runs of several batch sizes tell.
- Growth is c (n^p − 1) / (2^p − 1) with −1 < p < 1.5, relative to the smallest number of devices: with p = −1 the
  1 − 1/n of a ring's bandwidth, with 0 the log2 n of a tree or of waiting for the slowest, with 1 the n − 1 of a ring's
  latency. Exposed communication shows in it, serial work under strong scaling, and whatever else devices cost.
- Under weak scaling, communication that backward passes hide on two numbers of devices may show on more: as of a ring,
  H · 2 (1 − 1/n), less what can be hidden.
- The walk is what no such curve has. By it an interval grows with the doublings between the runs and what is asked.
- Loading counts where ranks waited: each loads for itself, or the ranks of a node share what it can load, or between.

What is known before any run (`posterior.Prior`) is from public tables; docs/choosing.md says how often intervals held
there. The value is the median of the draws, the interval has their middle 95%: of the true time, not of another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from multicard.analysis.scaling.posterior import Array, Draws, Prior, draw_posterior
from multicard.core.text import counted
from multicard.core.units import percent
from multicard.stats.interval import LEVEL, Interval
from multicard.stats.pool import geometric_mean_interval

PRIOR = Prior()
SHAPES = (-1.0, 1.5)  # of growth: the exponent p
LEAST = 1e-3  # of a step on the smallest number of devices, that any draw takes
SHOWN_BY = 3  # numbers of devices, by which communication that some of them hide shows
HIDEABLE = 2 / 3  # of a step's compute: the backward pass, under which communication may be hidden
DEVIATES = 3  # times as much as the prior has, from which on runs contradict any curve of the model
NEVER_WAITED = "the loader never made a rank wait, so its limit is not known"
WAITS = 0.05  # share of a step that waits for data from which on the loader sets its pace
SAME = 0.05  # relative difference of samples or times up to which they are the same


@dataclass(frozen=True)
class Point:
    """Runs of one configuration on one number of devices."""

    count: int
    local: int  # devices of a node
    samples: float  # of a device and step
    step_s: tuple[float, ...]  # of each repeat
    waited_s: tuple[float, ...]  # of that the wait for data, unless loading is a part of the step itself

    @property
    def busy_s(self) -> Array:
        """Seconds of a step without the wait, by repeat."""
        return np.array(self.step_s) - np.array(self.waited_s)

    @property
    def waits(self) -> bool:
        """Whether the loader sets the pace."""
        return float(np.mean(self.waited_s)) >= WAITS * float(np.mean(self.step_s))


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a number of devices, or why nothing is."""

    count: int
    step_s: Interval | None  # seconds of a step; `repeats` is the number of runs behind it
    gain: Interval | None = None  # time of a step on the smallest number of devices over this
    caveats: tuple[str, ...] = ()
    reason: str | None = None
    throughput: Interval | None = None  # units of work per second; None where the work of such a step is not known
    speedup: Interval | None = None  # over the run on one device, whose scatter its interval has too; None without one
    measured: tuple[int, ...] = ()  # numbers of devices that it is predicted from


@dataclass(frozen=True)
class Check:
    """A measured count as predicted from the smaller ones."""

    predicted: Prediction
    measured: Interval

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less 1."""
        return self.predicted.step_s.value / self.measured.value - 1 if self.predicted.step_s else None

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured mean; None where there is none."""
        step = self.predicted.step_s
        return None if step is None else step.low <= self.measured.value <= step.high


def predict(points: Sequence[Point], count: int, local: int, samples: float, prior: Prior = PRIOR) -> Prediction:
    """Predict the time of a step on `count` devices, `local` of a node, with so many `samples` each."""
    points = sorted(points, key=lambda each: each.count)
    if len({each.count for each in points}) < 2:
        return Prediction(count, None, reason="runs on one number of devices only: run another number")
    busy = _busy(points, count, samples, prior)
    loaded = _loading(points, count, local, samples, prior)
    target, base = busy.target, busy.level
    if loaded is not None:
        target = np.maximum(target, loaded.target)
        base = np.maximum(base, loaded.level) if points[0].waits else base
    runs = sum(len(each.step_s) for each in points)
    caveats = [
        f"super-linear: on {counted(on, 'device')} each is {gain:.2f} times as fast as on fewer, more than repeats "
        "explain (other data, clocks or software?)"
        for on, gain in superlinear(points, prior).items()
    ]
    deviation, expected = (float(np.median(each)) for each in (busy.deviation, busy.expected_deviation))
    if deviation > DEVIATES * expected:
        caveats.append(
            f"the runs deviate from every curve of the model, by {percent(deviation)} in a doubling of the devices"
        )
    if runs == len(points):
        caveats.append(f"no repeats: their scatter is taken to be about {percent(prior.noise)}, as in public tables")
    if loaded is None:
        caveats.append(NEVER_WAITED)
    sizes = [each.samples for each in points]
    if len(points) < SHOWN_BY:
        stays = np.allclose([*sizes, samples], samples, rtol=SAME)
        also = "" if stays else ", and do not show communication that both hide"
        third = _third_count(points[0].count, points[1].count, count)
        caveats.append(f"two numbers of devices leave the interval wide{also}: run {third}, too")
    if not min(sizes) * (1 - SAME) <= samples <= max(sizes) * (1 + SAME):
        caveats.append(f"each of {count} devices gets fewer or more samples than in any run: its time is extrapolated")
    return Prediction(count, _interval(target, runs), _interval(base - target, runs), tuple(caveats))


def _third_count(smaller: int, larger: int, target: int) -> str:
    """Return which number of devices to run beside two, to narrow the interval of a third.

    >>> _third_count(1, 2, 8), _third_count(1, 8, 16), _third_count(1, 2, 4)
    ('4 devices', '2 devices', 'a third number')
    """
    between = range(2 * larger, target, larger) or range(2 * smaller, larger, smaller)
    return counted(between[0], "device") if between else "a third number"


def superlinear(points: Sequence[Point], prior: Prior) -> dict[int, float]:
    """Counts on which a device is faster than on fewer, by more than 5% and than repeats explain (95%).

    Gives for each how many times as fast. Without repeats their scatter is that of the prior. That devices are faster
    together than alone has no reason that a model has: other data, clocks or software, or a cache that they fill.
    """
    ordered = sorted(points, key=lambda each: each.count)
    logs = {each.count: np.log(np.array(each.step_s) / each.samples) for each in ordered}
    squares = sum(float(((own - own.mean()) ** 2).sum()) for own in logs.values())
    freedom = sum(len(own) - 1 for own in logs.values()) + prior.noise_freedom
    noise = np.sqrt((squares + prior.noise_freedom * prior.noise**2) / freedom)
    found = {}
    for count, own in logs.items():
        for fewer in (each for smaller, each in logs.items() if smaller < count):
            reach = stdtrit(freedom, (1 + LEVEL) / 2) * noise * np.sqrt(1 / len(own) + 1 / len(fewer))
            gain = float(fewer.mean() - own.mean())
            if gain > reach + np.log1p(SAME):
                found[count] = max(found.get(count, 0.0), float(np.exp(gain)))
    return found


def checks(points: Sequence[Point], prior: Prior = PRIOR) -> list[Check]:
    """Predict each count but the smallest from the smaller ones."""
    found = []
    for point in sorted(points, key=lambda each: each.count)[1:]:
        smaller = [each for each in points if each.count < point.count]
        predicted = predict(smaller, point.count, point.local, point.samples, prior)
        found.append(Check(predicted, geometric_mean_interval(point.step_s)))
    return found


def _busy(points: Sequence[Point], count: int, samples: float, prior: Prior) -> Draws:
    """Draws of the step without the wait for data."""
    counts = np.array([*(each.count for each in points), count], dtype=float)
    sizes = np.array([*(each.samples for each in points), samples]) / points[0].samples
    several = not np.allclose(sizes, 1.0, rtol=SAME)
    usual = prior.growth * (np.sqrt(sizes.min()) if several else 1.0)  # of a step between the first and the shortest
    hides = len(points) < SHOWN_BY and not several  # a share of a step that does not shrink

    def curve(z: Array) -> Array:
        """Over the step of the first point."""
        added = usual * np.exp(prior.growth_spread * z[:, :1])
        shape = SHAPES[0] + (SHAPES[1] - SHAPES[0]) * ndtr(z[:, 1:2])
        own = np.ones_like(counts)
        if several:
            fixed = np.minimum(1.0, usual * np.exp(prior.growth_spread * z[:, 2:3]))
            own = fixed + (1 - fixed) * sizes
        grown = own + added * _growth(counts / counts[0], shape)
        if hides:
            communication = prior.hidden * np.exp(prior.hidden_spread * z[:, -1:]) * 2 * (1 - 1 / counts)
            grown += np.maximum(0.0, communication - HIDEABLE * own)
        return np.log(np.maximum(grown, LEAST))

    places = [np.log2(counts / counts[0]), np.log2(sizes)] if several else [np.log2(counts / counts[0])]
    return draw_posterior([each.busy_s for each in points], curve, places, 2 + several + hides, prior)


def _growth(times: Array, shape: Array) -> Array:
    """(n^p − 1) / (2^p − 1): 0 on as many devices as the smallest number, 1 on twice as many."""
    shape = np.where(abs(shape) < 1e-6, 1e-6, shape)
    return np.expm1(shape * np.log(times)) / np.expm1(shape * np.log(2))


def _loading(points: Sequence[Point], count: int, local: int, samples: float, prior: Prior) -> Draws | None:
    """Draws of the time that loading takes, as where ranks waited; None where none did."""
    waiting = [each for each in points if each.waits]
    others = [each for each in points if not each.waits]
    if not waiting:
        return None
    places = [(each.local, each.samples) for each in waiting]
    places += [(local, samples), *((each.local, each.samples) for each in others)]
    ranks, sizes = np.array(places, dtype=float).T

    def curve(z: Array) -> Array:
        shared = np.sin(np.pi / 2 * ndtr(z[:, :1])) ** 2  # rather none or all than between
        return np.log(sizes) + shared * np.log(ranks)

    counts = np.array([*(each.count for each in waiting), count])
    # Where no rank waited, loading takes no longer than the step.
    at_most = np.log([np.mean(each.step_s) * (1 + SAME) for each in others]) if others else None
    repeats = [np.array(each.step_s) for each in waiting]
    return draw_posterior(repeats, curve, [np.log2(counts / counts[0])], 1, prior, at_most)


def _interval(logs: Array, runs: int) -> Interval:
    low, value, high = (float(np.exp(each)) for each in np.quantile(logs, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]))
    return Interval(value, low, high, runs, coverage=LEVEL)
