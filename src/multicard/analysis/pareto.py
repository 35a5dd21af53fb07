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

from multicard.analysis.statistics import LEVEL, Interval, corrected, ratio_of


@dataclass(frozen=True)
class Measured:
    """A configuration on so many devices: its work per second, and its joules per unit of work, by repeat."""

    devices: int
    rates: Mapping[int, float]
    energies: Mapping[int, float]


def front(group: Sequence[Measured]) -> list[bool]:
    """Whether each is on the front. Energy counts between two for which it was recorded."""
    tests: list[Interval] = []
    of: list[tuple[int, float]] = []
    for index, worse in enumerate(group):
        for other in group:
            ratios = _advantages(other, worse) if other is not worse else []
            if all(ratio.value >= against for ratio, against in ratios):
                tests += [ratio for ratio, _ in ratios]
                of += [(index, against) for _, against in ratios]
    beaten = {
        index
        for ratio, (index, against) in zip(corrected(tests), of, strict=True)
        if ratio.p_value is not None and ratio.p_value <= 1 - LEVEL and ratio.value > against
    }
    return [index not in beaten for index in range(len(group))]


def _advantages(one: Measured, other: Measured) -> list[tuple[Interval, float]]:
    """How much better one is than another in time, device-hours and energy: ratios, better above the number beside."""
    ratios = [(ratio_of(one.rates, other.rates), 1.0)]
    if one.devices != other.devices:  # else the same comparison
        share = one.devices / other.devices
        ratios.append((ratio_of(one.rates, other.rates, against=share), share))
    if one.energies and other.energies:
        ratios.append((ratio_of(other.energies, one.energies), 1.0))
    return ratios
