"""Step time on a number of devices that did not run, from runs on others: one model, by Bayes.

T(n) = max(loading(n), compute(n) + exposed(n) + growth(n)), times a random walk over the doublings of n.

- Compute grows with the samples of a device, but for a fixed share, which runs with several batch sizes tell.
- Exposed is what the backward pass does not hide of the collectives of a step, max(0, alone(n) − hidden), where α and β
  of all-reduces on this machine and the bytes that a step exchanges are known; else it is a part of growth.
- Growth is c (n^p − 1) / (2^p − 1) with −1 < p < 1.5, relative to the smallest number of devices: with p = −1 the
  1 − 1/n of a ring's bandwidth, with 0 the log2 n of a tree or of waiting for the slowest, with 1 the n − 1 of a ring's
  latency. Exposed communication shows in it, serial work under strong scaling, and whatever else devices cost.
- The walk is what no such curve has. By it an interval grows with the doublings between the runs and what is asked.
- Loading: `multicard.analysis.scaling.loader`.

What is known before any run (`posterior.Prior`) is from public tables; docs/prediction.md says how often intervals held
there. The value is the median of the draws, the interval has their middle 95%: of the true time, not of another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from multicard.analysis.runs.breakdown import COMMUNICATION, COMPUTE, DATA
from multicard.analysis.scaling.loader import Alone, compete, loading
from multicard.analysis.scaling.network import Network
from multicard.analysis.scaling.points import SAME, Point, one_for_each_count, superlinear, superlinear_words
from multicard.analysis.scaling.posterior import Array, Draws, Prior, draw
from multicard.analysis.statistics import LEVEL, Interval, product_of
from multicard.core.units import percent

PRIOR = Prior()
SHAPES = (-1.0, 1.5)  # of growth: the exponent p
LEAST = 1e-3  # of a step on the smallest number of devices, that any draw takes to compute
SHOWN_BY = 3  # numbers of devices, by which communication that some of them hide shows
DEVIATES = 3  # times as much as the prior has, from which on runs contradict any curve of the model


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a number of devices, or why nothing is.

    Attributes
    ----------
    step_s
        Seconds of a step. `repeats` is the number of runs behind it.
    gain
        Time of a step on the smallest number of devices over this.
    compute_s, communication_s, loader_s
        Terms of the step; of the loader None where it never made a rank wait and was not measured alone.
    """

    count: int
    step_s: Interval | None
    gain: Interval | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    loader_s: float | None = None
    caveats: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def bound(self) -> str | None:
        """The largest part of the step, by the names of `breakdown.PARTS`."""
        if self.step_s is None:
            return None
        waits_s = (self.loader_s or 0.0) - self.compute_s - self.communication_s
        parts = {COMPUTE: self.compute_s, COMMUNICATION: self.communication_s, DATA: waits_s}
        return max(parts, key=parts.__getitem__)


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


def predict(
    points: Sequence[Point],
    count: int,
    local: int,
    samples: float,
    network: Network | None = None,
    unknown: str | None = None,
    alone: Alone | None = None,
    computing: float | None = None,
    prior: Prior = PRIOR,
) -> Prediction:
    """Predict the time of a step.

    Parameters
    ----------
    points
        Runs, of which those on one device may have several numbers of samples, that of the others' baseline first.
    count, local, samples
        What is asked for.
    network
        What is known of communication; None for nothing.
    unknown
        Why nothing is known of communication.
    alone
        What is known of the loader beside the runs.
    computing
        Share of a step on the smallest number of devices that is not exposed communication; None for all of it.
    prior
        What is known before any run.
    """
    points = sorted(points, key=lambda each: each.count)
    unknown = unknown or "no α–β of this machine"
    reason = _refusal(points, samples, network, unknown)
    if reason:
        return Prediction(count, None, reason=reason)
    busy, own_s = _busy(points, count, samples, network, prior)
    loads, silent = loading(points, count, local, samples, alone, prior)
    target, base = busy.target, busy.level
    if loads is not None:
        waits = any(each.waits for each in points)
        target = np.maximum(target, loads.target) if waits else compete(target, loads.target)
        base = np.maximum(base, loads.level) if points[0].waits else base
    runs = sum(len(each.step_s) for each in points)
    deviation, expected = (float(np.median(each)) for each in (busy.deviation, busy.expected))
    caveats = superlinear_words(superlinear(points, prior))
    if deviation > DEVIATES * expected:
        caveats.append(
            f"the runs deviate from every curve of the model, by {percent(deviation)} in a doubling of the devices"
        )
    if runs == len(points):
        caveats.append(f"no repeats: their scatter is taken to be about {percent(prior.noise)}, as in public tables")
    caveats += [silent] if silent else []
    if network is None and len({each.count for each in points}) < SHOWN_BY:
        caveats.append(f"{unknown}, and two numbers of devices do not show communication that both hide")
    sizes = [each.samples for each in points]
    if not min(sizes) * (1 - SAME) <= samples <= max(sizes) * (1 + SAME):
        caveats.append("a device gets fewer or more samples than in any run: its time is extrapolated")
    compute_s = float(np.median(own_s)) * (1.0 if computing is None else computing)
    return Prediction(
        count,
        _interval(target, runs),
        _interval(base - target, runs),
        compute_s,
        max(0.0, float(np.exp(np.median(busy.target))) - compute_s),
        float(np.exp(np.median(loads.target))) if loads is not None else None,
        tuple(caveats),
    )


