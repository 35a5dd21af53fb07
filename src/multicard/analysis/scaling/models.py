"""Scaling models: the serial fraction that a speed-up implies, and models fitted to runs on several device counts.

The models, for the time T of a step on n devices:

- strong scaling, where the devices share one batch: Amdahl's T1 (1 − p + p/n), and the same with a communication
  term, c (n − 1) or c log2 n;
- weak scaling, where each device keeps its batch: Gustafson's T1 n / (n − s (n − 1)), whose speed-up is n − s (n − 1),
  and T1 with a communication term, c (n − 1), c log2 n or c (1 − 1/n). The last is the time of a ring all-reduce,
  which moves 2 (1 − 1/n) times the gradients through each device. Under strong scaling it is indistinguishable from
  the serial part.

The communication term with the smallest residual is taken; with few device counts that choice is weak.

Every run is a point, and counts by its error relative to the mean time on its number of devices. What repeats scatter
around that mean is pure error; what the means deviate from the model beyond it is lack of fit. Whether a model predicts
is seen from the largest number of devices, which is left out and predicted from the others.
Norman Draper and Harry Smith, Applied Regression Analysis, 3rd ed., section 2.1 (pure error and lack of fit).
Gene Amdahl, AFIPS 1967; John Gustafson, CACM 31(5), 1988; Alan Karp and Horace Flatt, CACM 33(5), 1990.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.optimize import nnls
from scipy.special import fdtrc, stdtrit

from multicard.analysis.statistics import LEVEL, ROUNDING
from multicard.core.text import counted

Term = Callable[[np.ndarray], np.ndarray]
Scaling = Literal["strong", "weak"]

COMMUNICATION: dict[str, Term] = {
    "(n − 1)": lambda n: n - 1,
    "log2 n": np.log2,
    "(1 − 1/n)": lambda n: 1 - 1 / n,
}


@dataclass(frozen=True)
class ScalingModel:
    """A sum of terms in n, each with a non-negative coefficient, that gives T, or with `of_rate` 1/T.

    Such a fit has one best solution, needs no initial guess, and keeps shares between 0 and 1.
    """

    name: str
    formula: str
    terms: tuple[Term, ...]
    parameters: tuple[str, ...]
    of_rate: bool = False

    def times(self, coefficients: Sequence[float], devices: Sequence[float] | np.ndarray) -> np.ndarray:
        """Give T for each number of devices."""
        total = self.matrix(devices) @ np.asarray(coefficients)
        return 1 / total if self.of_rate else total

    def matrix(self, devices: Sequence[float] | np.ndarray) -> np.ndarray:
        """Values of the terms: a row per number of devices, a column per term."""
        n = np.asarray(devices, dtype=float)
        return np.column_stack([term(n) for term in self.terms])

    def parameters_of(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters that coefficients stand for, and their derivatives by the coefficients.

        Beside a constant a and a term b/n, T1 is a + b (as a rate 1/(a + b)) and the share is b/(a + b). All other
        coefficients are parameters themselves.
        """
        jacobian = np.eye(len(coefficients))
        found = coefficients.astype(float)
        if _shared in self.terms:
            a, b = coefficients[:2]
            total = a + b
            found[:2] = 1 / total if self.of_rate else total, b / total
            jacobian[:2, :2] = [[-1 / total**2] * 2 if self.of_rate else [1, 1], [-b / total**2, a / total**2]]
        return found, jacobian


