"""The memory of configurations in words, beside their speed: methods trade one for the other."""

from collections.abc import Callable, Sequence

from multicard.answers.pools import pool_of
from multicard.core.units import BYTES, with_unit
from multicard.results.configuration import Configuration
from multicard.stats.interval import Interval

PEAK_MEMORY = "peak_memory_bytes"
# Of more configurations, values are listed without their intervals, which stand in the figures and tables.
MOST_WITH_INTERVALS = 2


def peak_memory_words(
    configurations: Sequence[Configuration], measured: Sequence[Configuration], name: Callable[[Configuration], str]
) -> str:
    """Return the mean peak memory of some configurations of one program; empty unless their methods differ.

    It is empty, too, if the memory of one was not measured. `measured`: all configurations of the scenario, from whose
    scatter intervals follow. `name`: returns the name of a configuration in the answer.
    """
    method = configurations[0].program.method
    if len({configuration[method] for configuration in configurations}) < 2:
        return ""
    pool = pool_of(PEAK_MEMORY, measured)
    has_intervals = len(configurations) <= MOST_WITH_INTERVALS
    texts = []
    for configuration in configurations:
        memory = pool.mean(configuration.key)
        if memory is None:
            return ""
        texts.append(f"{name(configuration)} {_in_words(memory, has_intervals)}")
    return f"peak memory of a rank: {', '.join(texts)}"


def _in_words(memory: Interval, has_interval: bool) -> str:
    """Return a mean of bytes in a unit that suits it, with its interval or without it."""
    if has_interval:
        return memory.format(lambda size: with_unit(size, BYTES))
    return with_unit(memory.value, BYTES)
