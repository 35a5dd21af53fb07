"""A search for the largest batch that fits into memory, and for the smallest that *pays*.

A batch pays if it is the smallest that ran of those whose throughput is within a tolerance of the fastest that ran.
Sizes are tried one after the other:

1. Doublings from a first one, until one runs out of memory, which is a result. If the first does, halves of it.
2. Sizes between the largest that fits and the smallest that does not, by bisection. Between two doublings lie steps of
   an eighth of the smaller one, so 64 is followed by 72, 80, … 128.
3. Sizes between those that ran, until none may be faster than the fastest by more than `RESOLUTION` and than noise
   explains (`CurveSegment.upper_bound`). Nothing is promised of a batch that is far faster than those beside it.
4. Halves of the smallest, while that may pay.

In between, repeats run of what is undecided by the interval of its ratio to the fastest, and of what may be faster than
that. A repeat may show that a batch does not fit after all, so the next size is decided again after each run.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

from multicard.core.layout import OUTCOMES
from multicard.search.batch_sizes import CurvePoint, doublings, segments
from multicard.search.core import LARGEST_RESERVE, REACH, Attempts, Search
from multicard.search.space import Key, Space
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool

# A batch whose throughput is below that of the fastest by no more than this share is as good.
TOLERANCE = 0.03
# A batch between others is worth a run if it may be faster than the fastest by more than this share.
RESOLUTION = 0.01
# Repeats of the two batches that the answer names, and the most of any batch.
LEAST_REPEATS, MOST_REPEATS = 3, 5
# Where memory is not to be filled, doubling ends after so many doublings that gained less than the tolerance.
FLAT_DOUBLINGS = 2


class BatchSearch(Search[Key]):
    """A search for the largest batch that fits and for the smallest that pays; values are throughputs."""

    fatal = frozenset(OUTCOMES) - {"completed", "out_of_memory"}

    def __init__(
        self, space: Space[Key], start: int, fills: bool, budget: float = math.inf, repeats: int = MOST_REPEATS
    ) -> None:
        """Begin a search in a space of one parameter, whose values are batch sizes, with the size `start`.

        `fills`: whether to double until memory runs out; otherwise until that gains nothing.
        """
        super().__init__(space, True, repeats, budget)
        [values] = space.parameters.values()
        sizes: dict[Key, int] = {key: values[level] for (level,), key in space.configurations.items()}
        # Batch sizes by configuration, in rising order.
        self.size = {key: sizes[key] for key in sorted(sizes, key=sizes.__getitem__)}
        self._start = start
        self._fills = fills

    # What is known so far -------------------------------------------------------------------------------------------

    @property
    def too_large(self) -> Key | None:
        """The smallest batch that ran out of memory, in one of its runs."""
        too_large = [key for key in self.size if key in self.tried and self.tried[key].failed]
        return too_large[0] if too_large else None

    @property
    def fitting(self) -> list[Key]:
        """Batches that fit, in rising order: they ran, and no smaller one ran out of memory."""
        completed = self.completed
        too_large = self.too_large
        limit = math.inf if too_large is None else self.size[too_large]
        return [key for key, size in self.size.items() if key in completed and size < limit]

    @property
    def best(self) -> Key | None:
        """The fastest batch that fits, among those with the most repeats; None if none fits."""
        return self._best_of(self.fitting)

    @property
    def pays(self) -> Key | None:
        """The smallest batch whose throughput is within the tolerance of the fastest's; None if none fits."""
        within_tolerance = [key for key, ratio in self.ratios().items() if ratio.value >= 1 - TOLERANCE]
        return within_tolerance[0] if within_tolerance else None

    @property
    def unfinished(self) -> bool:
        """True if the run of a further batch size would tell more."""
        return self._next_size() is not None

    def ratios(self) -> dict[Key, Interval]:
        """Return the throughput of each batch that fits relative to the fastest, by rising size."""
        completed = self.completed
        fitting = self.fitting
        best = self.best
        if best is None:
            return {}
        pool = Pool({key: completed[key] for key in fitting})
        ratios: dict[Key, Interval] = {}
        for key in fitting:
            if key == best:
                ratios[key] = Interval(1.0, 1.0, 1.0, len(completed[key]))
                continue
            # Batches that fit have throughputs above zero, so that none lacks a ratio.
            ratio = pool.ratio(key, best, 1 - TOLERANCE, single=True)
            if ratio is not None:
                ratios[key] = ratio
        return ratios

    def is_within_tolerance(self, ratio: Interval) -> bool | None:
        """Return whether a ratio to the fastest is shown to be within the tolerance; None if that is undecided.

        The ratio of single runs has no interval: it is assumed to be uncertain by the noise of two runs, √2 σ.
        """
        reach = REACH * self.noise * math.sqrt(2)
        low = ratio.value * math.exp(-reach) if ratio.low is None else ratio.low
        high = ratio.value * math.exp(reach) if ratio.high is None else ratio.high
        if low >= 1 - TOLERANCE:
            return True
        if high < 1 - TOLERANCE:
            return False
        return None

    # How it decides -------------------------------------------------------------------------------------------------

    @cached_property
    def screening(self) -> list[Key]:
        """The batch that it begins with."""
        return [key for key, size in self.size.items() if size == self._start]

    def _new_configurations(self, keep_reserve: bool) -> list[Key]:
        """Return the next batch size, and count it as tried.

        There is none if no further one would tell more or the budget is spent; where nothing of it is reserved, that is
        why `stopped_trying`. Repeats may show that a batch does not fit after all, or that a smaller one may pay.
        """
        key = self._next_size()
        if key is not None and self._is_affordable(key, keep_reserve):
            self.tried[key] = Attempts()
            return [key]
        if not keep_reserve:
            if key is None:
                self.stopped_trying = self._why_finished()
            else:
                self.stopped_trying = f"the budget is spent; next is {self.size[key]}"
        return []

    def _is_affordable(self, key: Key, keep_reserve: bool) -> bool:
        """True if the budget pays the run of a batch and, if asked for, the reserve for repeats; so does the first."""
        if not self.spent:
            return True
        reserve = 0.0
        if keep_reserve:
            reserve = min(LARGEST_RESERVE * self.budget, self._reserved_runs() * self.typical_cost)
        return self.spent + self._expected_cost(self.size[key]) <= self.budget - reserve

    def _next_size(self) -> Key | None:
        """Return the next batch to try; None if a further one would not tell more."""
        if not self.tried:
            return min(self._doublings, key=lambda key: abs(self.size[key] - self._start))
        fitting = self.fitting
        if not fitting:
            return self._next_smaller(self.too_large)
        for propose in (self._toward_the_limit, self._between_neighbours, self._half_that_may_pay):
            key = propose(fitting)
            if key is not None:
                return key
        return None

    def _toward_the_limit(self, fitting: Sequence[Key]) -> Key | None:
        """Return the batch halfway to the one that does not fit, or the next doubling if all fit so far."""
        largest = fitting[-1]
        too_large = self.too_large
        if too_large is not None:
            between = self._allowed_between(largest, too_large)
            return between[len(between) // 2] if between else None
        if not self._fills and self._is_flat():
            return None
        larger = [key for key in self._doublings if self.size[key] > self.size[largest]]
        return larger[0] if larger else None

    def _between_neighbours(self, fitting: Sequence[Key]) -> Key | None:
        """Return a batch between two that fit which may be faster than the fastest; None if none may.

        It is halfway between the two whose upper bound is highest.
        """
        curve = [CurvePoint(math.log(self.size[key]), self._score(key)) for key in fitting]
        fastest = max(point.throughput for point in curve)
        # What noise alone makes seem possible is worth no run.
        highest_bound = fastest + max(RESOLUTION, REACH * self.noise)
        chosen = None
        for segment, (smaller, larger) in zip(segments(curve), itertools.pairwise(fitting), strict=True):
            between = self._allowed_between(smaller, larger)
            bounds = [segment.upper_bound(math.log(self.size[key])) for key in between]
            bound = max(bounds, default=-math.inf)
            if bound > highest_bound:
                highest_bound = bound
                chosen = between[len(between) // 2]
        return chosen

    def _half_that_may_pay(self, fitting: Sequence[Key]) -> Key | None:
        """Return half the smallest batch, unless that is shown to be slower than the tolerance allows."""
        smallest = fitting[0]
        if self.is_within_tolerance(self.ratios()[smallest]) is False:
            return None
        return self._next_smaller(smallest)

    def _next_smaller(self, key: Key | None) -> Key | None:
        """Return the next smaller doubling; None without one."""
        if key is None:
            return None
        smaller = [other for other in self._doublings if self.size[other] < self.size[key]]
        return smaller[-1] if smaller else None

    def _allowed_between(self, smaller: Key, larger: Key) -> list[Key]:
        first, last = self._allowed.index(smaller), self._allowed.index(larger)
        return self._allowed[first + 1 : last]

    @cached_property
    def _allowed(self) -> list[Key]:
        return [key for key in self.size if key not in self.excluded]

    @cached_property
    def _doublings(self) -> list[Key]:
        """Doublings that are not excluded, and the largest size that is not, in rising order."""
        wanted = {*doublings(self._start, max(self.size.values())), self.size[self._allowed[-1]]}
        return [key for key in self._allowed if self.size[key] in wanted]

    def _is_flat(self) -> bool:
        """True if the last doublings gained less than the tolerance."""
        means = [self.mean(key) for key in self.fitting]
        if len(means) <= FLAT_DOUBLINGS:
            return False
        return max(means[-FLAT_DOUBLINGS:]) <= (1 + TOLERANCE) * max(means[:-FLAT_DOUBLINGS])

    def _why_finished(self) -> str:
        """Return why no further batch sizes are tried."""
        if self.too_large is not None:
            return f"{self.size[self.too_large]} ran out of memory"
        largest = self.fitting[-1]
        if largest == self._allowed[-1]:
            return f"{self.size[largest]} fits and it is the largest to try"
        return f"{self.size[largest]} fits and {FLAT_DOUBLINGS} doublings gained less than {TOLERANCE:.0%}"

    def _expected_cost(self, size: int) -> float:
        """Return the cost of a run along the line through the two nearest sizes that completed; 0 before the first.

        It is that of the nearest size if the line falls.
        """
        by_distance = sorted(self.completed, key=lambda key: abs(self.size[key] - size))
        if not by_distance:
            return 0.0
        nearest = by_distance[0]
        nearest_size = self.size[nearest]
        nearest_cost = self.tried[nearest].cost
        slope = 0.0
        if len(by_distance) > 1:
            second = by_distance[1]
            rise = (nearest_cost - self.tried[second].cost) / (nearest_size - self.size[second])
            slope = max(0.0, rise)
        return max(0.0, nearest_cost + slope * (size - nearest_size))

    def _to_repeat(self) -> Sequence[Key]:
        """Return the fastest, what may be faster, the one that pays, and all below it that are undecided.

        There are none if the answer is decided and its batches have enough repeats.
        """
        best = self.best
        pays = self.pays
        if best is None or pays is None:
            return []
        named = [key for key in (best, pays) if len(self.completed[key]) < LEAST_REPEATS]
        # Only one with fewer repeats can be faster than the best.
        faster = [key for key in self.fitting if self._score(key) > self._score(best)]
        undecided = self._undecided()
        if not (named or faster or undecided):
            return []
        return list(dict.fromkeys([best, *named, *faster, *undecided]))

    def _undecided(self) -> list[Key]:
        """Return the undecided batches below the smallest one that is shown to be within the tolerance."""
        undecided = []
        for key, ratio in self.ratios().items():
            is_within = self.is_within_tolerance(ratio)
            if is_within:
                break
            if is_within is None:
                undecided.append(key)
        return undecided
