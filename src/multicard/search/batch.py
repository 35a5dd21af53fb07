"""A search for two batch sizes: the largest that fits into memory, and the smallest that *pays*.

The batch that pays is nearly as fast as the fastest batch: it is the smallest that fits and whose throughput is within
`TOLERANCE` of the fastest one's. Sizes are tried one after the other, in four steps:

1. The first size is doubled until a batch runs out of memory, which is a result and no error. If the first batch runs
   out of memory, its size is halved until one fits.
2. Sizes between the largest that fits and the smallest that does not fit are bisected. Between two doublings, sizes
   have steps of an eighth of the smaller doubling: 64 is followed by 72, 80, … 128.
3. Sizes between two that ran are tried, if the upper bound of their throughput (`CurveSegment.upper_bound`) is above
   the fastest by more than `RESOLUTION` and by more than noise can explain. The search may miss a batch that is far
   faster than its neighbours.
4. The smallest size is halved as long as the half may pay.

Between these runs, batches are repeated if it is undecided whether they are within the tolerance, or if they may be
faster than the fastest. A repeat may show that a batch does not fit after all, so the next size is chosen again after
each run.
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

# A batch is as good as the fastest if its throughput is below the fastest one's by no more than this share of it.
TOLERANCE = 0.03
# A size between two others is tried if its throughput may be above the fastest one's by more than this share of it.
RESOLUTION = 0.01
# The number of runs that the two batches of the answer need at least, and the default of the most runs of any batch.
LEAST_REPEATS, MOST_REPEATS = 3, 5
# If memory need not be filled, doubling ends after so many doublings that together gained less than the tolerance.
FLAT_DOUBLINGS = 2


class BatchSearch(Search[Key]):
    """A search for the largest batch that fits, and the smallest that pays. The value of a run is its throughput."""

    fatal = frozenset(OUTCOMES) - {"completed", "out_of_memory"}
    # The batch that pays is decided among several, not by the fastest alone.
    reserved_for = 3

    def __init__(
        self, space: Space[Key], start: int, fills: bool, budget: float = math.inf, repeats: int = MOST_REPEATS
    ) -> None:
        """Begin a search at the size `start`, in a space with one parameter, whose values are batch sizes.

        `fills`: True to double until memory runs out; False to stop doubling once it gains too little.
        """
        super().__init__(space, True, repeats, budget)
        [values] = space.parameters.values()
        sizes: dict[Key, int] = {key: values[level] for (level,), key in space.configurations.items()}
        # The batch size of each configuration, in rising order of the sizes.
        self.size = {key: sizes[key] for key in sorted(sizes, key=sizes.__getitem__)}
        self._start = start
        self._fills = fills

    # What is known so far -------------------------------------------------------------------------------------------

    @property
    def too_large(self) -> Key | None:
        """The smallest batch of which a run ran out of memory; None if none did."""
        too_large = [key for key in self.size if key in self.tried and self.tried[key].failed]
        return too_large[0] if too_large else None

    @property
    def fitting(self) -> list[Key]:
        """Batches that fit, in rising order: all of their runs completed, and no smaller batch ran out of memory."""
        completed = self.completed
        too_large = self.too_large
        limit = math.inf if too_large is None else self.size[too_large]
        return [key for key, size in self.size.items() if key in completed and size < limit]

    @property
    def best(self) -> Key | None:
        """The fastest of the batches that fit and have the most repeats; None if none fits."""
        return self._best_of(self.fitting)

    @property
    def pays(self) -> Key | None:
        """The smallest batch that fits and whose throughput is within the tolerance of `best`; None if none fits."""
        within_tolerance = [key for key, ratio in self.ratios().items() if ratio.value >= 1 - TOLERANCE]
        return within_tolerance[0] if within_tolerance else None

    @property
    def unfinished(self) -> bool:
        """True if another batch size ought to be tried, whether or not the budget allows it."""
        return self._next_size() is not None

    def ratios(self) -> dict[Key, Interval]:
        """Return for each batch that fits its throughput divided by that of `best`, in rising order of size.

        The ratio of `best` itself is 1. Empty if no batch fits.
        """
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
            # The ratio is never None here, because the throughputs of batches that fit are above zero.
            ratio = pool.ratio(key, best, 1 - TOLERANCE, single=True)
            if ratio is not None:
                ratios[key] = ratio
        return ratios

    def is_within_tolerance(self, ratio: Interval) -> bool | None:
        """Return True if a ratio to the fastest is shown to be within the tolerance, False if it is shown not to be.

        None if neither is shown, because the interval of the ratio contains 1 − `TOLERANCE`. A ratio of single runs has
        no interval. It gets one of ± 2 √2 σ in logarithms, where σ is the noise of each of its two runs.
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
        """The batch of the size `start`."""
        return [key for key, size in self.size.items() if size == self._start]

    def _new_configurations(self, keep_reserve: bool) -> list[Key]:
        """Return the next batch size in a list, and count it as tried; an empty list if there is none.

        There is none if no other size ought to be tried, or if the budget does not allow it. With `keep_reserve` that
        is not final: repeats may show that a batch does not fit after all, or that a smaller one may pay. Without it,
        the reason is put into `stopped_trying`.
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
        """True if the rest of the budget is enough for a run of a batch, and with `keep_reserve` also for the reserve.

        The first run is always affordable. The reserve is for repeats.
        """
        if not self.spent:
            return True
        reserve = 0.0
        if keep_reserve:
            reserve = min(LARGEST_RESERVE * self.budget, self._reserved_runs() * self.typical_cost)
        return self.spent + self._expected_cost(self.size[key]) <= self.budget - reserve

    def _next_size(self) -> Key | None:
        """Return the next batch to try by the four steps of the module; None if there is none."""
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
        """Return the next batch of the steps 1 and 2; None if these are done.

        It is the one halfway between the largest that fits and the smallest that does not fit. If all fit so far, it is
        the next doubling.
        """
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
        """Return the next batch of step 3, which lies between two neighbours that fit.

        None if no batch there may be faster than the fastest. Of all pairs of neighbours, the pair is chosen that has
        the highest upper bound between them. The batch is the one halfway between the two.
        """
        curve = [CurvePoint(math.log(self.size[key]), self._score(key)) for key in fitting]
        fastest = max(point.throughput for point in curve)
        # The curve holds logarithms, so a difference is a share. If the bound is above the fastest only by what noise
        # can explain, a run is not worth its cost.
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
        """Return the next batch of step 4: the doubling below the smallest batch that fits.

        None if that smallest batch is shown to be outside of the tolerance, since smaller ones would be slower still.
        """
        smallest = fitting[0]
        if self.is_within_tolerance(self.ratios()[smallest]) is False:
            return None
        return self._next_smaller(smallest)

    def _next_smaller(self, key: Key | None) -> Key | None:
        """Return the largest doubling below the batch `key`; None if there is none, or if `key` is None."""
        if key is None:
            return None
        smaller = [other for other in self._doublings if self.size[other] < self.size[key]]
        return smaller[-1] if smaller else None

    def _allowed_between(self, smaller: Key, larger: Key) -> list[Key]:
        """Return the batches between two others, without excluded ones, in rising order."""
        first, last = self._allowed.index(smaller), self._allowed.index(larger)
        return self._allowed[first + 1 : last]

    @cached_property
    def _allowed(self) -> list[Key]:
        return [key for key in self.size if key not in self.excluded]

    @cached_property
    def _doublings(self) -> list[Key]:
        """In rising order: the doublings and halves of `start`, and the largest size; all without excluded ones."""
        wanted = {*doublings(self._start, max(self.size.values())), self.size[self._allowed[-1]]}
        return [key for key in self._allowed if self.size[key] in wanted]

    def _is_flat(self) -> bool:
        """True if the largest batches are not faster than the smaller ones by more than the tolerance.

        Of the batches that fit, the fastest of the last `FLAT_DOUBLINGS` is compared with the fastest before these.
        False if there is none before these.
        """
        means = [self.mean(key) for key in self.fitting]
        if len(means) <= FLAT_DOUBLINGS:
            return False
        return max(means[-FLAT_DOUBLINGS:]) <= (1 + TOLERANCE) * max(means[:-FLAT_DOUBLINGS])

    def _why_finished(self) -> str:
        """Return in words why no other batch sizes are tried, although the budget would allow it."""
        if self.too_large is not None:
            return f"{self.size[self.too_large]} ran out of memory"
        largest = self.fitting[-1]
        if largest == self._allowed[-1]:
            return f"{self.size[largest]} fits and it is the largest to try"
        return f"{self.size[largest]} fits and {FLAT_DOUBLINGS} doublings gained less than {TOLERANCE:.0%}"

    def _expected_cost(self, size: int) -> float:
        """Return the expected cost of a run of a batch size; 0 before a run has completed.

        It lies on the line through the costs of the two nearest sizes that completed. If there is only one, or if the
        cost falls with the size, it is the cost of the nearest size.
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
        """Return the batches to repeat, the most important first; none if the answer is decided.

        The answer needs repeats of `best` and `pays` if these have fewer than `LEAST_REPEATS` runs, of batches with a
        better mean than `best` (they have fewer runs), and of `_undecided`. With any of these, `best` is repeated, too.
        """
        best = self.best
        pays = self.pays
        if best is None or pays is None:
            return []
        named = [key for key in (best, pays) if len(self.completed[key]) < LEAST_REPEATS]
        # `best` has the best mean of those with the most repeats, so these have fewer repeats.
        faster = [key for key in self.fitting if self._score(key) > self._score(best)]
        undecided = self._undecided()
        if not (named or faster or undecided):
            return []
        return list(dict.fromkeys([best, *named, *faster, *undecided]))

    def _undecided(self) -> list[Key]:
        """Return the undecided batches that are smaller than any batch which is shown to be within the tolerance."""
        undecided = []
        for key, ratio in self.ratios().items():
            is_within = self.is_within_tolerance(ratio)
            if is_within:
                break
            if is_within is None:
                undecided.append(key)
        return undecided
