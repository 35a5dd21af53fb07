"""Step time on a number of devices that did not run, from runs on others.

T(n) = max(L(n), C(n) + E(n)): the loader, or what a device computes and the communication that it does not hide.
Without the wait for data, a step is C + E. Where it waits, it is L.

- C grows with the samples of a device. Where one device ran several batch sizes it is a constant and a part per sample.
- With the latency α and the bandwidth β of all-reduces on this machine and the bytes that a step exchanges, the time of
  communication K(n) = messages · α(n) + bytes on the bus / β(n) is known. Two laws say how much of it shows:
  max(0, K − hidden), where computing hides as much whatever n is, and a share of K. Or none of it shows.
- Else a communication term of the scaling models is fitted: that of a ring's bandwidth (1 − 1/n), log2 n, or n − 1; all
  of it, or what it is more than on a number of devices between the smallest and the largest.
- L is either each rank's own, or the ranks of a node share what the node can load. Where the loader was measured alone
  on this machine with the workers of all ranks of a node, it is that, times one factor where ranks waited.

No run tells which law holds further on. Every law counts that the runs do not contradict (F test of lack of fit at 1%):
the value is their geometric mean, the interval reaches over all of them. That of a law comes from a parametric
bootstrap: means by count scatter as Student's t with the pooled scatter of repeats says, logarithms of α and β as their
intervals say. So it covers the truth with about 95% or more where one of the laws holds. It is stretched by what the
nearest law deviates where the runs contradict all, and by what the interval of the last check missed: the largest
count, left out. A check predicts a count from smaller ones alone.

Norman Draper and Harry Smith, Applied Regression Analysis, 3rd ed., section 2.1; Bradley Efron and Robert Tibshirani,
An Introduction to the Bootstrap, section 6.5. α and β: `multicard.analysis.scaling.alpha_beta`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multicard.analysis.runs.breakdown import COMMUNICATION, COMPUTE, DATA
from multicard.analysis.scaling.prediction_fits import SAME, Point, admitted, drawn
from multicard.analysis.scaling.prediction_laws import Network, busy_laws
from multicard.analysis.scaling.prediction_loader import Alone, loader_laws
from multicard.analysis.statistics import LEVEL, Interval, product_of


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a number of devices, or why nothing is.

    Attributes
    ----------
    step_s
        Seconds of a step; without bounds where no repeats tell the scatter. `repeats` is the number of runs behind it.
    compute_s, communication_s, loader_s
        Its terms, means of the laws; of the loader None where it never made a rank wait.
    laws
        Those that count, in words.
    """

    count: int
    step_s: Interval | None
    compute_s: float | None = None
    communication_s: float | None = None
    loader_s: float | None = None
    laws: tuple[str, ...] = ()
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
    """A measured count as predicted from the smaller ones, of which the `largest` is one."""

    predicted: Prediction
    measured: Interval
    largest: int

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less 1."""
        return self.predicted.step_s.value / self.measured.value - 1 if self.predicted.step_s else None

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured mean; None where there is none."""
        step = self.predicted.step_s
        return None if step is None or step.low is None else step.low <= self.measured.value <= step.high


