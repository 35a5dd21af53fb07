"""Laws that the time of a step may follow with the number of devices, fitted to runs; see `prediction`.

A law is fitted to every draw of the measured means at once: arrays are draws × points, or draws × points × parameters.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtrc

from multicard.analysis.alpha_beta import AlphaBeta
from multicard.analysis.scaling_models import COMMUNICATION
from multicard.analysis.statistics import ROUNDING, Interval
from multicard.core.text import listed
from multicard.experiment.workload import Traffic
from multicard.trace.collectives import bus_bytes

DRAWS = 1000  # in pairs, errors of both signs, so that few give steady ends
WAITS = 0.05  # share of a step that waits for data from which on the loader sets its pace
SAME = 0.05  # relative difference of samples or times up to which they are the same
REJECTED = 0.01  # p-value up to which runs contradict a law; at 5% the true one would be lost as often as that
LOADER_ALONE = "the loader as fast as alone with the workers of all ranks of a node"
NOTHING = "no exposed communication"
GROWING = "communication growing as "
KNOWN = "communication by α–β"
TWO_SIDED = 1.96  # standard errors of a 95% interval

Array = np.ndarray
# Samples per second of the loaders of so many devices of a node, measured alone; None where that is not known.
Alone = Callable[[int], Interval | None]


@dataclass(frozen=True)
class Point:
    """Runs of one configuration on one number of devices.

    Attributes
    ----------
    count
        What is predicted over: devices of a node, or nodes with equally many devices.
    local
        Devices of a node.
    samples
        Of a device and step.
    step_s, waited_s
        Of each repeat: seconds of a step, and of them the wait for data, unless loading is a part of the step itself.
    """

    count: int
    local: int
    samples: float
    step_s: tuple[float, ...]
    waited_s: tuple[float, ...]

    @property
    def busy_s(self) -> Array:
        """Seconds of a step without the wait, by repeat."""
        return np.array(self.step_s) - np.array(self.waited_s)

    @property
    def waits(self) -> bool:
        """Whether the loader sets the pace."""
        return float(np.mean(self.waited_s)) >= WAITS * float(np.mean(self.step_s))


@dataclass(frozen=True)
class Network:
    """What is known of communication beside the runs: fits of all-reduces by devices, and collectives of a step.

    `traffic` gives those of a rank on so many devices. `hideable_s`: seconds of a step that computing could hide at
    most, the backward pass, where it is known.
    """

    fits: Mapping[int, AlphaBeta]
    traffic: Callable[[int], Sequence[Traffic]]
    hideable_s: float | None = None


def communication_s(
    fits: Mapping[int, AlphaBeta], traffic: Sequence[Traffic], devices: int, by_ring: bool, scatter: Array
) -> Array:
    """Seconds that collectives take alone, for each draw of standard normal errors of log α and log β.

    `scatter` has draws × measured counts × 2 of them, since every count was measured and fitted by itself.

    Between the counts whose all-reduces were measured α and β are interpolated. Beyond the largest, β stays, since the
    bus bandwidth of a node does not depend on the devices, and α grows as a ring's steps (n − 1) or a tree's (log2 n).
    """
    counts = sorted(fits)
    if devices < 2 or not traffic:
        return np.zeros(len(scatter))
    largest = counts[-1]
    grown = (devices - 1) / (largest - 1) if by_ring else np.log2(devices) / np.log2(largest)
    alpha, beta = (
        np.exp(
            [np.log(own.value) + _error(own) * scatter[:, place, kind] for place, own in enumerate(intervals)]
        )  # counts × draws
        for kind, intervals in enumerate(
            ([fits[each].alpha_s for each in counts], [fits[each].beta_bytes_per_s for each in counts])
        )
    )
    # Between counts as np.interp does, beyond them as at the ends.
    upper = min(int(np.searchsorted(counts, devices)), len(counts) - 1)
    lower = upper if devices >= counts[upper] or upper == 0 else upper - 1
    part = 0.0 if lower == upper else (devices - counts[lower]) / (counts[upper] - counts[lower])
    alpha_s, bytes_per_s = (values[lower] * (1 - part) + values[upper] * part for values in (alpha, beta))
    bus = sum(bus_bytes(each.collective, each.bytes, devices) for each in traffic)
    return sum(each.messages for each in traffic) * alpha_s * max(1.0, grown) + bus / bytes_per_s


@dataclass(frozen=True)
class Fitted:
    """A law fitted to every draw: seconds at what is asked for (draws), at the points (of the first draw)."""

    words: str
    target: Array
    at_points: Array
    parameters: int
    compute: float = 0.0
    uncertain: Array | float = 0.0  # standard error at the points, beside that of the runs
    deviation: float = 0.0  # the largest from the runs, relative, of a law that they contradict


Law = Callable[[Array], Fitted]


def drawn(values: Sequence[Array], rng: np.random.Generator) -> tuple[Array, float | None]:
    """Means of each point (draws × points), the first draw as measured; and the relative scatter of repeats.

    The scatter is None without repeats; then all draws are as measured.
    """
    means = np.array([each.mean() for each in values])
    freedom = sum(len(each) - 1 for each in values)
    if freedom == 0:
        return np.tile(means, (DRAWS + 1, 1)), None
    squares = sum(((each / mean - 1) ** 2).sum() for each, mean in zip(values, means, strict=True))
    noise = float(np.sqrt(squares / freedom))
    spread = noise * np.sqrt(freedom / rng.chisquare(freedom, (DRAWS // 2, 1)))
    errors = spread * rng.standard_normal((DRAWS // 2, len(values))) / np.sqrt([len(each) for each in values])
    return means * np.vstack([np.ones(len(values)), 1 + errors, 1 - errors]), noise


def busy_laws(
    points: Sequence[Point], count: int, samples: float, network: Network | None, rng: np.random.Generator
) -> list[Law]:
    """Laws of a step without the wait for data."""
    counts = np.array([each.count for each in points], dtype=float)
    of_device = np.array([each.samples for each in points])
    alone = {round(each.samples, 6) for each in points if each.count == 1}
    constant = [np.ones_like(of_device)] if len(alone) > 1 else []
    compute = np.column_stack([of_device, *constant])
    asked = np.array([samples, *(1.0 for _ in constant)])
    weights = np.sqrt([len(each.step_s) for each in points])
    if network is None:
        # All up to a number of devices may be hidden, of those between the smallest and the largest.
        shapes = itertools.product(COMMUNICATION.items(), [1.0, *np.unique(counts)[1:-1]])
        return [_known_law(NOTHING, compute, asked, np.zeros(DRAWS + 1), weights)] + [
            _shape_law(
                f"{GROWING}{name.strip('()')}" + (f" beyond {hidden:.0f}" if hidden > 1 else ""),
                compute,
                asked,
                np.maximum(0.0, term(counts) - term(np.array(hidden))),
                max(0.0, float(term(np.array(float(count))) - term(np.array(hidden)))),
                weights,
            )
            for (name, term), hidden in shapes
        ]
    errors = rng.standard_normal((DRAWS, len(network.fits), 2))
    scatter = np.concatenate([np.zeros((1, *errors.shape[1:])), errors])
    found: list[Law] = []
    beyond = count > max(network.fits)
    for by_ring in (False, True) if beyond else (False,):
        grows = f", α growing as {'n − 1' if by_ring else 'log2 n'} beyond {max(network.fits)}" if beyond else ""
        alone_s = np.column_stack(
            [communication_s(network.fits, network.traffic(int(n)), int(n), by_ring, scatter) for n in counts]
        )
        target = communication_s(network.fits, network.traffic(count), count, by_ring, scatter)
        if counts.max() == 1:
            hideable = network.hideable_s if network.hideable_s is not None else float(points[0].busy_s.mean())
            for hidden, words in ((0.0, "all exposed"), (hideable, "hidden by the backward pass")):
                found.append(
                    _known_law(f"{KNOWN}, {words}{grows}", compute, asked, np.maximum(0, target - hidden), weights)
                )
            continue
        found.append(_known_law(NOTHING, compute, asked, np.zeros_like(target), weights))
        found.append(
            _hidden_law(f"{KNOWN}, as much hidden as in the runs{grows}", compute, asked, alone_s, target, weights)
        )
        found.append(_share_law(f"{KNOWN}, a share of it exposed{grows}", compute, asked, alone_s, target, weights))
        if len(constant) == 0 and not np.allclose(of_device, of_device[0], rtol=SAME):
            # Part of a step may not depend on the batch, which runs on other batch sizes would tell.
            fixed = np.column_stack([of_device, np.ones_like(of_device)])
            words = f"{KNOWN}, all exposed, part of the compute time fixed{grows}"
            found.append(_offset_law(words, fixed, np.array([samples, 1.0]), alone_s, target, weights))
    return found


def words_of(laws: Sequence[str]) -> str:
    """Name laws, separated by "; ", those of a fitted growth together.

    >>> words_of([NOTHING, f"{GROWING}n − 1", f"{GROWING}log2 n", f"{GROWING}1 − 1/n"])
    'no exposed communication; communication growing as n − 1, log2 n or 1 − 1/n'
    """
    growing = [each.removeprefix(GROWING) for each in laws if each.startswith(GROWING)]
    together = [f"{GROWING}{listed(growing, 'or')}"] if growing else []
    known = [each for each in laws if not each.startswith(GROWING)]
    return "; ".join(each for each in (*known[:1], *together, *known[1:]))


def _shape_law(name: str, compute: Array, asked: Array, column: Array, target: float, weights: Array) -> Law:
    """Compute and a communication term of a known shape and unknown size."""

    def law(busy: Array) -> Fitted:
        matrix = np.column_stack([compute, column])
        theta = _least_squares(np.broadcast_to(matrix, (len(busy), *matrix.shape)), busy, weights)
        own = float(theta[0, :-1] @ asked)
        return Fitted(name, theta @ np.append(asked, target), matrix @ theta[0], matrix.shape[1], own)

    return law


def _share_law(name: str, compute: Array, asked: Array, alone: Array, target: Array, weights: Array) -> Law:
    """Compute and a share of the time that communication takes alone; more than all where others use the network."""

    def law(busy: Array) -> Fitted:
        matrix = np.concatenate([np.broadcast_to(compute, (len(busy), *compute.shape)), alone[:, :, None]], axis=2)
        theta = _least_squares(matrix, busy, weights)
        own = theta[:, :-1] @ asked
        uncertain = theta[0, -1] * alone.std(axis=0)
        return Fitted(
            name, own + theta[:, -1] * target, matrix[0] @ theta[0], matrix.shape[2], float(own[0]), uncertain
        )

    return law


def _offset_law(name: str, compute: Array, asked: Array, alone: Array, target: Array, weights: Array) -> Law:
    """Compute, and all of the communication."""

    def law(busy: Array) -> Fitted:
        theta = _least_squares(np.broadcast_to(compute, (len(busy), *compute.shape)), busy - alone, weights)
        own = theta @ asked
        at_points = compute @ theta[0] + alone[0]
        return Fitted(name, own + target, at_points, compute.shape[1], float(own[0]), alone.std(axis=0))

    return law


def _known_law(name: str, compute: Array, asked: Array, exposed: Array, weights: Array) -> Law:
    """Compute alone is fitted."""

    def law(busy: Array) -> Fitted:
        theta = _least_squares(np.broadcast_to(compute, (len(busy), *compute.shape)), busy, weights)
        own = theta @ asked
        return Fitted(name, own + exposed, compute @ theta[0], compute.shape[1], float(own[0]))

    return law


def _hidden_law(name: str, compute: Array, asked: Array, alone: Array, target: Array, weights: Array) -> Law:
    """Compute and what of the communication is more than is hidden, which is fitted.

    Linear once it is known at which points something shows. Those are tried in the order of the time that communication
    takes, and for each draw the one that leaves least is taken. Where nothing shows, what is hidden is the most that
    was measured, at least.
    """

    def law(busy: Array) -> Fitted:
        draws, order = len(busy), np.argsort(alone[0])
        best = np.full(draws, np.inf)
        own, hidden, fitted = np.zeros(draws), np.zeros(draws), np.zeros_like(busy[0])
        for first in range(len(order), 0, -1):
            shown = np.zeros(len(order), dtype=bool)
            shown[order[first:]] = True
            if (alone[0][shown] == 0).any():
                break
            stack = np.broadcast_to(compute, (draws, *compute.shape))
            if shown.any():
                column = np.broadcast_to(-shown.astype(float)[:, None], (draws, len(order), 1))
                theta = _least_squares(np.concatenate([stack, column], axis=2), busy - alone * shown, weights)
                off = theta[:, -1]
                theta = theta[:, :-1]
            else:
                theta = _least_squares(stack, busy, weights)
                off = alone.max(axis=1)
            times = theta @ compute.T + np.maximum(0, alone - off[:, None])
            left = ((weights * (times / busy - 1)) ** 2).sum(axis=1)
            better = left < best - 1e-12
            best = np.where(better, left, best)
            own, hidden = np.where(better, theta @ asked, own), np.where(better, off, hidden)
            fitted = times[0] if better[0] else fitted
        exposed = np.maximum(0, target - hidden)
        return Fitted(name, own + exposed, fitted, compute.shape[1] + 1, float(own[0]), alone.std(axis=0))

    return law


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
        theta = _least_squares(np.broadcast_to(column, (len(times), *column.shape)), times, weights)
        rate = float(theta[0, 0])
        if any(rate * work(each.local, each.samples) > np.mean(each.step_s) * (1 + SAME) for each in points):
            continue
        found.append(Fitted(words, theta[:, 0] * work(local, samples), column @ theta[0], 1))
    if found:
        return admitted(found, waiting, times[0], noise), ()
    both = np.array([[each.samples, each.local * each.samples] for each in waiting])
    theta = _least_squares(np.broadcast_to(both, (len(times), *both.shape)), times, weights)
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
    seconds = {each: np.exp(-_error(rate) * scatter[each]) / rate.value for each, rate in rates.items()}  # of a sample
    asked = local * samples * seconds[local]
    if waiting:
        times, noise = drawn([np.array(each.step_s) for each in waiting], rng)
        column = np.column_stack([each.local * each.samples * seconds[each.local] for each in waiting])
        theta = _least_squares(column[:, :, None], times, np.sqrt([len(each.step_s) for each in waiting]))[:, 0]
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


def admitted(fitted: Sequence[Fitted], points: Sequence[Point], means: Array, noise: float | None) -> list[Fitted]:
    """Those laws that deviate from the means no more than repeats scatter; without repeats, or of none, the nearest."""
    counts = np.array([len(each.step_s) for each in points])
    deviations = [(each.at_points / means - 1) ** 2 for each in fitted]
    left = [float((counts * each).sum()) for each in deviations]
    repeats = int((counts - 1).sum())
    if noise is None or repeats == 0:
        tested = all(each.parameters < len(points) for each in fitted)
        return [fitted[int(np.argmin(left))]] if tested else list(fitted)
    found = []
    for each, squares in zip(fitted, deviations, strict=True):
        free = len(points) - each.parameters
        variances = max(noise, ROUNDING) ** 2 / counts + (each.uncertain / means) ** 2
        if free < 1 or float(fdtrc(free, repeats, (squares / variances).sum() / free)) > REJECTED:
            found.append(each)
    if found:
        return found
    nearest = fitted[int(np.argmin(left))]
    deviation = float(np.sqrt(max(deviations[int(np.argmin(left))])))
    return [replace(nearest, words=f"{nearest.words} (deviates from the runs)", deviation=deviation)]


def _least_squares(matrix: Array, values: Array, weights: Array) -> Array:
    """Coefficients ≥ 0 with the least squares of relative errors: of each draw, draws × parameters.

    Of the few parameters every subset is fitted, and the best without negative ones taken: Charles Lawson and Richard
    Hanson, Solving Least Squares Problems, chapter 23.
    """
    scale = weights / values[0]
    alike = matrix.strides[0] == 0  # one matrix for all draws, inverted once
    a, y = (matrix[:1] if alike else matrix) * scale[:, None], values * scale
    draws, parameters = len(y), a.shape[2]
    best, found = np.full(draws, np.inf), np.zeros((draws, parameters))
    for size in range(parameters, 0, -1):
        for chosen in itertools.combinations(range(parameters), size):
            part = a[:, :, chosen]
            theta = (np.linalg.pinv(part) @ y[:, :, None])[:, :, 0]
            left = ((y - (part @ theta[:, :, None])[:, :, 0]) ** 2).sum(axis=1)
            better = (theta >= 0).all(axis=1) & (left < best - 1e-12)
            best = np.where(better, left, best)
            whole = np.zeros((draws, parameters))
            whole[:, chosen] = theta
            found = np.where(better[:, None], whole, found)
    return found


def _error(interval: Interval) -> float:
    """Standard error of the logarithm; 0 where the interval has no ends."""
    if interval.low is None or not 0 < interval.low < interval.high < np.inf:
        return 0.0
    return float(np.log(interval.high / interval.low)) / (2 * TWO_SIDED)
