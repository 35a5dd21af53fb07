"""Whether a scenario's comparisons are decided, and which scenarios get another repeat of all their configurations."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from multicard.answers.pools import pool_of, pool_of_rates
from multicard.answers.scaling.work import STEP_TIME
from multicard.config.added_repeats import AddedRepeats, open_scenarios
from multicard.config.plan import Plan
from multicard.results.configuration import Configuration
from multicard.results.results import SCENARIOS, Results
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool


def are_decided(results: Results, until: float) -> bool:
    """Return True if each comparison of a scenario's configurations is decided; see `is_decided`.

    Every two configurations that completed are compared by their throughputs, or by their step times if the throughput
    of one is not known. Those that skip a part of their step are compared as well. A single configuration is decided if
    the interval of its mean is narrow enough. If none completed, further repeats decide nothing, so True is returned.
    """
    on_one_machine = results.on_any_machine()
    measured = [
        configuration
        for configuration in (*on_one_machine.configurations(), *on_one_machine.ablated())
        if configuration.blocks(STEP_TIME) or configuration.blocks(configuration.rate)
    ]
    if not measured:
        return True
    pool = _pool_of(measured)
    keys = [configuration.key for configuration in measured]
    if len(keys) == 1:
        return is_narrow(pool.mean(keys[0]), until)
    return all(is_decided(pool.ratio(key, base), until) for base, key in combinations(keys, 2))


def _pool_of(configurations: Sequence[Configuration]) -> Pool:
    """Return the throughputs of configurations, or their step times if one of them has no throughput."""
    if all(configuration.blocks(configuration.rate) for configuration in configurations):
        return pool_of_rates(configurations)
    return pool_of(STEP_TIME, configurations)


def is_decided(ratio: Interval | None, until: float) -> bool:
    """Return True if the interval of a ratio is narrow enough (`is_narrow`) or excludes 1.

    >>> is_decided(Interval(1.5, 1.1, 2.1, 3), 0.05), is_decided(Interval(1.0, 0.9, 1.1, 3), 0.05)
    (True, False)
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    excludes_one = ratio.low > 1 or ratio.high < 1
    return excludes_one or is_narrow(ratio, until)


def is_narrow(interval: Interval | None, until: float) -> bool:
    """Return True if half the width of an interval is at most the share `until` of its value.

    >>> is_narrow(Interval(2.0, 1.91, 2.09, 3), 0.05), is_narrow(Interval(2.0, 1.8, 2.1, 3), 0.05)
    (True, False)
    """
    if interval is None or interval.low is None or interval.high is None:
        return False
    return interval.high - interval.low <= 2 * until * interval.value


def next_repeats(plan: Plan) -> dict[str, AddedRepeats]:
    """Return by scenario how far its repeats are, for the scenarios to which repeats may still be added.

    The runs of the plan are to be measured. Scenarios that share runs form a group, and get their repeats together, so
    that all configurations of the group run in each block: a decided scenario goes on with the others of its group. A
    scenario that is decided, whose group is too, has as many repeats as planned, and says so; others have one more.

    Raises `UserError` if a scenario is not measured.
    """
    scenarios = plan.experiment.scenarios
    is_scenario_decided = {}
    for name in open_scenarios(plan.experiment):
        until = scenarios[name].repeats.until
        results = Results.read_scenario(Path(plan.experiment.results) / SCENARIOS / name)
        is_scenario_decided[name] = until is None or are_decided(results, until)
    undecided = {name for name, decided in is_scenario_decided.items() if not decided}
    added = {}
    for name in is_scenario_decided:
        repeats = scenarios[name].repeats
        goes_on = not undecided.isdisjoint(plan.group_of(name))
        count = repeats.least + 1 if goes_on else repeats.least
        added[name] = AddedRepeats(repeats=count, decided=None if goes_on else repeats.until)
    return added