@dataclass(frozen=True)
class Fit:
    """A scaling model fitted to measured times, or the reason why it could not be.

    Attributes
    ----------
    model
        The model; with communication, the one with the best term.
    parameters
        By name: `one_device_s` (T1), `parallel_share` (p), `serial_share` (s), `communication_s` (c); none if refused.
    intervals
        Their 95% intervals by Student's t, in their units; None where a parameter is at its bound, or no degree of
        freedom is left. They hold if the model does: see `lack_of_fit_p_value`. They take the communication term as
        given; where it was chosen by the same runs, they cover less, in simulations 90% and more.
    residual
        Root mean square of predicted over measured time, less 1.
    points
        Runs with a measured time.
    device_counts
        Numbers of devices among them.
    degrees_of_freedom
        Points less parameters.
    lack_of_fit_p_value
        Of the F test that the means by number of devices deviate from the model no more than repeats scatter.
        None without repeats, or with as many parameters as numbers of devices: then the model's form was not tested.
    prediction_error
        Time on the largest number of devices as predicted from the others, over the measured mean, less 1. None where
        the others are too few for the model.
    reason
        Why there is no fit.
    others
        Residuals with the communication terms that fitted less well, by formula.
    """

    model: ScalingModel
    parameters: dict[str, float]
    intervals: dict[str, tuple[float, float] | None]
    residual: float | None
    points: int
    device_counts: int
    degrees_of_freedom: int
    lack_of_fit_p_value: float | None = None
    prediction_error: float | None = None
    reason: str | None = None
    others: dict[str, float] = field(default_factory=dict)
    coefficients: tuple[float, ...] = ()

    @property
    def caveats(self) -> list[str]:
        """What is not known about a fit, and what speaks against it."""
        if self.reason:
            return []
        found = []
        if self.lack_of_fit_p_value is None:
            tested = self.device_counts > len(self.parameters)
            found.append(f"not tested: {'no repeats' if tested else 'as many parameters as device counts'}")
        elif self.lack_of_fit_p_value <= 1 - LEVEL:
            found.append("does not fit: deviates by more than the scatter of repeats")
        if self.prediction_error is None:
            found.append("too few device counts for a prediction")
        return found

    def times(self, devices: Sequence[float] | np.ndarray) -> np.ndarray:
        """Seconds per step that the model predicts for each number of devices."""
        return self.model.times(self.coefficients, devices)


def _constant(n: np.ndarray) -> np.ndarray:
    return np.ones_like(n)


def _shared(n: np.ndarray) -> np.ndarray:
    return 1 / n


AMDAHL = ScalingModel("Amdahl", "T1 (1 − p + p/n)", (_constant, _shared), ("one_device_s", "parallel_share"))
GUSTAFSON = ScalingModel(
    "Gustafson", "T1 n / (n − s (n − 1))", (_constant, _shared), ("one_device_s", "serial_share"), of_rate=True
)
AMDAHL_AND_COMMUNICATION = tuple(
    ScalingModel(
        "Amdahl and communication",
        f"{AMDAHL.formula} + c {name}",
        (*AMDAHL.terms, COMMUNICATION[name]),
        (*AMDAHL.parameters, "communication_s"),
    )
    for name in ("(n − 1)", "log2 n")
)
ADDED_COMMUNICATION = tuple(
    ScalingModel("Communication", f"T1 + c {name}", (_constant, term), ("one_device_s", "communication_s"))
    for name, term in COMMUNICATION.items()
)
SCALING_MODELS: dict[Scaling, tuple[tuple[ScalingModel, ...], ...]] = {
    "strong": ((AMDAHL,), AMDAHL_AND_COMMUNICATION),
    "weak": ((GUSTAFSON,), ADDED_COMMUNICATION),
}


