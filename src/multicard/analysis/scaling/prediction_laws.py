"""Laws that the busy time of a step, all but the wait for data, may follow with the devices; see `prediction`."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from multicard.analysis.scaling.alpha_beta import AlphaBeta
from multicard.analysis.scaling.models import COMMUNICATION
from multicard.analysis.scaling.prediction_fits import DRAWS, SAME, Array, Fitted, Point, least_squares, standard_error
from multicard.core.text import listed
from multicard.experiment.workload import Traffic
from multicard.trace.collectives import bus_bytes

NOTHING = "no exposed communication"
GROWING = "communication growing as "
KNOWN = "communication by α–β"


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
            [np.log(own.value) + standard_error(own) * scatter[:, place, kind] for place, own in enumerate(intervals)]
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


Law = Callable[[Array], Fitted]


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

    def growing(exposed: Array | float = 0.0) -> list[Law]:
        """A cost that grows with the devices as fitted to the runs, all of it or beyond a number of devices."""
        return [
            _shape_law(
                f"{GROWING}{name.strip('()')}" + (f" beyond {hidden:.0f}" if hidden > 1 else ""),
                compute,
                asked,
                np.maximum(0.0, term(counts) - term(np.array(hidden))),
                max(0.0, float(term(np.array(float(count))) - term(np.array(hidden)))),
                weights,
                exposed,
                only_bounds=network is not None,
            )
            for (name, term), hidden in itertools.product(COMMUNICATION.items(), [1.0, *np.unique(counts)[1:-1]])
        ]

    if network is None:
        return [_known_law(NOTHING, compute, asked, np.zeros(DRAWS + 1), weights), *growing()]
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
    if counts.max() > 1:
        # Other costs may grow with the devices, such as waiting for the slowest; what the runs hide may show beyond.
        found += [*growing(), *growing(np.maximum(0.0, target - alone_s.max(axis=1)))]
    if len(set(counts)) > 2:
        for name, term in COMMUNICATION.items():
            grown, then = np.column_stack([compute, term(counts)]), np.append(asked, term(np.array(float(count))))
            words = f"{KNOWN}, and a cost {GROWING}{name.strip('()')}"
            found.append(_only_bounds(_hidden_law(words, grown, then, alone_s, target, weights)))
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


def _only_bounds(law: Law) -> Law:
    return lambda busy: replace(law(busy), only_bounds=True)


def _shape_law(
    name: str,
    compute: Array,
    asked: Array,
    column: Array,
    target: float,
    weights: Array,
    exposed: Array | float,
    only_bounds: bool,
) -> Law:
    """Compute and a term of a known shape and unknown size, and what is exposed beyond the runs."""

    def law(busy: Array) -> Fitted:
        matrix = np.column_stack([compute, column])
        theta = least_squares(np.broadcast_to(matrix, (len(busy), *matrix.shape)), busy, weights)
        own = float(theta[0, :-1] @ asked)
        total = theta @ np.append(asked, target) + exposed
        return Fitted(name, total, matrix @ theta[0], matrix.shape[1], own, only_bounds=only_bounds)

    return law


def _share_law(name: str, compute: Array, asked: Array, alone: Array, target: Array, weights: Array) -> Law:
    """Compute and a share of the time that communication takes alone; more than all where others use the network."""

    def law(busy: Array) -> Fitted:
        matrix = np.concatenate([np.broadcast_to(compute, (len(busy), *compute.shape)), alone[:, :, None]], axis=2)
        theta = least_squares(matrix, busy, weights)
        own = theta[:, :-1] @ asked
        uncertain = theta[0, -1] * alone.std(axis=0)
        return Fitted(
            name, own + theta[:, -1] * target, matrix[0] @ theta[0], matrix.shape[2], float(own[0]), uncertain
        )

    return law


def _offset_law(name: str, compute: Array, asked: Array, alone: Array, target: Array, weights: Array) -> Law:
    """Compute, and all of the communication."""

    def law(busy: Array) -> Fitted:
        theta = least_squares(np.broadcast_to(compute, (len(busy), *compute.shape)), busy - alone, weights)
        own = theta @ asked
        at_points = compute @ theta[0] + alone[0]
        return Fitted(name, own + target, at_points, compute.shape[1], float(own[0]), alone.std(axis=0))

    return law


def _known_law(name: str, compute: Array, asked: Array, exposed: Array, weights: Array) -> Law:
    """Compute alone is fitted."""

    def law(busy: Array) -> Fitted:
        theta = least_squares(np.broadcast_to(compute, (len(busy), *compute.shape)), busy, weights)
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
                theta = least_squares(np.concatenate([stack, column], axis=2), busy - alone * shown, weights)
                off = theta[:, -1]
                theta = theta[:, :-1]
            else:
                theta = least_squares(stack, busy, weights)
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
