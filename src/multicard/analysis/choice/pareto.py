"""Which of several configurations that do the same work none is shown to be better than: the Pareto front.

One is worse than another where that is at least as good in time, device-hours and energy by their estimates, and
significantly better in one of them, at 5% by Holm's method for all such comparisons. So a difference that is not shown
takes none off the front, and the front is never empty. Cost is in proportion to device-hours.

The 5% are about the difference that is shown. That the other numbers are no worse rests on the estimates alone, and
these choose the comparisons, too: a pair of which each is better in something is none. So one that is better by less
than the scatter, and worse in the rest, may be taken off the front more often than that; and the family is not fixed
before the data, which makes Holm's method approximate (exact where signs of estimates say nothing of p-values).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from multicard.analysis.pooling import Pool
from multicard.analysis.statistics import LEVEL, Interval, corrected


@dataclass(frozen=True)
class Measured:
    """A configuration on so many devices: its work per second, and its joules per unit of work, by repeat."""

    devices: int
    rates: Mapping[int, float]
    energies: Mapping[int, float]


def front(group: Sequence[Measured]) -> list[bool]:
    """Whether each is on the front. Energy counts between two for which it was recorded."""
    rates, energies = Pool([each.rates for each in group]), Pool([each.energies for each in group])
    tests: list[Interval] = []
    of: list[tuple[int, float]] = []
    for worse, other in permutations(range(len(group)), 2):
        share = group[other].devices / group[worse].devices
        # In time, and in device-hours where that is another comparison: ratios, better above the number beside.
        ratios = [(rates.ratio(other, worse, against), against) for against in dict.fromkeys((1.0, share))]
        if group[other].energies and group[worse].energies:
            ratios.append((energies.ratio(worse, other), 1.0))
        if all(ratio.value >= against for ratio, against in ratios):
            tests += [ratio for ratio, _ in ratios]
            of += [(worse, against) for _, against in ratios]
    beaten = {
        index
        for ratio, (index, against) in zip(corrected(tests), of, strict=True)
        if ratio.p_value is not None and ratio.p_value <= 1 - LEVEL and ratio.value > against
    }
    return [index not in beaten for index in range(len(group))]
