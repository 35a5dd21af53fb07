"""A search of a finite space for its best configuration: which to run next, and when to stop.

1. A screening, which is a Latin hypercube (McKay, Beckman and Conover, Technometrics 21, 1979): each value of a
   parameter occurs about equally often.
2. One repeat of each configuration that may complete and be better than the best by a linear model with interactions
   (`effects`, `acquisition`). Where there is none, of one that differs in one parameter from the best, or from the next
   within noise of it. When there are none left no new ones are tried.
3. Repeats of the best and of all within noise of it in turn, until what remains has all its repeats: a race (Maron and
   Moore, NIPS 1993), in which more noise than was assumed brings back what had fallen behind.

A part of the budget is reserved for repeats. What of it they do not need goes to further configurations.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple

import numpy as np
from scipy.stats import qmc

from multicard.search.effects import ExpectedScores, completion_probabilities, expected_scores
from multicard.search.space import Key, Levels, Space

# Standard deviation of the logarithm of a run that is assumed, and the degrees of freedom that this counts for beside
# the repeats.
USUAL_NOISE, USUAL_FREEDOM = 0.02, 4
# Two configurations are within noise of each other up to so many standard errors of their difference.
REACH = 2.0
# Configurations, the best and those within noise of it, whose neighbours are tried.
CENTRES = 3
# Configurations that are proposed at once after the screening.
PROPOSED_AT_ONCE = 3
# Configurations for whose repeats a part of the budget is reserved, and the largest such part.
RESERVED_FOR, LARGEST_RESERVE = 3, 1 / 3
# A configuration that completes with a lower probability is not tried.
LEAST_LIKELY = 0.05


class RunRequest(NamedTuple, Generic[Key]):
    """A run to make: a repeat, from 1, of a configuration."""

    configuration: Key
    repeat: int


@dataclass
class Attempts:
    """The runs of a configuration that were asked for, as far as they came back."""

    # Values of the runs that completed, by repeat.
    values: dict[int, float] = field(default_factory=dict)
    # True if a run did not complete.
    failed: bool = False
    # What the last run cost.
    cost: float = 0.0


class Search(Generic[Key]):
    """A search for the largest value, or the smallest, with an ask-and-tell interface.

    `ask` returns the next runs; `tell` takes the result of each before the next `ask`. The same results lead to the
    same questions, so a search that was interrupted is continued by telling it again what came out.
    """

    # Outcomes of runs that end a search at once; the caller looks at them.
    fatal: frozenset[str] = frozenset()

    def __init__(
        self, space: Space[Key], maximize: bool, repeats: int = 1, budget: float = math.inf, seed: int = 0
    ) -> None:
        """Begin a search; all values must be above zero.

        `repeats`: the most runs of a configuration. `budget`: the most that all runs may cost, in any unit.
        """
        self.space = space
        self.repeats = repeats
        self.budget = budget
        # Cost of all runs so far.
        self.spent = 0.0
        # Configurations that were asked for, in order.
        self.tried: dict[Key, Attempts] = {}
        # Configurations that need not run.
        self.excluded: set[Key] = set()
        # Why no further configurations are tried, and why no further repeats run; None while they do.
        self.stopped_trying: str | None = None
        self.stopped_repeating: str | None = None
        self._sign = 1 if maximize else -1
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._costs_of_completed: list[float] = []

    # What is known so far -------------------------------------------------------------------------------------------

    @property
    def configurations(self) -> list[Key]:
        """All configurations of the space."""
        return list(self.space.combinations)

    @property
    def untried(self) -> list[Key]:
        """Configurations that may yet be tried."""
        return [key for key in self.configurations if key not in self.tried and key not in self.excluded]

    @property
    def completed(self) -> dict[Key, dict[int, float]]:
        """Values by repeat of the configurations of which all runs completed."""
        return {key: attempts.values for key, attempts in self.tried.items() if attempts.values and not attempts.failed}

    @property
    def best(self) -> Key | None:
        """The configuration with the best geometric mean, among those with the most repeats; None before the first."""
        return self._best_of(self.completed)

    @property
    def typical_cost(self) -> float:
        """Median cost of the runs that completed; 0 before the first."""
        return float(np.median(self._costs_of_completed)) if self._costs_of_completed else 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a run, from the repeats and from what is usual."""
        return pooled_noise([list(values.values()) for values in self.completed.values()])

    @property
    def contenders(self) -> list[Key]:
        """The best configuration, then those within noise of it or better, by falling score.

        A score is within noise of the best one up to 2 σ √(1/n + 1/n_best) below it, with the `noise` σ and the numbers
        of repeats n. Only a configuration with fewer repeats can be better than the best.
        """
        completed = self.completed
        best = self.best
        if best is None:
            return []
        noise = self.noise
        best_score = self._score(best)
        repeats_of_best = len(completed[best])
        near = []
        for key, values in completed.items():
            reach = REACH * noise * math.sqrt(1 / len(values) + 1 / repeats_of_best)
            if key != best and self._score(key) >= best_score - reach:
                near.append(key)
        return [best, *sorted(near, key=self._score, reverse=True)]

    def mean(self, configuration: Key) -> float:
        """Return the geometric mean of a configuration's values."""
        return math.exp(self._sign * self._score(configuration))

    # Ask and tell ---------------------------------------------------------------------------------------------------

    def exclude(self, configurations: Iterable[Key]) -> None:
        """Leave out configurations, unless they were tried."""
        self.excluded |= {key for key in configurations if key not in self.tried}

    def ask(self) -> list[RunRequest[Key]]:
        """Return the next runs; none if the search has ended."""
        if self.stopped_trying is None:
            new = self._new_configurations(keep_reserve=True)
            if new:
                return [RunRequest(key, 1) for key in new]
        repeats = self._repeats()
        if repeats or self.stopped_trying is not None:
            return repeats
        # No repeat is needed, so that the reserve is free for further configurations.
        new = self._new_configurations(keep_reserve=False)
        return [RunRequest(key, 1) for key in new] if new else self._repeats()

    def tell(self, configuration: Key, repeat: int, value: float | None, cost: float) -> None:
        """Take the result of a run that was asked for: its value, None if it did not complete, and what it cost."""
        self.spent += cost
        attempts = self.tried[configuration]
        attempts.cost = cost
        if value is None:
            attempts.failed = True
        else:
            self._costs_of_completed.append(cost)
            attempts.values[repeat] = value

    # How it decides -------------------------------------------------------------------------------------------------

    @cached_property
    def screening(self) -> list[Key]:
        """The configurations that it begins with: as many as a model without interactions has unknowns.

        They are at most a third of all.
        """
        sizes = self._sizes
        unknowns = 1 + sum(size - 1 for size in sizes)
        count = max(1, min(unknowns, len(self.configurations) // 3))
        cube = qmc.LatinHypercube(len(sizes), rng=self._seed, optimization="random-cd").random(count)
        chosen: dict[Key, None] = {}
        for row in cube:
            levels = tuple(int(share * size) for share, size in zip(row, sizes, strict=True))
            if levels in self.space.configurations:
                chosen[self.space.configurations[levels]] = None
        return list(chosen)

    def _new_configurations(self, keep_reserve: bool) -> list[Key]:
        """Return configurations to try, and count them as tried.

        There are none if that is over, for which it sets `stopped_trying`, or if the rest of the budget is reserved for
        repeats.
        """
        if not self.untried:
            self.stopped_trying = "every configuration that is left in was tried"
            return []
        reserve = self._reserved_runs() if keep_reserve else 0
        affordable = self._affordable_runs() - reserve
        has_run = bool(self._costs_of_completed or self.spent)
        if affordable < 1 and has_run:
            if not reserve:
                self.stopped_trying = f"the budget is spent, {len(self.untried)} were not tried"
            return []
        screening = [key for key in self.screening if key in self.untried]
        if screening:
            # Before the first run completed its cost is not known, so that a single one is asked for.
            new = screening[: affordable if self._costs_of_completed else 1]
        else:
            new = self._proposed(affordable)
            if not new:
                self.stopped_trying = (
                    f"the model expects no improvement of the {len(self.untried)} that were not tried, and all were "
                    f"that differ in one parameter from the best, or from up to {CENTRES - 1} within noise of it"
                )
        for key in new:
            self.tried[key] = Attempts()
        return new

    def _repeats(self) -> list[RunRequest[Key]]:
        """Return one repeat of each contender that lacks some, the most important first, as far as the budget goes."""
        completed = self.completed
        due = [key for key in self._to_repeat() if len(completed[key]) < self.repeats]
        costs = itertools.accumulate(self.tried[key].cost for key in due)
        affordable = [key for key, cost in zip(due, costs, strict=True) if self.spent + cost <= self.budget]
        if due and not affordable and self.stopped_trying is not None:
            self.stopped_repeating = "the budget for repeats is spent"
        return [RunRequest(key, max(completed[key]) + 1) for key in affordable]

    def _to_repeat(self) -> Sequence[Key]:
        """Return the configurations whose repeats tell more, the most important first."""
        return self.contenders

    def _affordable_runs(self) -> int:
        """Return how many runs the rest of the budget pays; before any cost is known all, if there is a rest."""
        remaining = self.budget - self.spent
        most = len(self.configurations) * self.repeats
        if self.typical_cost:
            return int(min(most, remaining / self.typical_cost))
        return most if remaining > 0 else 0

    def _reserved_runs(self) -> int:
        """Return for how many repeats a part of the budget is reserved."""
        wanted = (self.repeats - 1) * min(RESERVED_FOR, max(1, len(self.completed)))
        if self.typical_cost:
            return int(min(wanted, LARGEST_RESERVE * self.budget / self.typical_cost))
        return wanted

    def _proposed(self, most: int) -> list[Key]:
        """Return several configurations that may be better than the best by the model, else neighbours of good ones."""
        candidates = self.untried
        if not self.completed:
            # There is nothing to learn from yet.
            return [candidates[self._random.integers(len(candidates))]]
        proposed: list[Key] = []
        while len(proposed) < min(PROPOSED_AT_ONCE, most):
            key = self._promising(candidates)
            if key is None:
                key = self._neighbour(candidates)
            if key is None:
                break
            proposed.append(key)
            candidates.remove(key)
        return proposed

    def _promising(self, candidates: Sequence[Key]) -> Key | None:
        """Return the candidate with the highest acquisition; None if no candidate may be better than the best."""
        best = self.best
        if not candidates or best is None:
            return None
        completed = self.completed
        scores: dict[Levels, float] = {}
        has_completed: dict[Levels, bool] = {}
        for levels, key in self.space.configurations.items():
            if key in completed:
                scores[levels] = self._score(key)
            if key in self.tried:
                has_completed[levels] = key in completed
        combinations = [self.space.combinations[key][0] for key in candidates]
        expected = expected_scores(self._sizes, scores, combinations)
        probabilities = completion_probabilities(self._sizes, has_completed, combinations)
        bounds = acquisition(expected, probabilities)
        return candidates[int(bounds.argmax())] if bounds.max() > self._score(best) else None

    def _neighbour(self, candidates: Sequence[Key]) -> Key | None:
        """Return a candidate that differs in one parameter from the best, or else from one within noise of it."""
        for key in self.contenders[:CENTRES]:
            neighbours = [other for other in self.space.neighbours(key) if other in candidates]
            if neighbours:
                return neighbours[self._random.integers(len(neighbours))]
        return None

    @property
    def _sizes(self) -> list[int]:
        """Number of values of each parameter."""
        return [len(values) for values in self.space.parameters.values()]

    def _score(self, configuration: Key) -> float:
        """Return the mean of the logarithms of a configuration's values, the larger the better."""
        return self._sign * float(np.mean(np.log(list(self.tried[configuration].values.values()))))

    def _best_of(self, configurations: Iterable[Key]) -> Key | None:
        """Return the one with the best score among those with the most repeats; None without any."""
        repeats = {key: len(self.tried[key].values) for key in configurations}
        most = max(repeats.values(), default=0)
        return max((key for key in repeats if repeats[key] == most), key=self._score, default=None)


def acquisition(expected: ExpectedScores, completion: np.ndarray) -> np.ndarray:
    """Return how good configurations may be: m + 2 s, the upper bound of a score with the mean m and the deviation s.

    It is minus infinity where the probability to complete is below 5%. So what is uncertain is tried for what it may
    be: below, the second configuration for its mean, the first for its deviation, and the third not at all.

    >>> expected = ExpectedScores(mean=np.array([1.0, 1.25, 2.0]), deviation=np.array([0.25, 0.0, 0.5]))
    >>> acquisition(expected, completion=np.array([1.0, 0.5, 0.01])).tolist()
    [1.5, 1.25, -inf]
    """
    upper_bounds = expected.mean + REACH * expected.deviation
    return np.where(completion >= LEAST_LIKELY, upper_bounds, -math.inf)


def pooled_noise(values: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of a run, given the values of the repeats of each configuration.

    It is √((4 · 0.02² + Σ (x − x̄)²) / (4 + Σ (n − 1))), with the logarithm x of a value, the mean x̄ of a configuration,
    and its number of repeats n: the usual noise of 2% counts as four degrees of freedom. Two repeats whose
    logarithms are 0.03 above and below their mean have √((0.0016 + 0.0018) / (4 + 1)) = √0.00068.

    >>> round(pooled_noise([[math.exp(0.03), math.exp(-0.03)]]), 4)
    0.0261
    """
    logs = [np.log(repeats) for repeats in values]
    squares = sum(float(((repeats - repeats.mean()) ** 2).sum()) for repeats in logs)
    freedom = sum(len(repeats) - 1 for repeats in logs)
    return math.sqrt((USUAL_FREEDOM * USUAL_NOISE**2 + squares) / (USUAL_FREEDOM + freedom))
