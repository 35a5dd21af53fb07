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
    others = [each for each in points if not each.waits]
    if alone is not None:
        found = _as_alone(waiting, others, count, local, samples, alone, prior)
        if found is not None:
            return found, None if waiting else "the loader never made a rank wait: it is taken to be as fast as alone"
    if not waiting:
        return None, "the loader never made a rank wait, so its limit is not known"
    asked = [(each.local, each.samples) for each in waiting] + [(local, samples)]
    ranks, sizes = np.array([*asked, *((each.local, each.samples) for each in others)], dtype=float).T

    def curve(z: Array) -> Array:
        shared = np.sin(np.pi / 2 * ndtr(z[:, :1])) ** 2  # rather none or all than between
        return np.log(sizes) + shared * np.log(ranks)

    return _fitted(waiting, others, count, curve, 1, prior), None


def compete(busy: Array, loaded: Array) -> Array:
    """Log time of a step of which nothing is measured together, by draw."""
    share = MOST_COMPETITION * np.random.default_rng(2).random(len(busy))
    longer, shorter = np.maximum(busy, loaded), np.minimum(busy, loaded)
    return longer + share * np.log1p(np.exp((shorter - longer) / np.maximum(share, 1e-3)))


def _as_alone(
    waiting: Sequence[Point],
    others: Sequence[Point],
    count: int,
    local: int,
    samples: float,
    alone: Alone,
    prior: Prior,
) -> Draws | None:
    """As fast as alone, or where ranks waited slower by a factor.

    None where its rate is not known for the ranks of any of the nodes, or the runs contradict it.
    """
    others = [each for each in others if alone(each.local)]
    asked = [*((each.local, each.samples) for each in waiting), (local, samples)]
    rates = [alone(ranks) for ranks, _ in (*asked, *((each.local, each.samples) for each in others))]
    if not all(rates):
        return None
    work = np.array([ranks * size for ranks, size in (*asked, *((each.local, each.samples) for each in others))])
    logs = np.log(work / [each.value for each in rates])
    errors = np.array([standard_error(each) for each in rates])
    if waiting:
        return _fitted(waiting, others, count, lambda z: logs + errors * z[:, :1], 1, prior)
    if (logs[1:] > _at_most(others)).any():
        return None
    target = logs[0] + errors[0] * np.random.default_rng(3).standard_normal(DRAWS)
    nothing = np.zeros(DRAWS)
    return Draws(target, target, nothing[:, None], nothing, nothing)


def _fitted(
    waiting: Sequence[Point],
    others: Sequence[Point],
    count: int,
    curve: Callable[[Array], Array],
    dimensions: int,
    prior: Prior,
) -> Draws | None:
    counts = np.array([*(each.count for each in waiting), count])
    place = np.log2(counts / counts[0])
    repeats = [np.array(each.step_s) for each in waiting]
    return draw(repeats, curve, [place], dimensions, prior, _at_most(others) if others else None)


def _at_most(points: Sequence[Point]) -> Array:
    """Log of what loading takes at most where no rank waited."""
    return np.array([np.log(np.mean(each.step_s) * (1 + SAME)) for each in points])