def checks(
    points: Sequence[Point],
    network: Network | None = None,
    unknown: str | None = None,
    alone: Alone | None = None,
    prior: Prior = PRIOR,
) -> list[Check]:
    """Predict each count but the smallest from the smaller ones; those of one device with other samples stay."""
    found = []
    for point in one_for_each_count(points)[1:]:
        smaller = [each for each in points if each.count < point.count]
        predicted = predict(smaller, point.count, point.local, point.samples, network, unknown, alone, prior=prior)
        found.append(Check(predicted, product_of([(1.0, point.step_s)])))
    return found


def _busy(
    points: Sequence[Point], count: int, samples: float, network: Network | None, prior: Prior
) -> tuple[Draws, Array]:
    """Draws of the step without the wait for data, and of what a device computes of it in seconds."""
    counts = np.array([*(each.count for each in points), count], dtype=float)
    sizes = np.array([*(each.samples for each in points), samples]) / points[0].samples
    several = not np.allclose(sizes, 1.0, rtol=SAME)
    first_s = float(np.mean(points[0].busy_s))
    usual = prior.growth * (np.sqrt(sizes.min()) if several else 1.0)  # of a step between the first and the shortest

    def compute(z: Array) -> Array:
        """Over that of the first point."""
        fixed = np.minimum(1.0, usual * np.exp(prior.growth_spread * z[:, 2:3]))
        return fixed + (1 - fixed) * sizes if several else np.ones_like(counts)

    def exposed(z: Array) -> Array:
        """Over the step of the first point."""
        if network is None:
            return np.zeros((len(z), 1))
        hidden = ndtr(z[:, 3]) * (network.hideable_s or first_s)
        places = {int(each): network.alone_s(int(each), ndtr(z[:, 4]), z[:, 5], z[:, 6]) for each in set(counts)}
        return np.maximum(0.0, np.column_stack([places[int(each)] - hidden for each in counts])) / first_s

    def curve(z: Array) -> Array:
        added = usual * np.exp(prior.growth_spread * z[:, :1])
        shape = SHAPES[0] + (SHAPES[1] - SHAPES[0]) * ndtr(z[:, 1:2])
        shows = exposed(z)
        own = np.maximum(1 - shows[:, :1], LEAST) * compute(z)
        return np.log(np.maximum(own + shows + added * _growth(counts / counts[0], shape), LEAST))

    places = [np.log2(counts / counts[0]), np.log2(sizes)] if several else [np.log2(counts / counts[0])]
    found = draw([each.busy_s for each in points], curve, places, 7 if network else 3 if several else 2, prior)
    z = found.unknowns
    own = np.maximum(1 - exposed(z)[:, 0], LEAST) * np.broadcast_to(compute(z), (len(z), len(counts)))[:, -1]
    return found, np.exp(found.level) * own


def _growth(times: Array, shape: Array) -> Array:
    """(n^p − 1) / (2^p − 1): 0 on as many devices as the smallest number, 1 on twice as many."""
    shape = np.where(abs(shape) < 1e-6, 1e-6, shape)
    return np.expm1(shape * np.log(times)) / np.expm1(shape * np.log(2))


def _refusal(points: Sequence[Point], samples: float, network: Network | None, unknown: str) -> str | None:
    if not points:
        return "no completed run"
    counts = {each.count for each in points}
    if len(counts) == 1 and network is None:
        return f"runs on one number of devices only, and {unknown}: run another number"
    if len(counts) == 1 and counts != {1}:
        return "runs on one number of devices only, and none on one device"
    alone = {each.samples for each in points if each.count == 1}
    if len(counts) == 1 and len(alone) == 1 and not np.isclose(samples, next(iter(alone)), rtol=SAME):
        return "a device gets another number of samples than in any run: run one device with other batch sizes"
    return None


def _interval(logs: Array, runs: int) -> Interval:
    low, value, high = (float(np.exp(each)) for each in np.quantile(logs, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]))
    return Interval(value, low, high, runs, coverage=LEVEL)
