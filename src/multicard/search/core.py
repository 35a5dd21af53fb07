"""What configuration of a finite space to run next, and when to stop: a screening, a linear model, then repeats.

The screening is a Latin hypercube (McKay, Beckman and Conover, Technometrics 21, 1979): each value of a parameter
occurs about equally often. After it one repeat runs of each configuration that may complete and be better than the best
by a linear model with interactions; where there is none, of one that differs in one parameter from the best, or from
the next within noise of it. When there are none left no new ones are tried. At last the best and all within noise of it
are repeated in turn, until what remains has all its repeats: a race (Maron and Moore, NIPS 1993), in which more noise
than was thought brings back what had fallen behind. What was kept for repeats and is left tries further configurations.
"""

import itertools
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import qmc

Levels = tuple[int, ...]  # the place of each parameter's value in its list

USUAL_NOISE, USUAL_FREEDOM = 0.02, 4  # standard deviation of a logarithm, and what it counts for in degrees of freedom
REACH = 2.0  # standard errors of a difference, within which it is noise
CENTRES = 3  # configurations, the best and those within noise of it, beside which others are tried
TOGETHER = 3  # configurations that run at once after the screening
PAIRS = 0.4  # how large effects of pairs are expected to be, relative to those of single values
RESERVED = 3  # configurations for whose repeats a part of the budget is kept
MOST_RESERVED = 1 / 3  # of the budget
LEAST_LIKELY = 0.05  # probability to complete, below which a configuration is not promising


@dataclass(frozen=True)
class Space:
    """A finite space."""

    parameters: Mapping[str, Sequence[Any]]  # values of each parameter. Numbers are ordered, all else is not.
    # The configuration of each combination of values; several have the same where a parameter has no effect.
    configurations: Mapping[Levels, Hashable]


@dataclass
class Tried:
    """A configuration that was asked for: its values by repeat, whether one did not complete, the last one's cost."""

    values: dict[int, float] = field(default_factory=dict)
    failed: bool = False
    cost: float = 0.0