def karp_flatt(speedup: Sequence[float] | np.ndarray, devices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Serial fraction that a speed-up S on n devices implies: (1/S − 1/n) / (1 − 1/n).

    It is 0 for the ideal speed-up, 1 for none, more than 1 where devices slow the job down, and below 0 where the
    speed-up is over n. One that grows with n points at communication or other overhead, one that stays at serial work.
    Not a number on one device, and where the speed-up is not known.

    >>> karp_flatt([4.0, 2.0, 1.0], [4, 4, 4]).round(3).tolist()
    [0.0, 0.333, 1.0]
    """
    s, n = np.asarray(speedup, dtype=float), np.asarray(devices, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = (1 / s - 1 / n) / (1 - 1 / n)
    return np.where((n > 1) & (s > 0), fraction, np.nan)


def fit_scaling_models(devices: Sequence[float], times_s: Sequence[float], scaling: Scaling) -> list[Fit]:
    """Fit the models of strong or weak scaling to measured times: without communication, and with it.

    Parameters
    ----------
    devices
        Number of devices of each run.
    times_s
        Seconds of a step in each run; what is not known is left out.
    scaling
        What stays the same: the global batch (`strong`) or that of each device (`weak`).
    """
    n, t = np.asarray(devices, dtype=float), np.asarray(times_s, dtype=float)
    known = np.isfinite(t) & (n >= 1) & (t > 0)
    n, t = n[known], t[known]
    found = []
    for alike in SCALING_MODELS[scaling]:
        fit = _best([_fit(model, n, t) for model in alike])
        if not fit.reason:
            largest = n == n.max()
            others = _best([_fit(model, n[~largest], t[~largest]) for model in alike])
            if not others.reason:
                error = float(others.times([n.max()])[0] / t[largest].mean() - 1)
                fit = replace(fit, prediction_error=error)
        found.append(fit)
    return found


def _best(fits: list[Fit]) -> Fit:
    """Give the fit with the smallest residual, with those of the others; a refused one where all are."""
    refused, fits = fits[0], [fit for fit in fits if not fit.reason]
    if not fits:
        return refused
    # Residuals that differ by rounding only, as of models that pass through all points, keep their order.
    first, *others = sorted(fits, key=lambda fit: round(fit.residual, 9))
    return replace(first, others={fit.model.formula: fit.residual for fit in others})


def _fit(model: ScalingModel, n: np.ndarray, t: np.ndarray) -> Fit:
    counts, of = np.unique(n, return_inverse=True)
    degrees_of_freedom = len(n) - len(model.terms)
    refused = Fit(
        model, {}, {}, None, len(n), len(counts), degrees_of_freedom, reason=_refusal(len(counts), len(model.terms))
    )
    if refused.reason:
        return refused
    # What is fitted is a time, or a rate, over its mean on as many devices.
    values = 1 / t if model.of_rate else t
    means = (np.bincount(of, values) / np.bincount(of))[of]
    relative = values / means
    matrix = model.matrix(n) / means[:, np.newaxis]
    # The largest coefficient is about 1 then, so that the tolerances of the solver do not depend on the unit.
    unit = values.max()
    coefficients, norm = nnls(matrix * unit, relative)
    coefficients = coefficients * unit
    if not coefficients[: 2 if _shared in model.terms else 1].any():
        return replace(refused, reason="the times leave none for one device")
    parameters, jacobian = model.parameters_of(coefficients)
    intervals: dict[str, tuple[float, float] | None] = dict.fromkeys(model.parameters)
    free = coefficients > 0
    if degrees_of_freedom > 0:
        used = matrix[:, free]
        covariance = np.linalg.inv(used.T @ used) * norm**2 / degrees_of_freedom
        variances = np.diag(jacobian[:, free] @ covariance @ jacobian[:, free].T)
        reach = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2)) * np.sqrt(variances)
        # A share follows from two coefficients, and is at its bound with either.
        inside = [True, free[:2].all(), *free[2:]] if _shared in model.terms else free
        intervals |= {
            name: (max(0.0, float(value - own)), min(float(value + own), 1.0 if name.endswith("_share") else np.inf))
            for name, value, own, known in zip(model.parameters, parameters, reach, inside, strict=True)
            if known
        }
    return replace(
        refused,
        parameters=dict(zip(model.parameters, parameters.tolist(), strict=True)),
        intervals=intervals,
        residual=float(np.sqrt(np.mean((model.times(coefficients, n) / t - 1) ** 2))),
        lack_of_fit_p_value=_lack_of_fit(
            norm**2, float(((relative - 1) ** 2).sum()), len(n), len(counts), int(free.sum())
        ),
        coefficients=tuple(coefficients.tolist()),
    )


def _lack_of_fit(residual: float, pure: float, points: int, counts: int, parameters: int) -> float | None:
    """P-value of the F test of the sum of squares that is no pure error, if there is any of both."""
    repeats, left = points - counts, counts - parameters
    if repeats < 1 or left < 1:
        return None
    lack = max(residual - pure, 0.0)
    if pure <= points * ROUNDING**2:  # equal repeats: any deviation is one of the model
        return float(lack <= points * ROUNDING**2)
    return float(fdtrc(left, repeats, (lack / left) / (pure / repeats)))


def _refusal(counts: int, parameters: int) -> str | None:
    """Why so many distinct device counts do not decide so many parameters; None where they do."""
    if counts >= parameters:
        return None
    if counts == 0:
        return "no measured time"
    if counts == 1:
        return "one device count only: no efficiency claim"
    return f"{counts} device counts only, the model has {counted(parameters, 'parameter')}"
