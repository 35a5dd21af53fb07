"""How long the loader takes for a step, with the number of devices; see `prediction`."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtr

from multicard.analysis.scaling.network import standard_error
from multicard.analysis.scaling.points import SAME, Point
from multicard.analysis.scaling.posterior import DRAWS, Array, Draws, Prior, draw
from multicard.analysis.statistics import Interval

# Samples per second of the loaders of so many devices of a node, measured alone; None where that is not known.
Alone = Callable[[int], Interval | None]

# Loading and computing compete: a step takes (busy^k + loading^k)^(1/k), with 1/k from 0 (the longer of both) to this.
# In a public table, a loader alone, synthetic batches and both together have 0.2, 0.4, 0.5 and 0.8.
MOST_COMPETITION = 0.8


def loading(
    points: Sequence[Point], count: int, local: int, samples: float, alone: Alone | None, prior: Prior
) -> tuple[Draws | None, str | None]:
    """Draws of the time that loading takes, fitted where ranks waited, else as fast as `alone`; and what is not known.

    Where ranks waited, each loads for itself, or the ranks of a node share what it can load, or something between. If
    the loader was measured alone with the workers of all ranks of a node, it is as fast as that, times a factor.
    """
    waiting = [each for each in points if each.waits]
    asked = Point(count, local, samples, (), ())
    if alone is not None and (found := _as_alone(waiting, asked, points, alone, prior)):
        return found, None if waiting else "the loader never made a rank wait: it is taken to be as fast as alone"
    if not waiting:
        return None, "the loader never made a rank wait, so its limit is not known"
    others = [each for each in points if not each.waits]
    ranks, sizes = np.array([(each.local, each.samples) for each in (*waiting, asked, *others)], dtype=float).T

    def curve(z: Array) -> Array:
        shared = np.sin(np.pi / 2 * ndtr(z[:, :1])) ** 2  # rather none or all than between
        return np.log(sizes) + shared * np.log(ranks)

    return _fitted(waiting, asked, others, curve, prior), None


def compete(busy: Array, loaded: Array) -> Array:
    """Log time of a step of which nothing is measured together, by draw."""
    share = MOST_COMPETITION * np.random.default_rng(2).random(len(busy))
    longer, shorter = np.maximum(busy, loaded), np.minimum(busy, loaded)
    return longer + share * np.log1p(np.exp((shorter - longer) / np.maximum(share, 1e-3)))


def _as_alone(
    waiting: Sequence[Point], asked: Point, points: Sequence[Point], alone: Alone, prior: Prior
) -> Draws | None:
    """As fast as alone, or where ranks waited slower by a factor.

    None where its rate is not known for the ranks of any of the nodes, or the runs contradict it.
    """
    others = [each for each in points if not each.waits and alone(each.local)]
    places = [*waiting, asked, *others]
    rates = [alone(each.local) for each in places]
    if not all(rates):
        return None
    logs = np.log([each.local * each.samples / rate.value for each, rate in zip(places, rates, strict=True)])
    errors = np.array([standard_error(rate) for rate in rates])
    if waiting:
        return _fitted(waiting, asked, others, lambda z: logs + errors * z[:, :1], prior)
    if (logs[1:] > _at_most(others)).any():
        return None
    target, nothing = logs[0] + errors[0] * np.random.default_rng(3).standard_normal(DRAWS), np.zeros(DRAWS)
    return Draws(target, target, nothing[:, None], nothing, nothing)


def _fitted(
    waiting: Sequence[Point], asked: Point, others: Sequence[Point], curve: Callable[[Array], Array], prior: Prior
) -> Draws | None:
    counts = np.array([each.count for each in (*waiting, asked)])
    repeats = [np.array(each.step_s) for each in waiting]
    return draw(repeats, curve, [np.log2(counts / counts[0])], 1, prior, _at_most(others) if others else None)


def _at_most(points: Sequence[Point]) -> Array:
    """Log of what loading takes at most where no rank waited."""
    return np.log([np.mean(each.step_s) * (1 + SAME) for each in points])
