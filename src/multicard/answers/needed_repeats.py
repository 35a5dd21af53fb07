"""How many repeats would show a small difference, by how much the measured ones scatter."""

from dataclasses import dataclass

from multicard.answers.gain import WORTHWHILE
from multicard.core.units import percent
from multicard.stats.pool import Pool
from multicard.stats.power import MOST_REPEATS, repeats_to_show


@dataclass(frozen=True)
class NeededRepeats:
    """How many repeats of each side show a ratio of `WORTHWHILE` in 80% of experiments; made by `needed_repeats`."""

    # Standard deviation of repeats as a share of their mean.
    scatter: float
    # None if they are more than `stats.power.MOST_REPEATS`.
    repeats: int | None

    def words(self) -> str:
        """Return the number of repeats in words, with the scatter that it follows from.

        >>> NeededRepeats(0.013, 8).words()
        '8 would show a difference of 2% (scatter 1.3%)'
        """
        count = f"more than {MOST_REPEATS}" if self.repeats is None else str(self.repeats)
        scatter = percent(self.scatter, decimals=1)
        return f"{count} would show a difference of {percent(WORTHWHILE - 1, decimals=0)} (scatter {scatter})"


def needed_repeats(pool: Pool, samples: int) -> NeededRepeats | None:
    """Return how many repeats show a difference; None if no repeats show how much they scatter.

    `samples`: how many samples of the pool scatter alike.
    """
    scatter = pool.scatter
    if scatter is None or samples < 2:
        return None
    return NeededRepeats(scatter, repeats_to_show(WORTHWHILE, scatter, samples))
