"""Runs start in shuffled blocks: no configuration is favoured, and nothing but the seed decides."""

import hashlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from multicard.config.load import check
from multicard.config.order import Place, planned_order
from multicard.config.plan import Plan
from multicard.config.runs import expand
from multicard.stats.pool import pooled, ratio_of
from multicard.stats.samples import ratio_by_block

DEVICES = [1, 2, 3, 4]
SEEDS = range(600)
# Of numbers that follow the distribution, one in ten thousand statistics has a lower probability.
LEAST_P = 1e-4


def experiment(order_seed: int = 0, **scenarios: dict[str, Any]) -> Any:
    filled = {
        name: {"question": "?", "figures": ["step_breakdown"], **scenario} for name, scenario in scenarios.items()
    }
    return check({"order_seed": order_seed, "fixed": {"device": "cpu"}, "scenarios": filled}, "test")


def scaling(devices: list[int], repeats: int = 3) -> dict[str, Any]:
    return {"fixed": {"strategy": "ddp"}, "vary": {"devices": devices}, "repeats": repeats}


def blocks(order: dict[str, Place], scenarios: Any, name: str) -> list[list[int]]:
    """Devices of a scenario's runs in the order of their start, block by block."""
    runs = {run.id: run.parameters for run in scenarios[name]}
    started = [runs[run] for run, place in order.items() if name in place.group]
    return [
        [p.devices for p in group] for _, group in itertools.groupby(started, key=lambda parameters: parameters.repeat)
    ]


def test_every_configuration_runs_once_in_each_block_and_what_is_added_leaves_the_others_in_their_order() -> None:
    one, more = (expand(experiment(a=scaling(devices, repeats=5))) for devices in (DEVICES, [8, *DEVICES, 6]))
    some, repeated = (expand(experiment(a=scaling(DEVICES, n), b=scaling([1, 8], n))) for n in (1, 3))
    for seed in range(20):
        before, after = (blocks(planned_order(found, seed), found, "a") for found in (one, more))
        assert [sorted(block) for block in before] == [DEVICES] * 5
        assert [[devices for devices in block if devices in DEVICES] for block in after] == before
        first, every = (list(planned_order(found, seed)) for found in (some, repeated))
        assert every[: len(first)] == first
    # By a digest, not by what differs from process to process.
    ids = (run.id for run in one["a"] if run.parameters.repeat == 1)
    expected = sorted(ids, key=lambda run: hashlib.sha256(f'[7, "{run}"]'.encode()).digest())
    assert list(planned_order(one, 7))[: len(expected)] == expected


def test_over_the_seeds_every_order_of_a_block_is_equally_likely() -> None:
    scenarios = expand(experiment(a=scaling(DEVICES)))
    orders = [blocks(planned_order(scenarios, seed), scenarios, "a") for seed in SEEDS]
    for block in range(3):
        counts = Counter(tuple(order[block]) for order in orders)
        assert set(counts) == set(itertools.permutations(DEVICES))
        assert chisquare(list(counts.values())).pvalue > LEAST_P
    # Nor does one block tell of the next: which configuration is first in each are independent.
    firsts = Counter((order[0][0], order[1][0]) for order in orders)
    table = [[firsts[one, other] for other in DEVICES] for one in DEVICES]
    assert chi2_contingency(table).pvalue > LEAST_P


