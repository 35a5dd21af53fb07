"""Runs start in shuffled blocks: no configuration is favoured, and nothing but the seed decides."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from scipy.stats import chi2_contingency, chisquare

from multicard.archive.matrix import Matrix
from multicard.experiment.load import check
from multicard.experiment.runs import Place, expand, planned_order

DEVICES = [1, 2, 3, 4]
SEEDS = range(2400)
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
    started = [runs[run] for run, place in order.items() if place.scenario == name]
    return [
        [p.devices for p in group] for _, group in itertools.groupby(started, key=lambda parameters: parameters.repeat)
    ]


def test_every_configuration_runs_once_in_each_block() -> None:
    scenarios = expand(experiment(a=scaling(DEVICES, repeats=5)))
    for seed in range(20):
        found = blocks(planned_order(scenarios, seed), scenarios, "a")
        assert [sorted(block) for block in found] == [DEVICES] * 5


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


def test_drift_that_grows_from_run_to_run_favours_no_configuration() -> None:
    # Each run is one part slower than the one before it. With repeats back to back, the last of four configurations
    # would be 3 · 3 = 9 parts slower than the first, whatever the seed.
    scenarios = expand(experiment(a=scaling(DEVICES)))
    slower = dict.fromkeys(DEVICES, 0.0)
    for seed in SEEDS:
        order = itertools.chain(*blocks(planned_order(scenarios, seed), scenarios, "a"))
        for position, devices in enumerate(order):
            slower[devices] += position / 3
    means = [total / len(SEEDS) for total in slower.values()]
    # Mean position (0 + 11) / 2. A mean of three uniform places among four has a variance of (16 − 1) / 12 / 3.
    standard_error = (15 / 36 / len(SEEDS)) ** 0.5
    assert means == pytest.approx([5.5] * 4, abs=4 * standard_error)


def test_a_configuration_that_is_added_leaves_the_others_in_their_order() -> None:
    one, more = (expand(experiment(a=scaling(devices))) for devices in (DEVICES, [8, *DEVICES, 6]))
    for seed in range(20):
        before, after = (blocks(planned_order(found, seed), found, "a") for found in (one, more))
        assert [[devices for devices in block if devices in DEVICES] for block in after] == before


def test_blocks_scenarios_and_seeds_are_shuffled_apart() -> None:
    scenarios = expand(experiment(a=scaling([*range(1, 9)]), b=scaling([*range(9, 17)])))
    first, other = (planned_order(scenarios, seed) for seed in (0, 1))
    shuffled = [*blocks(first, scenarios, "a"), *blocks(other, scenarios, "a")]
    shuffled += [[devices - 8 for devices in block] for block in blocks(first, scenarios, "b")]
    assert len({tuple(block) for block in shuffled}) == len(shuffled) == 9


def test_a_shared_run_goes_with_the_first_scenario_and_scenarios_keep_their_order() -> None:
    scenarios = expand(experiment(b=scaling([1, 2], repeats=2), a=scaling([2, 4], repeats=3)))
    order = planned_order(scenarios, seed=7)
    assert [place.scenario for place in order.values()] == ["b"] * 4 + ["a"] * 4
    assert [place.position for place in order.values()] == [1, 2, 3, 4] * 2
    assert [sorted(block) for block in blocks(order, scenarios, "a")] == [[4], [4], [2, 4]]
    assert {place.seed for place in order.values()} == {7}


def test_the_seed_changes_no_run_and_no_table() -> None:
    one, other = (expand(experiment(seed, a=scaling(DEVICES))) for seed in (0, 1))
    assert one == other


PROGRAM = """
from multicard.archive.matrix import Matrix
from multicard.experiment.load import check
text = {"question": "?", "vary": {"precision": ["fp32", "fp64", "bf16", "fp16"]}, "figures": ["step_breakdown"]}
print(*Matrix.plan(check({"scenarios": {"a": text}}, "test")).order)
"""


def test_the_order_does_not_depend_on_the_process() -> None:
    orders = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=600,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(orders) == 1


def test_priorities_put_data_before_runs_and_figures_after_them_scenario_by_scenario() -> None:
    sets = {"digits": {"source": "digits"}, "other": {"source": "digits", "limit": 100}}
    scenarios = {
        "one": {"question": "?", "vary": {"dataset": ["digits"], "seed": [0, 1]}, "figures": ["step_breakdown"]},
        "two": {"question": "?", "vary": {"dataset": ["digits", "other"]}, "figures": ["step_breakdown"]},
    }
    matrix = Matrix.plan(check({"datasets": sets, "fixed": {"device": "cpu"}, "scenarios": scenarios}, "test"))
    [digits], [other] = (
        {matrix.prepared(run.id)["data"] for run in runs if run.parameters.dataset == name}
        for name, runs in zip(sets, matrix.scenarios.values(), strict=True)
    )
    first, second, third = matrix.order
    jobs = [
        matrix.first_priority, matrix.priority_of_prepared(digits),
        matrix.priority_of_run(first), matrix.priority_of_run(second), matrix.priority_of_scenario("one"),
        matrix.priority_of_prepared(other), matrix.priority_of_run(third), matrix.priority_of_scenario("two"),
    ]  # fmt: skip
    assert jobs == sorted(set(jobs), reverse=True)
    assert matrix.priority_of_trace(first) == matrix.priority_of_scenario("one")
