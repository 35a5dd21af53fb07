"""How many repeats would show a small difference, by how much the measured ones scatter."""

from dataclasses import dataclass

from multicard.answers.gain import WORTHWHILE
from multicard.core.units import percent
from multicard.stats.pool import Pool
from multicard.stats.power import MOST_REPEATS, repeats_to_show

SMALL = percent(WORTHWHILE - 1, decimals=0)  # the difference that repeats are to show


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
        return f"{self._count_words} would show a difference of {SMALL} ({self._scatter_words})"

    def words_with(self, measured: int, measured_words: str) -> str:
        """Return whether the measured repeats show a small difference, or how many would, then the numbers.

        `measured`: the least number of repeats of a configuration; `measured_words`: all of them in words.

        >>> NeededRepeats(0.035, 52).words_with(3, "3 of each")
        '52 repeats would decide a difference of 2% (now 3 of each, scatter 3.5%)'
        >>> NeededRepeats(0.001, 2).words_with(3, "3 of each")
        'the repeats would show a difference of 2% (3 of each, scatter 0.1%)'
        """
        if self.repeats is not None and self.repeats <= measured:
            return f"the repeats would show a difference of {SMALL} ({measured_words}, {self._scatter_words})"
        count = self._count_words
        return f"{count} repeats would decide a difference of {SMALL} (now {measured_words}, {self._scatter_words})"

    @property
    def _count_words(self) -> str:
        return f"more than {MOST_REPEATS}" if self.repeats is None else str(self.repeats)

    @property
    def _scatter_words(self) -> str:
        return f"scatter {percent(self.scatter, decimals=1)}"


def needed_repeats(pool: Pool, samples: int) -> NeededRepeats | None:
    """Return how many repeats show a difference; None if no repeats show how much they scatter.

    `samples`: how many samples of the pool scatter alike.
    """
    scatter = pool.scatter
    if scatter is None or samples < 2:
        return None
    return NeededRepeats(scatter, repeats_to_show(WORTHWHILE, scatter, samples))
