"""Which batch sizes to run next: doubled until one runs out of memory, bisected, then repeated to tell which one pays.

Between two doublings lie steps of an eighth of the smaller one, so 64 is followed by 72, 80, … 128. To run out of
memory is a result. A batch *pays* if it is the smallest that ran of those whose throughput is within a tolerance of the
fastest that ran: where it is the smallest of all, it is halved too. What is undecided by the interval of its ratio to
the fastest is repeated, and so is what may be faster than that.

Batches between those that ran run too, until none may be faster than the fastest by more than `RESOLUTION` and than
noise explains. This takes the curve to bend down: over the logarithm of the batch, the logarithm of the throughput
rises ever less or falls ever more. So it lies below the line through any two batches everywhere but between these.
Nothing is promised of a batch that is far faster than those beside it.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property

from multicard.core.layout import OUTCOMES
from multicard.core.text import listed
from multicard.core.units import BYTES, percent, with_unit
from multicard.search.core import REACH, Search, Space, Tried
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool

TOLERANCE = 0.03  # of the throughput of the fastest, which is nothing to gain
RESOLUTION = 0.01  # of the throughput of the fastest: what a batch between others has to gain to be worth a run
PARTS = 8  # of a doubling, which are its steps
LEAST_REPEATS, MOST_REPEATS = 3, 5  # of the fastest batch and of the one that pays; of any
FLAT = 2  # doublings without a gain, after which a machine whose memory is not to be filled has shown enough
FITS, TOO_LARGE = "completed", "out_of_memory"


def doublings(start: int, largest: int) -> list[int]:
    """Batch sizes by doubling from a first one up to the largest, and by halving it down to one.

    >>> doublings(24, 200)
    [1, 3, 6, 12, 24, 48, 96, 192, 200]
    """
    down = [start >> halvings for halvings in range(start.bit_length())]
    up = [start << times for times in range(1, largest.bit_length()) if start << times <= largest]
    return sorted({*down, *up, largest})


def sizes(start: int, largest: int) -> list[int]:
    """All batch sizes that may be tried: doublings, and the steps between.

    >>> sizes(8, 32)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32]
    """
    found = doublings(start, largest)
    between = (range(low, high, max(1, low // PARTS)) for low, high in itertools.pairwise(found))
    return [*(size for steps in between for size in steps), largest]


class BatchSearch(Search):
    """A search for the largest batch that fits and for the smallest that pays; values are throughputs.

    `size`: batch sizes by configuration, in rising order.
    """

    fatal = frozenset(OUTCOMES) - {FITS, TOO_LARGE}

    def __init__(
        self, space: Space, start: int, fills: bool, budget: float = math.inf, repeats: int = MOST_REPEATS
    ) -> None:
        """Begin a search in a space of one parameter, whose values are batch sizes, with the size `start`.

        `fills`: whether to double until memory runs out; otherwise until it gains nothing.
        """
        [listed] = space.parameters.values()
        found = {key: listed[level] for (level,), key in space.configurations.items()}
        self.size: dict[Hashable, int] = dict(sorted(found.items(), key=lambda each: each[1]))
        self._start, self._fills = start, fills
        super().__init__(space, True, repeats, budget)

    @cached_property
    def _doublings(self) -> list[Hashable]:
        """The doublings of what is not left out, and the largest such size, in rising order."""
        own = {*doublings(self._start, max(self.size.values())), self.size[self._allowed[-1]]}
        return [key for key in self._allowed if self.size[key] in own]

    @cached_property
    def _allowed(self) -> list[Hashable]:
        return [key for key in self.size if key not in self.excluded]

    def _screening(self) -> list[Hashable]:
        return [key for key, size in self.size.items() if size == self._start]

    @property
    def unfinished(self) -> bool:
        """Whether a further batch size would tell more."""
        return self._next() is not None

    @property
    def too_large(self) -> Hashable | None:
        """The smallest batch that ran out of memory, in one of its runs."""
        return next((key for key in self.size if key in self.tried and self.tried[key].failed), None)

    @property
    def fitting(self) -> list[Hashable]:
        """Batches that fit, in rising order: they ran, and no smaller one ran out of memory."""
        limit = math.inf if self.too_large is None else self.size[self.too_large]
        return [key for key, size in self.size.items() if key in self.completed and size < limit]

    @property
    def best(self) -> Hashable | None:
        """The fastest batch that fits, among those with the most repeats."""
        fitting = self.fitting
        most = max((len(self.completed[key]) for key in fitting), default=0)
        return max((key for key in fitting if len(self.completed[key]) == most), key=self._score, default=None)

    def ratios(self) -> dict[Hashable, Interval]:
        """Throughput of each batch that fits relative to the fastest."""
        keys, best = self.fitting, self.best
        pool = Pool([self.completed[key] for key in keys])
        ratios = {}
        for index, key in enumerate(keys):
            if key == best:
                ratios[key] = Interval(1.0, 1.0, 1.0, len(self.completed[key]))
            elif ratio := pool.ratio(index, keys.index(best), 1 - TOLERANCE, single=True):
                ratios[key] = ratio
        return ratios

    @property
    def pays(self) -> Hashable | None:
        """The smallest batch whose throughput is within the tolerance of the fastest's."""
        return next((key for key, ratio in self.ratios().items() if ratio.value >= 1 - TOLERANCE), None)

    def side(self, ratio: Interval) -> int:
        """Whether a ratio to the fastest is within the tolerance (1) or not (-1); 0 where that is undecided."""
        reach = REACH * self.noise * math.sqrt(2)  # of single runs, by the usual noise
        low = ratio.value * math.exp(-reach) if ratio.low is None else ratio.low
        high = ratio.value * math.exp(reach) if ratio.high is None else ratio.high
        return (low >= 1 - TOLERANCE) - (high < 1 - TOLERANCE)

    def _new(self, keeps: bool = True) -> list[Hashable]:
        """The next batch size; none if all is known or the budget is spent, which `ended` says where nothing is kept.

        Repeats may show that a batch does not fit after all, or that a smaller one may pay.
        """
        key, kept = self._next(), min(self.budget / 3, self._reserve() * self.typical_cost) if keeps else 0
        if key is None or (self.spent and self.spent + self._expected_cost(self.size[key]) > self.budget - kept):
            if not keeps:
                self.ended.append(self._known() if key is None else f"the budget is spent; next is {self.size[key]}")
            return []
        self.tried[key] = Tried()
        return [key]

    def _next(self) -> Hashable | None:
        """Double or halve until the limit lies between two batches, bisect, find the fastest, halve while it pays."""
        fitting, limit = self.fitting, self.too_large
        if not self.tried:
            return min(self._doublings, key=lambda key: abs(self.size[key] - self._start))
        if not fitting:
            return next((key for key in reversed(self._doublings) if self.size[key] < self.size[limit]), None)
        top, bottom = fitting[-1], fitting[0]
        if limit is not None:
            between = self._allowed[self._allowed.index(top) + 1 : self._allowed.index(limit)]
            if between:
                return between[len(between) // 2]
        elif self._fills or not self._is_flat():
            larger = [key for key in self._doublings if self.size[key] > self.size[top]]
            if larger:
                return larger[0]
        if (between := self._between()) is not None:
            return between
        smaller = [key for key in self._doublings if self.size[key] < self.size[bottom]]
        return smaller[-1] if smaller and self.side(self.ratios()[bottom]) >= 0 else None

    def _between(self) -> Hashable | None:
        """Return a batch between two that fit which may be faster than the fastest; None if none may.

        It is halfway between the two whose bound is highest.
        """
        fitting = self.fitting
        # What noise alone makes seem possible is worth no run.
        enough = max(map(self._score, fitting)) + max(RESOLUTION, REACH * self.noise)
        halfway = {}
        for low in range(len(fitting) - 1):
            first, last = (self._allowed.index(fitting[at]) for at in (low, low + 1))
            if between := self._allowed[first + 1 : last]:
                bound = max(self._bound(low, math.log(self.size[key])) for key in between)
                halfway[bound] = between[len(between) // 2]
        highest = max(halfway, default=-math.inf)
        return halfway[highest] if highest > enough else None

    def _bound(self, low: int, place: float) -> float:
        """Return what the logarithm of the throughput is at most between two neighbours among the batches that fit.

        It is below the line through the smaller of the two and the next smaller one, and below that through the larger
        and the next larger one. Where the curve bends up at an end, as after a sudden fall, the line there bounds
        nothing. Where it bends up at both, nothing speaks for more than the two have.

        `low`: the place of the smaller one among them; `place`: the logarithm of the batch.
        """
        fitting = self.fitting
        x = [math.log(self.size[key]) for key in fitting]
        y = [self._score(key) for key in fitting]
        slopes = [(y[at + 1] - y[at]) / (x[at + 1] - x[at]) for at in range(len(x) - 1)]
        bounds = []
        if low > 0 and slopes[low - 1] >= slopes[low]:
            bounds.append(y[low] + slopes[low - 1] * (place - x[low]))
        if low + 2 < len(x) and slopes[low] >= slopes[low + 1]:
            bounds.append(y[low + 1] + slopes[low + 1] * (place - x[low + 1]))
        return min(bounds, default=max(y[low], y[low + 1]))

    def _is_flat(self) -> bool:
        """Whether the last doublings gained nothing."""
        means = [self.mean(key) for key in self.fitting]
        return len(means) > FLAT and max(means[-FLAT:]) <= (1 + TOLERANCE) * max(means[:-FLAT])

    def _known(self) -> str:
        """Why no further batch sizes are tried."""
        if self.too_large is not None:
            return f"{self.size[self.too_large]} ran out of memory"
        top = self.fitting[-1]
        flat = f"{FLAT} doublings gained less than {TOLERANCE:.0%}"
        return f"{self.size[top]} fits and {'it is the largest to try' if top == self._allowed[-1] else flat}"

    def _expected_cost(self, size: int) -> float:
        """What a run will cost: along the line through the two nearest sizes that ran, if it rises."""
        near = sorted(self.completed, key=lambda key: abs(self.size[key] - size))[:2]
        costs, of = [self.tried[key].cost for key in near], [self.size[key] for key in near]
        slope = max(0.0, (costs[0] - costs[1]) / (of[0] - of[1])) if len(near) == 2 else 0.0
        return max(0.0, costs[0] + slope * (size - of[0])) if near else 0.0

    def _due(self) -> Sequence[Hashable]:
        """The fastest and what may be faster, the one that pays, and all that are undecided below it."""
        if (best := self.best) is None:
            return []
        sides = {key: self.side(ratio) for key, ratio in self.ratios().items()}
        sure = next((self.size[key] for key, side in sides.items() if side > 0), math.inf)
        open_ = [key for key, side in sides.items() if (not side and self.size[key] < sure)]
        faster = [key for key in sides if self._score(key) > self._score(best)]
        few = [key for key in (best, self.pays) if len(self.completed[key]) < LEAST_REPEATS]
        return list(dict.fromkeys([best, *few, *faster, *open_])) if few or faster or open_ else []

    def conclusion(self, in_words: Callable[[float], str], memory: Mapping[Hashable, float]) -> list[str]:
        """The largest batch that fits and the one that pays, then throughput and memory of each size, in lines.

        `memory`: bytes by configuration; 0 where they are not known.
        """

        def needs(key: Hashable) -> str:
            return f" ({with_unit(memory[key], BYTES)})" if memory[key] else ""

        size, fitting, limit, ratios = self.size, self.fitting, self.too_large, self.ratios()
        top, pays, best, within = fitting[-1], self.pays, self.best, f"{TOLERANCE:.0%}"
        so_far = " so far" if self.unfinished else ""
        if limit is None:
            stopped = f"; {self.ended[0]}" if self.ended else ""
            lines = [f"no batch ran out of memory: {size[top]}{needs(top)} is the largest that ran{stopped}"]
        else:
            lines = [f"largest batch that fits{so_far}: {size[top]}{needs(top)}; {size[limit]} ran out of memory"]
        found = f"{ratios[pays].format(lambda value: percent(value, decimals=1))} as fast as the fastest, {size[best]}"
        larger = "" if pays == top else f"; of those that ran, larger ones gain less than {within}"
        if pays == best:
            lines.append(f"batch that pays{so_far}: {size[pays]}, the fastest{larger}")
        elif self.side(ratios[pays]) > 0:
            lines.append(f"batch that pays{so_far}: {size[pays]}, {found}{larger}")
        else:
            lines.append(f"batch that pays{so_far}: probably {size[pays]}, {found}, not shown to be within {within}")
        if unsure := [str(size[key]) for key in fitting if size[key] < size[pays] and not self.side(ratios[key])]:
            lines.append(f"may be within {within} of it too: {listed(unsure)}")
        pool = Pool([self.completed[key] for key in fitting])
        for at, key in enumerate(fitting):
            share = f"{percent(ratios[key].value, decimals=1)} of the fastest"
            rate = pool.mean(at)
            lines.append(f"  {size[key]}: {rate.format(in_words) if rate else ''}, {share}{needs(key)}")
        return lines
