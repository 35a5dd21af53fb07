"""A search of a finite space for its best configuration: it decides what to run next, and when to stop.

1. Screening: the first configurations are a Latin hypercube (McKay, Beckman and Conover, Technometrics 21, 1979), so
   that each value of a parameter occurs about equally often.
2. New configurations: a sampler of Optuna's (`proposals`) proposes them from the results so far. Each runs once. If the
   sampler proposes only what has run, a configuration runs that differs in one parameter from the best, or from another
   one within noise of the best.
3. Stop: once `patience` new configurations in a row were no better than the best, only those that differ from it, or
   from another one within noise of it, in one parameter are tried. If one of them is better, step 2 starts again. If
   there are none left, no new configurations are tried any more.
4. Repeats: the best configuration and all within noise of it run once more, again and again, until those that are
   left have all their repeats. This is a race (Maron and Moore, NIPS 1993). If the repeats show more noise than was
   assumed, configurations that had fallen behind may be within noise again, and return to the race.

A part of the budget is reserved for repeats. If repeats do not need all of it, the rest goes to new configurations.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple

import numpy as np
from scipy.stats import qmc

from multicard.search.proposals import proposals
from multicard.search.space import Key, Space

# The standard deviation of the logarithm of a run's value that is assumed before there are repeats, and the weight of
# this assumption in degrees of freedom: see `pooled_noise`.
USUAL_NOISE, USUAL_FREEDOM = 0.02, 4
# Two configurations are within noise of each other if their scores differ by at most so many standard errors.
REACH = 2.0
# The neighbours of so many configurations are tried: of the best, and of the next ones within noise of it.
CENTRES = 3
# Number of configurations that are proposed at once after the screening.
PROPOSED_AT_ONCE = 3
# The most configurations of the screening.
SCREENED = 6
# At most this share of the budget is reserved for repeats.
LARGEST_RESERVE = 1 / 3


class RunRequest(NamedTuple, Generic[Key]):
    """A run to make: a configuration, and the number of the repeat, from 1."""

    configuration: Key
    repeat: int


@dataclass
class Attempts:
    """The results so far of the runs of a configuration that was asked for."""

    # The value of each run that completed, by the number of its repeat.
    values: dict[int, float] = field(default_factory=dict)
    # True if at least one run did not complete.
    failed: bool = False
    # Cost of the last run; 0 before the first result.
    cost: float = 0.0


class Search(Generic[Key]):
    """A search for the largest value, or the smallest, with an ask-and-tell interface.

    `ask` returns the next runs. `tell` has to be called with the result of each of them before the next `ask`. The same
    results lead to the same runs, so an interrupted search is continued by starting it again and telling it the results
    of the earlier runs again.
    """

    # Outcomes of runs that must end a search at once. The search does not check this; its caller does.
    fatal: frozenset[str] = frozenset()
    # A part of the budget is reserved for all repeats of so many configurations.
    reserved_for = 1

    def __init__(
        self, space: Space[Key], maximize: bool, repeats: int = 1, budget: float = math.inf, seed: int = 0
    ) -> None:
        """Begin a search. All values must be above zero.

        `maximize`: True to search for the largest value. `repeats`: the most runs of a configuration. `budget`: the
        most that all runs together may cost, in the unit of the costs that `tell` gets.
        """
        self.space = space
        self.repeats = repeats
        self.budget = budget
        # Cost of all runs so far.
        self.spent = 0.0
        # Configurations that `ask` returned, in that order.
        self.tried: dict[Key, Attempts] = {}
        # Configurations that must not be tried: see `exclude`.
        self.excluded: set[Key] = set()
        # Why no new configurations are tried any more; None while they are.
        self.stopped_trying: str | None = None
        # Why no repeats run although some are due; None before that.
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
        """Configurations that were neither tried nor excluded."""
        return [key for key in self.configurations if key not in self.tried and key not in self.excluded]

    @property
    def completed(self) -> dict[Key, dict[int, float]]:
        """The values, by repeat, of each configuration with a run that completed and without a run that did not."""
        return {key: attempts.values for key, attempts in self.tried.items() if attempts.values and not attempts.failed}

    @property
    def best(self) -> Key | None:
        """The configuration with the best geometric mean of those in `completed` that have the most repeats.

        None if `completed` is empty.
        """
        return self._best_of(self.completed)

    @property
    def typical_cost(self) -> float:
        """Median cost of the runs that completed; 0 if none has."""
        return float(np.median(self._costs_of_completed)) if self._costs_of_completed else 0.0

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of a run's value, by `pooled_noise` of the completed configurations."""
        return pooled_noise([list(values.values()) for values in self.completed.values()])

    @property
    def contenders(self) -> list[Key]:
        """The best configuration, then those within noise of it or better, from the best score to the worst.

        A score is within noise of the best one if it is at most 2 σ √(1/n + 1/n_best) below it, where σ is the `noise`,
        and n and n_best are the numbers of repeats. A configuration can have a better score than the best one if it has
        fewer repeats. Empty if `best` is None.
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
        """Exclude configurations from being tried. Configurations that were tried already are not changed."""
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
        # No repeat is needed, so the part of the budget that is reserved for repeats can pay new configurations.
        new = self._new_configurations(keep_reserve=False)
        return [RunRequest(key, 1) for key in new] if new else self._repeats()

    def tell(self, configuration: Key, repeat: int, value: float | None, cost: float) -> None:
        """Note the result of a run that `ask` returned: its value (None if it did not complete) and its cost."""
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
        """The configurations that a search begins with.

        They are at most `SCREENED` and at most a third of all, but at least one is drawn. They are fewer if several
        rows of the hypercube are the same configuration, or none.
        """
        sizes = self._sizes
        count = max(1, min(SCREENED, len(self.configurations) // 3))
        cube = qmc.LatinHypercube(len(sizes), rng=self._seed, optimization="random-cd").random(count)
        chosen: dict[Key, None] = {}
        for row in cube:
            levels = tuple(int(share * size) for share, size in zip(row, sizes, strict=True))
            if levels in self.space.configurations:
                chosen[self.space.configurations[levels]] = None
        return list(chosen)

    def _new_configurations(self, keep_reserve: bool) -> list[Key]:
        """Return new configurations, and count them as tried; an empty list if there are none.

        There are none if the search for new ones has ended; then the reason is put into `stopped_trying`. With
        `keep_reserve` there are also none, for now, if the rest of the budget is reserved for repeats.
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
            # Before a run has completed, the cost of one is not known, so only one configuration is returned.
            new = screening[: affordable if self._costs_of_completed else 1]
        else:
            new = self._proposed(affordable)
            if not new:
                self.stopped_trying = (
                    f"the last {self._tries_in_vain} were no better than the best, and all were tried that differ in "
                    f"one parameter from it, or from up to {CENTRES - 1} within noise of it; {len(self.untried)} were "
                    "not tried"
                )
        for key in new:
            self.tried[key] = Attempts()
        return new

    def _repeats(self) -> list[RunRequest[Key]]:
        """Return one more repeat of each configuration in `_to_repeat` that has fewer than `repeats`, in that order.

        Repeats that the rest of the budget cannot pay are left out; each is assumed to cost as much as the last run of
        its configuration.
        """
        completed = self.completed
        due = [key for key in self._to_repeat() if len(completed[key]) < self.repeats]
        costs = itertools.accumulate(self.tried[key].cost for key in due)
        affordable = [key for key, cost in zip(due, costs, strict=True) if self.spent + cost <= self.budget]
        if due and not affordable and self.stopped_trying is not None:
            self.stopped_repeating = "the budget for repeats is spent"
        return [RunRequest(key, max(completed[key]) + 1) for key in affordable]

    def _to_repeat(self) -> Sequence[Key]:
        """Return the configurations that ought to be repeated, the most important first."""
        return self.contenders

    def _affordable_runs(self) -> int:
        """Return the number of runs of typical cost that the rest of the budget pays.

        Before a run has completed, its cost is not known. Then return the number of all runs, or 0 if nothing is left.
        """
        remaining = self.budget - self.spent
        most = len(self.configurations) * self.repeats
        if self.typical_cost:
            return int(min(most, remaining / self.typical_cost))
        return most if remaining > 0 else 0

    def _reserved_runs(self) -> int:
        """Return the number of repeats for which a part of the budget is reserved: see `reserved_for`."""
        wanted = (self.repeats - 1) * min(self.reserved_for, max(1, len(self.completed)))
        if self.typical_cost:
            return int(min(wanted, LARGEST_RESERVE * self.budget / self.typical_cost))
        return wanted

    @property
    def patience(self) -> int:
        """The number of tries in vain after which only neighbours are tried: as many as a configuration has."""
        return sum(size - 1 for size in self._sizes)

    @property
    def _tries_in_vain(self) -> int:
        """The number of configurations tried since the best one, without those of the screening."""
        best = self.best
        screening = self.screening
        since_best = itertools.takewhile(lambda key: key != best, reversed(self.tried))
        return sum(key not in screening for key in since_best)

    def _proposed(self, most: int) -> list[Key]:
        """Return new configurations, at most `PROPOSED_AT_ONCE` and at most `most`.

        They are those that the sampler proposes. If it has too few, or if `patience` has ended, neighbours of good
        ones are added; if there are none of these either, random ones are, but only while `patience` lasts. Before a
        run has completed, one is drawn at random.
        """
        candidates = self.untried
        if not self.completed:
            return [self._drawn(candidates)]
        count = min(PROPOSED_AT_ONCE, most, len(candidates))
        is_patient = self._tries_in_vain < self.patience
        new = self._sampled(candidates, count) if is_patient else []
        while len(new) < count:
            others = [key for key in candidates if key not in new]
            key = self._neighbour(others)
            if key is None and is_patient:
                key = self._drawn(others)
            if key is None:
                break
            new.append(key)
        return new

    def _sampled(self, candidates: Sequence[Key], count: int) -> list[Key]:
        """Return up to `count` of the candidates, proposed by the sampler from all results so far."""
        completed = self.completed
        scores = {key: self._score(key) if key in completed else None for key in self.tried}
        return proposals(self.space, scores, candidates, count, seed=int(self._random.integers(2**32)))

    def _drawn(self, candidates: Sequence[Key]) -> Key:
        """Return a candidate at random."""
        return candidates[int(self._random.integers(len(candidates)))]

    def _neighbour(self, candidates: Sequence[Key]) -> Key | None:
        """Return, at random, a candidate that differs in one parameter from the best, or else from the next contender.

        Only the first `CENTRES` contenders are considered. None if they have no neighbours among the candidates.
        """
        for key in self.contenders[:CENTRES]:
            neighbours = [other for other in self.space.neighbours(key) if other in candidates]
            if neighbours:
                return self._drawn(neighbours)
        return None

    @property
    def _sizes(self) -> list[int]:
        """Number of values of each parameter."""
        return [len(values) for values in self.space.parameters.values()]

    def _score(self, configuration: Key) -> float:
        """Return the mean of the logarithms of a configuration's values, with the sign by which larger is better."""
        return self._sign * float(np.mean(np.log(list(self.tried[configuration].values.values()))))

    def _best_of(self, configurations: Iterable[Key]) -> Key | None:
        """Return the configuration with the best score of those that have the most repeats; None if there are none."""
        repeats = {key: len(self.tried[key].values) for key in configurations}
        most = max(repeats.values(), default=0)
        return max((key for key in repeats if repeats[key] == most), key=self._score, default=None)


def pooled_noise(values: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of a run's value, from the values of each configuration's repeats.

    It is √((4 · 0.02² + Σ (x − x̄)²) / (4 + Σ (n − 1))). Here x is the logarithm of a value, x̄ is the mean of x over the
    repeats of its configuration, and n is the number of these repeats. The usual noise of 2% counts as four degrees of
    freedom. In this example, two repeats have logarithms 0.03 above and below their mean, so the result is
    √((0.0016 + 0.0018) / (4 + 1)) = √0.00068:

    >>> round(pooled_noise([[math.exp(0.03), math.exp(-0.03)]]), 4)
    0.0261
    """
    logs = [np.log(repeats) for repeats in values]
    squares = sum(float(((repeats - repeats.mean()) ** 2).sum()) for repeats in logs)
    freedom = sum(len(repeats) - 1 for repeats in logs)
    return math.sqrt((USUAL_FREEDOM * USUAL_NOISE**2 + squares) / (USUAL_FREEDOM + freedom))
