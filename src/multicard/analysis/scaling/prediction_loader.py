"""Laws that the pace of the loader may follow with the number of devices; see `prediction`."""

from collections.abc import Callable, Sequence

import numpy as np

from multicard.analysis.scaling.prediction_fits import (
    DRAWS,
    SAME,
    Fitted,
    Point,
    admitted,
    drawn,
    least_squares,
    standard_error,
)
from multicard.analysis.statistics import Interval

LOADER_ALONE = "the loader as fast as alone with the workers of all ranks of a node"

# Samples per second of the loaders of so many devices of a node, measured alone; None where that is not known.
Alone = Callable[[int], Interval | None]


def loader_laws(
    points: Sequence[Point], count: int, local: int, samples: float, rng: np.random.Generator, alone: Alone | None
) -> tuple[list[Fitted], tuple[str, ...]]:
    """The loader's laws, fitted where it made ranks wait, else as fast as `alone`; and what is not known of it."""
    waiting = [each for each in points if each.waits]
    if alone is not None and (law := _loader_alone(points, waiting, local, samples, rng, alone)):
        return [law], () if waiting else ("the loader never made a rank wait: it is taken to be as fast as alone",)
    if not waiting:
        return [], ("the loader never made a rank wait, so its limit is not known",)
    times, noise = drawn([np.array(each.step_s) for each in waiting], rng)
    weights = np.sqrt([len(each.step_s) for each in waiting])
    kinds = {"each rank loads for itself": lambda n, s: s, "ranks of a node share what it loads": lambda n, s: n * s}
    found = []
    for words, work in kinds.items():
        column = np.array([work(each.local, each.samples) for each in waiting])[:, None]
        theta = least_squares(np.broadcast_to(column, (len(times), *column.shape)), times, weights)
        rate = float(theta[0, 0])
        if any(rate * work(each.local, each.samples) > np.mean(each.step_s) * (1 + SAME) for each in points):
            continue
        found.append(Fitted(words, theta[:, 0] * work(local, samples), column @ theta[0], 1))
    if found:
        return admitted(found, waiting, times[0], noise), ()
    both = np.array([[each.samples, each.local * each.samples] for each in waiting])
    theta = least_squares(np.broadcast_to(both, (len(times), *both.shape)), times, weights)
    target = theta @ np.array([samples, local * samples])
    return [Fitted("loading partly shared by the ranks of a node", target, both @ theta[0], 2)], ()


def _loader_alone(
    points: Sequence[Point],
    waiting: Sequence[Point],
    local: int,
    samples: float,
    rng: np.random.Generator,
    alone: Alone,
) -> Fitted | None:
    """A loader as fast as alone with the workers of all ranks of a node, or where ranks waited slower by a factor.

    None where its rate is not known for the ranks of any of the nodes, or the runs contradict it.
    """
    known = {each: alone(each) for each in {local, *(each.local for each in points)}}
    rates = {each: known[each] for each in {local, *(each.local for each in waiting)}}
    if not all(rates.values()):
        return None
    scatter = {each: np.concatenate([[0.0], rng.standard_normal(DRAWS)]) for each in rates}
    # Of a sample.
    seconds = {each: np.exp(-standard_error(rate) * scatter[each]) / rate.value for each, rate in rates.items()}
    asked = local * samples * seconds[local]
    if waiting:
        times, noise = drawn([np.array(each.step_s) for each in waiting], rng)
        column = np.column_stack([each.local * each.samples * seconds[each.local] for each in waiting])
        theta = least_squares(column[:, :, None], times, np.sqrt([len(each.step_s) for each in waiting]))[:, 0]
        fitted = Fitted(LOADER_ALONE, theta * asked, column[0] * theta[0], 1)
        if admitted([fitted], waiting, times[0], noise)[0].deviation:
            return None
    else:
        theta, fitted = np.ones(DRAWS + 1), Fitted(LOADER_ALONE, asked, np.array([]), 0)
    steps = [
        (theta[0] * each.local * each.samples / rate.value, float(np.mean(each.step_s)))
        for each in points
        if (rate := known[each.local])
    ]
    return None if any(loading > step * (1 + SAME) for loading, step in steps) else fitted