class Search:
    """A search, which is asked what to run and told what came of it.

    `tried`: what was asked for, by configuration, in order. `excluded`: configurations that need not run. `spent`: what
    all runs cost that it was told of. `screening`: what it begins with. `ended`: why no further configurations are
    tried, and then why no further repeats. `fatal`: outcomes of runs that end it at once.
    """

    fatal: frozenset[str] = frozenset()

    def __init__(self, space: Space, maximize: bool, repeats: int = 1, budget: float = math.inf, seed: int = 0) -> None:
        """Begin a search for the largest value, or the smallest; all values are above zero.

        `repeats`: the most of a configuration. `budget`: the most that all runs may cost, in any unit.
        """
        self.space, self.repeats, self.budget, self.spent = space, repeats, budget, 0.0
        self.tried: dict[Hashable, Tried] = {}
        self.excluded: set[Hashable] = set()
        self.ended: list[str] = []
        self._sign, self._seed, self._rng = 1 if maximize else -1, seed, np.random.default_rng(seed)
        self._costs: list[float] = []
        self.screening = self._screening()

    @property
    def all(self) -> list[Hashable]:
        """All configurations."""
        return list(dict.fromkeys(self.space.configurations.values()))

    @property
    def left(self) -> list[Hashable]:
        """Configurations that may yet be tried."""
        return [key for key in self.all if key not in self.tried and key not in self.excluded]

    @property
    def completed(self) -> dict[Hashable, dict[int, float]]:
        """Values by repeat of the configurations of which all runs completed."""
        return {key: each.values for key, each in self.tried.items() if each.values and not each.failed}

    @property
    def best(self) -> Hashable | None:
        """The configuration with the best geometric mean, among those with the most repeats."""
        found = self.completed
        most = max(map(len, found.values()), default=0)
        return max((key for key in found if len(found[key]) == most), key=self._score, default=None)

    @property
    def typical_cost(self) -> float:
        """Median cost of the runs that completed; 0 before the first."""
        return float(np.median(self._costs)) if self._costs else 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a run, from the repeats and from what is usual."""
        logs = [np.log(list(values.values())) for values in self.completed.values()]
        squares = USUAL_FREEDOM * USUAL_NOISE**2 + sum(float(((own - own.mean()) ** 2).sum()) for own in logs)
        return math.sqrt(squares / (USUAL_FREEDOM + sum(len(own) - 1 for own in logs)))

    @property
    def close(self) -> list[Hashable]:
        """The best configuration, and then those within noise of it or better, of as many runs or fewer."""
        found, best, noise = self.completed, self.best, self.noise
        if best is None:
            return []

        def reach(key: Hashable) -> float:
            return REACH * noise * math.sqrt(1 / len(found[key]) + 1 / len(found[best]))

        others = [key for key in found if key != best]
        near = [key for key in others if self._score(key) >= self._score(best) - reach(key)]
        return [best, *sorted(near, key=self._score, reverse=True)]

    def mean(self, configuration: Hashable) -> float:
        """Geometric mean of a configuration's values."""
        return math.exp(self._sign * self._score(configuration))

    def exclude(self, configurations: Iterable[Hashable]) -> None:
        """Leave out configurations, unless they were tried."""
        self.excluded |= {key for key in configurations if key not in self.tried}

    def ask(self) -> list[tuple[Hashable, int]]:
        """Configurations to run next and their repeats, each of which is to be told of; none at the end."""
        if not self.ended and (asked := self._new()):
            return [(key, 1) for key in asked]
        if (asked := self._again()) or self.ended:
            return asked
        # What was kept for repeats, and is left.
        return [(key, 1) for key in self._new(keeps=False)] or self._again()

    def tell(self, configuration: Hashable, repeat: int, value: float | None, cost: float) -> None:
        """Tell of a run that was asked for: its value, or None where it did not complete, and what it cost."""
        self.spent += cost
        self.tried[configuration].cost = cost
        if value is None:
            self.tried[configuration].failed = True
        else:
            self._costs.append(cost)
            self.tried[configuration].values[repeat] = value

    def _new(self, keeps: bool = True) -> list[Hashable]:
        """Configurations to try; none if that is over, of which `ended` says why, or if the rest is kept for repeats.

        `keeps`: whether a part of the budget is.
        """
        if not self.left:
            self.ended.append("every configuration that is left in was tried")
            return []
        reserve = self._reserve() if keeps else 0
        left, typical, most = self.budget - self.spent, self.typical_cost, len(self.all) * self.repeats
        affordable = (int(min(most, left / typical)) if typical else most * (left > 0)) - reserve
        if affordable < 1 and (self._costs or self.spent):
            if not reserve:
                self.ended.append(f"the budget is spent, {len(self.left)} were not tried")
            return []
        if design := [key for key in self.screening if key in self.left]:
            # What a run costs is not known before the first.
            asked = design[: affordable if self._costs else 1]
        else:
            asked = self._proposed(affordable)
            if not asked:
                self.ended.append(
                    f"the model expects no improvement of the {len(self.left)} that were not tried, and all were "
                    f"that differ in one parameter from the best, or from up to {CENTRES - 1} within noise of it"
                )
        for key in asked:
            self.tried[key] = Tried()
        return asked

    def _again(self) -> list[tuple[Hashable, int]]:
        """Repeats of the configurations that are close, one of each; the best first."""
        found = self.completed
        due = [key for key in self._due() if len(found[key]) < self.repeats]
        costs = itertools.accumulate(self.tried[key].cost for key in due)  # of the repeats before
        asked = [key for key, cost in zip(due, costs, strict=True) if self.spent + cost <= self.budget]
        if due and not asked and self.ended:
            self.ended.append("the budget for repeats is spent")
        return [(key, max(found[key]) + 1) for key in asked]

    def _due(self) -> Sequence[Hashable]:
        """Configurations to repeat, the most important first."""
        return self.close

    def _reserve(self) -> int:
        """How many runs the budget is to have left for repeats."""
        wanted, typical = (self.repeats - 1) * min(RESERVED, max(1, len(self.completed))), self.typical_cost
        return int(min(wanted, MOST_RESERVED * self.budget / typical)) if typical else wanted

    def _score(self, configuration: Hashable) -> float:
        """Mean of the logarithms, the larger the better."""
        return self._sign * float(np.mean(np.log(list(self.tried[configuration].values.values()))))

    def _screening(self) -> list[Hashable]:
        """As many configurations as a model without interactions has unknowns, at most a third of all."""
        sizes = [len(values) for values in self.space.parameters.values()]
        count = max(1, min(1 + sum(size - 1 for size in sizes), len(self.all) // 3))
        cube = qmc.LatinHypercube(len(sizes), rng=self._seed, optimization="random-cd").random(count)
        rows = (tuple(int(u * size) for u, size in zip(row, sizes, strict=True)) for row in cube)
        found = (self.space.configurations.get(row) for row in rows)
        return list(dict.fromkeys(key for key in found if key is not None))

    def _proposed(self, affordable: int) -> list[Hashable]:
        """Several that may be better than the best by the model; where there are none, those beside it."""
        left = self.left
        if not self.completed:  # nothing to learn from
            return [left[self._rng.integers(len(left))]]
        asked: list[Hashable] = []
        while len(asked) < min(TOGETHER, affordable) and (key := self._promising(left) or self._beside(left)):
            asked.append(key)
            left.remove(key)
        return asked

    def _promising(self, among: Sequence[Hashable]) -> Hashable | None:
        """The configuration that may be the best by far, if one may be better than the best at all."""
        if not among:
            return None
        levels = [next(own for own, key in self.space.configurations.items() if key == each) for each in among]
        mean, deviation = self._expected(levels)
        bounds = np.where(self._completes(levels) >= LEAST_LIKELY, mean + REACH * deviation, -math.inf)
        return among[int(bounds.argmax())] if bounds.max() > self._score(self.best) else None

    def _expected(self, levels: Sequence[Levels]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the scores of combinations.

        By a linear model with the effect of each value and of each pair of values, from what completed.
        """
        from sklearn.linear_model import BayesianRidge

        found = {own: self._score(key) for own, key in self.space.configurations.items() if key in self.completed}
        model = BayesianRidge().fit(self._effects(list(found), pairs=True), list(found.values()))
        return model.predict(self._effects(levels, pairs=True), return_std=True)

    def _completes(self, levels: Sequence[Levels]) -> np.ndarray:
        """Probabilities that runs of combinations complete, by a logistic model with the effect of each value."""
        from sklearn.linear_model import LogisticRegression

        found = {own: key in self.completed for own, key in self.space.configurations.items() if key in self.tried}
        if all(found.values()):
            return np.ones(len(levels))
        model = LogisticRegression().fit(self._effects(list(found)), list(found.values()))
        return model.predict_proba(self._effects(levels))[:, 1]

    def _effects(self, levels: Sequence[Levels], pairs: bool = False) -> np.ndarray:
        """Columns of a model: one for each value of a parameter and, of less weight, for each pair of values."""
        rows = np.array(levels)
        own = [np.eye(len(v))[rows[:, place]] - 1 / len(v) for place, v in enumerate(self.space.parameters.values())]
        if not pairs:
            return np.hstack(own)
        both = (np.einsum("na,nb->nab", *pair).reshape(len(rows), -1) for pair in itertools.combinations(own, 2))
        return np.hstack([*own, *(PAIRS * pair for pair in both)])

    def _beside(self, among: Sequence[Hashable]) -> Hashable | None:
        """One of the configurations `among` that differs in one parameter from the best, or else from one near it."""
        for key in self.close[:CENTRES]:
            own = [levels for levels, other in self.space.configurations.items() if other == key]
            beside = [
                other
                for levels, other in self.space.configurations.items()
                if other in among and any(sum(map(operator.ne, levels, each)) == 1 for each in own)
            ]
            if beside:
                return beside[self._rng.integers(len(beside))]
        return None
