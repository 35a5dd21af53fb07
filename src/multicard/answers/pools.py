"""Pools of what configurations were measured to do, from which the intervals of answers follow."""

from collections.abc import Sequence

from multicard.results.configuration import Configuration
from multicard.stats.pool import Pool


def pool_of_rates(configurations: Sequence[Configuration], beside: Sequence[Configuration] = ()) -> Pool:
    """Return the throughput of each configuration by its key; `beside` as in `pool_of`."""
    return pool_of(None, configurations, beside)


def pool_of(measure: str | None, configurations: Sequence[Configuration], beside: Sequence[Configuration] = ()) -> Pool:
    """Return the values of a measure by the keys of configurations.

    `measure`: None for the throughput, whose measure is each configuration's own. `beside`: further configurations,
    such as those of other jobs, which only show how much repeats of their scenarios scatter.
    """
    samples, others = (
        {configuration.key: configuration.blocks(measure or configuration.rate) for configuration in group}
        for group in (configurations, beside)
    )
    return Pool(samples, beside=others)