def predict(
    points: Sequence[Point],
    count: int,
    local: int,
    samples: float,
    network: Network | None = None,
    beyond: float = 0.0,
    unknown: str | None = None,
    alone: Alone | None = None,
) -> Prediction:
    """Predict the time of a step.

    Parameters
    ----------
    points
        Runs, of which those on one device may have several numbers of samples.
    count, local, samples
        What is asked for.
    network
        What is known of communication; None for nothing.
    beyond
        By how much the last check was outside of its interval, by `missed`.
    unknown
        Why nothing is known of communication.
    alone
        What is known of the loader beside the runs.
    """
    points = sorted(points, key=lambda each: (each.count, each.samples))
    unknown = unknown or "no α–β of this machine"
    reason = _refusal(points, samples, network, unknown)
    if reason:
        return Prediction(count, None, reason=reason)
    rng = np.random.default_rng(0)
    busy, busy_noise = drawn([each.busy_s for each in points], rng)
    laws = busy_laws(points, count, samples, network, rng)
    fitted = admitted([law(busy) for law in laws], points, busy[0], busy_noise)
    loaders, caveats = loader_laws(points, count, local, samples, rng, alone)
    main = [each for each in fitted if not each.only_bounds] or fitted
    compute = _mean([each.compute for each in main])
    busy_s = _mean([each.target[0] for each in main])
    totals, values = (
        [
            each.target if loader is None else np.maximum(each.target, loader.target)
            for each, loader in itertools.product(laws, loaders or [None])
        ]
        for laws in (fitted, main)
    )
    value = _mean([total[0] for total in values])
    low = high = None
    counts = {each.count for each in points}
    if len(counts) == 1:
        caveats = (*caveats, "no interval: runs on one number of devices do not show what grows with them")
    elif busy_noise is not None:
        beyond += max(each.deviation for each in (*fitted, *loaders))
        ends = np.array([np.quantile(total[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) for total in totals])
        low, high = (float(end) for end in (ends[:, 0].min() * np.exp(-beyond), ends[:, 1].max() * np.exp(beyond)))
        if low <= 0:  # as far as the repeats tell, a step might take no time
            low = high = None
            caveats = (*caveats, "no interval: the repeats are too few for how much they scatter")
    words = tuple(dict.fromkeys(each.words for each in (*main, *loaders)))
    if busy_noise is None and len(counts) > 1:
        caveats = (*caveats, "no interval: no repeats")
    if network is None:
        caveats = (*caveats, f"{unknown}: hidden communication may become exposed")
    sizes = [each.samples for each in points]
    if not min(sizes) * (1 - SAME) <= samples <= max(sizes) * (1 + SAME):
        caveats = (*caveats, "a device gets fewer or more samples than in any run: its time is extrapolated")
    return Prediction(
        count,
        Interval(value, low, high, sum(len(each.step_s) for each in points), coverage=None if low is None else LEVEL),
        compute,
        max(0.0, busy_s - compute),
        _mean([each.target[0] for each in loaders]) if loaders else None,
        words,
        caveats,
    )


def checks(
    points: Sequence[Point], network: Network | None = None, unknown: str | None = None, alone: Alone | None = None
) -> list[Check]:
    """Predict each count but the smallest from the smaller ones; those of one device with other samples stay."""
    found = []
    for point in _scaled(points)[1:]:
        smaller = [each for each in points if each.count < point.count]
        beyond = missed(found, point.count)
        predicted = predict(smaller, point.count, point.local, point.samples, network, beyond, unknown, alone)
        largest = max(each.count for each in smaller)
        found.append(Check(predicted, product_of([(1.0, point.step_s)]), largest))
    return found


def missed(found: Sequence[Check], count: int) -> float:
    """How far the interval of a count is to be stretched, as a logarithm, for what the last check missed.

    As far as the check with an interval was outside of it, times as many devices as are to be added, over those that
    the check added: what no law has may grow with them. 0 where it was inside, or there is none.
    """
    counts = [check.predicted.count for check in found]
    for place in reversed(range(len(found))):
        step, measured = found[place].predicted.step_s, found[place].measured.value
        if step is not None and step.low is not None:
            outside = max(0.0, float(np.log(step.low / measured)), float(np.log(measured / step.high)))
            added = counts[place] - found[place].largest
            return outside * max(1.0, (count - counts[-1]) / added)
    return 0.0


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


def _scaled(points: Sequence[Point]) -> list[Point]:
    """One point for each count: of one device that with the most samples."""
    return list({each.count: each for each in sorted(points, key=lambda each: (each.count, each.samples))}.values())


def _mean(values: Sequence[float]) -> float:
    """Geometric mean; 0 where one is."""
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else 0.0