@pytest.mark.slow
def test_drift_over_scenarios_that_share_a_baseline_is_no_effect() -> None:
    # The second scenario compares the runs of the first with its own, in which nothing is different but the moment.
    # From the first to the last run of all, times grow by 2%, four times as much as they scatter.
    common = {"fixed": {"device": "cuda"}, "repeats": 5}
    sizes = {"image_size": [32, 64, 96], "batch_size": [16, 32]}
    scenarios = expand(
        experiment(
            sizes={"vary": sizes, **common},
            pinned_memory={"vary": {"pin_memory": [False, True], **sizes}, **common},
        )
    )
    runs = {run.id: run.parameters for run in scenarios["pinned_memory"]}
    assert len(runs) == 60 and {run.id for run in scenarios["sizes"]} < runs.keys()
    chance, seeds = np.random.default_rng(0), 300
    decided = {"single": 0, "pooled": 0}
    for seed in range(seeds):
        times: dict[Any, dict[int, float]] = {}
        for position, run in enumerate(planned_order(scenarios, seed)):
            p = runs[run]
            time = (1 + 0.02 * position / 59) * np.exp(chance.normal(0, 0.005))
            times.setdefault((p.image_size, p.batch_size, p.pin_memory), {})[p.repeat] = time
        pairs = [(times[*size, True], times[*size, False]) for size in itertools.product(*sizes.values())]
        together = pooled([ratio_by_block(*pair) for pair in pairs])
        for name, ratio in (("single", ratio_of(*pairs[0])), ("pooled", together)):
            decided[name] += not ratio.low <= 1 <= ratio.high
    # 5% by the intervals' coverage, within four standard errors.
    reach = 4 * (0.05 * 0.95 / seeds) ** 0.5
    assert decided == pytest.approx(dict.fromkeys(decided, 0.05 * seeds), abs=reach * seeds)


def test_scenarios_that_share_runs_by_way_of_others_too_have_common_blocks_and_the_rest_keeps_its_order() -> None:
    shared = {"d": [1, 2], "b": [9], "c": [3, 4], "a": [2, 4]}  # d and c share nothing, but each a run with a
    scenarios = expand(
        experiment(**{name: scaling(devices, repeats=3 if name == "a" else 2) for name, devices in shared.items()})
    )
    order = planned_order(scenarios, seed=7)
    assert [place.group for place in order.values()] == [("d", "c", "a")] * 10 + [("b",)] * 2
    assert [place.position for place in order.values()] == [*range(1, 11), 1, 2]
    assert {place.seed for place in order.values()} == {7}
    devices = {run.id: run.parameters.devices for runs in scenarios.values() for run in runs}
    started = [(place.block, devices[run]) for run, place in order.items()]
    assert [sorted(group) for _, group in itertools.groupby(started, key=lambda each: each[0])] == [
        [(1, 1), (1, 2), (1, 3), (1, 4)], [(2, 1), (2, 2), (2, 3), (2, 4)], [(3, 2), (3, 4)], [(1, 9)], [(2, 9)],
    ]  # fmt: skip


def test_scenarios_that_share_nothing_follow_each_other_as_in_the_file_whatever_the_seed() -> None:
    scenarios = expand(experiment(second=scaling([1, 2]), first=scaling([3, 4])))
    for seed in range(5):
        groups = [place.group for place in planned_order(scenarios, seed).values()]
        assert list(dict.fromkeys(groups)) == [("second",), ("first",)]
    one, other = (expand(experiment(seed, a=scaling(DEVICES))) for seed in (0, 1))
    assert one == other, "the seed changes no run"


def test_priorities_put_figures_after_the_runs_of_their_group() -> None:
    scenarios = {
        "one": {"question": "?", "vary": {"seed": [0, 1]}, "figures": ["step_breakdown"]},
        "two": {"question": "?", "vary": {"seed": [2]}, "figures": ["step_breakdown"]},
    }
    plan = Plan.make(check({"fixed": {"device": "cpu"}, "scenarios": scenarios}, "test"))
    first, second, third = plan.order
    jobs = [
        plan.first_priority, plan.priority_of_run(first), plan.priority_of_run(second),
        plan.priority_of_scenario("one"), plan.priority_of_run(third), plan.priority_of_scenario("two"),
    ]  # fmt: skip
    assert jobs == sorted(set(jobs), reverse=True)
    assert plan.priority_of_trace(first) == plan.priority_of_scenario("one")
