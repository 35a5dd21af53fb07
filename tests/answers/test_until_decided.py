"""When repeats are enough: the rule by hand, its coverage by simulation, and how far the scenarios of a group are."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from multicard.answers.outputs import write_scenario
from multicard.answers.repeats import are_decided, is_decided, is_narrow, next_repeats
from multicard.config.experiment import Experiment
from multicard.config.load import check
from multicard.config.plan import Plan
from multicard.config.runs import expand
from multicard.results.configuration import Block
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.looks import level_of_look
from multicard.stats.pool import Pool
from script_runs import COMMAND, write_script_run

UNTIL = 0.05
FIXED = {"workload": "script", "command": COMMAND, "device": "cpu"}


def test_a_comparison_is_decided_by_a_narrow_interval_or_by_one_without_one() -> None:
    narrow, wide, shown, slower = (
        Interval(value, low, high, 3)
        for value, low, high in ((1.0, 0.96, 1.05), (1.0, 0.94, 1.06), (1.3, 1.01, 1.7), (0.8, 0.6, 0.99))
    )
    assert [is_decided(ratio, UNTIL) for ratio in (narrow, wide, shown, slower)] == [True, False, True, True]
    assert [is_narrow(ratio, UNTIL) for ratio in (narrow, wide, shown, slower)] == [True, False, False, False]
    # What is not known decides nothing.
    assert not is_decided(None, UNTIL) and not is_decided(Interval(2.0, None, None, 1), UNTIL)


def repeats_until_decided(rng: np.random.Generator, scatter: float, looks: int, most: int) -> tuple[int, bool]:
    """How many repeats two equal configurations take, from three on, and whether the last interval holds."""
    logs = rng.normal(0, scatter, (2, most))
    for repeats in range(3, most + 1):
        sides = [{Block((), number, looks): math.exp(side[number]) for number in range(repeats)} for side in logs]
        ratio = Pool(sides).ratio(0, 1)
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        if is_decided(ratio, UNTIL):
            break
    return repeats, ratio.low <= 1 <= ratio.high


def test_the_interval_at_the_end_holds_as_often_as_it_says() -> None:
    """And would not without the correction: a difference that does not exist decides as well."""
    rng, trials, most = np.random.default_rng(5), 400, 10
    held = [repeats_until_decided(rng, 0.1, most - 1, most)[1] for _ in range(trials)]
    uncorrected = [repeats_until_decided(rng, 0.1, 1, most)[1] for _ in range(trials)]
    error = math.sqrt(0.95 * 0.05 / trials)
    assert np.mean(held) > 0.95 - 3 * error
    assert np.mean(uncorrected) < 0.95 - 3 * error


def experiment(results: Path, **scenarios: Any) -> Experiment:
    config = {"results": str(results), "scenarios": scenarios}
    return check(config, "mine.yaml", outside=False)


def scenario(batch_sizes: Sequence[int], amp: str = "none", **stated: Any) -> dict[str, Any]:
    vary = {"args": {"batch_size": list(batch_sizes), "amp": [amp]}}
    return {"question": "?", "fixed": FIXED, "vary": vary, "figures": ["step_times"], **stated}


def measure(stated: Experiment, factors: Sequence[float] | None = None, **outcome: Any) -> None:
    """Write runs, and the tables of their scenarios.

    A step takes 1 ms per sample. Those with 32 samples take `factors` times as long, by repeat.
    """
    results = Path(stated.results)
    for name, runs in expand(stated).items():
        for run in runs:
            p: Any = run.parameters
            size = p.args["batch_size"]
            factor = factors[p.repeat - 1] if factors is not None and size == 32 else 1 + 0.001 * p.repeat
            if not (results / "runs" / run.id).exists():
                write_script_run(results, p, 0.001 * size * factor, samples=size, **outcome)
        folders = [results / "runs" / run.id for run in runs]
        write_scenario(folders, {}, results / "scenarios" / name, looks=stated.scenarios[name].repeats.looks)


def results_of(stated: Experiment, name: str = "a") -> Results:
    return Results.read_scenario(Path(stated.results) / "scenarios" / name)


FACTORS = (1.06, 0.95, 1.0, 1.01, 0.99, 1.0)


def is_decided_by_scipy(repeats: int, looks: int, until: float) -> bool:
    """By the paired test of the logarithms of both rates in so many repeats."""
    logs = [math.log((1 + 0.001 * repeat) / FACTORS[repeat - 1]) for repeat in range(1, repeats + 1)]
    low, high = np.exp(stats.ttest_1samp(logs, 0).confidence_interval(level_of_look(looks)))
    return bool(low > 1 or high < 1 or high - low <= 2 * until * math.exp(np.mean(logs)))


@pytest.mark.parametrize("repeats", [3, 4, 5, 6])
def test_a_scenario_is_decided_by_the_paired_test_at_the_level_of_a_look(tmp_path: Path, repeats: int) -> None:
    until = 0.09
    stated = experiment(tmp_path, a=scenario([32, 64], repeats={"until": "9%", "least": repeats, "most": 6}))
    measure(stated, FACTORS)
    assert are_decided(results_of(stated), until) == is_decided_by_scipy(repeats, 5, until)
    if repeats in (3, 6):
        # So that the test has both cases.
        assert is_decided_by_scipy(repeats, 5, until) == (repeats == 6)


def test_answers_of_such_scenarios_have_the_wider_intervals(tmp_path: Path) -> None:
    answers = []
    for folder, repeats in (("fixed", 4), ("until", {"until": "5%", "least": 4, "most": 10})):
        stated = experiment(tmp_path / folder, a=scenario([32, 64], repeats=repeats))
        measure(stated, FACTORS)
        [first, second] = results_of(stated).configurations()
        pool = results_of(stated).pool(first.rate)
        answers.append(pool.ratio(second.key, first.key))
    logs = [math.log(FACTORS[repeat - 1] / (1 + 0.001 * repeat)) for repeat in range(1, 5)]
    for found, level in zip(answers, (0.95, level_of_look(9)), strict=True):
        low, high = np.exp(stats.ttest_1samp(logs, 0).confidence_interval(level))
        assert (found.low, found.high) == pytest.approx((low, high))


def test_a_run_that_scenarios_share_has_the_most_looks_of_them_where_they_are_joined(tmp_path: Path) -> None:
    stated = experiment(
        tmp_path,
        a=scenario([32, 64], repeats=3),
        b=scenario([32, 16], repeats={"until": "5%", "most": 6}),
    )
    measure(stated)
    joined = Results.joined([results_of(stated, name) for name in ("a", "b")])
    looks = {configuration["args.batch_size"]: configuration.looks for configuration in joined.configurations()}
    assert looks == {32: 5, 64: 1, 16: 5}
    assert {configuration.looks for configuration in results_of(stated).configurations()} == {1}


def test_a_group_goes_on_together_until_all_of_it_is_decided(tmp_path: Path) -> None:
    repeats = {"until": "5%", "most": 6}
    stated = experiment(
        tmp_path,
        # The rates of 16 and 64 samples are equal in each repeat, those of 32 are not.
        a=scenario([16, 64], repeats={"until": "90%", "most": 6}),
        b=scenario([16, 32], repeats=repeats),
        alone=scenario([16, 32], amp="bf16", repeats=repeats),
        fixed=scenario([16, 128], repeats=3),
    )
    measure(stated, FACTORS)
    found = next_repeats(Plan.make(stated))
    assert {name: (state.repeats, state.decided) for name, state in found.items()} == {
        "a": (4, None),
        "b": (4, None),
        "alone": (4, None),
    }


def test_a_decided_scenario_keeps_its_repeats(tmp_path: Path) -> None:
    stated = experiment(tmp_path, a=scenario([32, 64], repeats={"until": "99%", "most": 6}))
    measure(stated, (1.0, 1.01, 0.99))
    [state] = next_repeats(Plan.make(stated)).values()
    assert (state.repeats, state.decided) == (3, 0.99)


def test_runs_that_never_complete_decide_nothing_and_add_none(tmp_path: Path) -> None:
    stated = experiment(tmp_path, a=scenario([32, 64], repeats={"until": "5%"}))
    measure(stated, outcome="failed", reason={"code": "exit_code", "exit_code": 1})
    [state] = next_repeats(Plan.make(stated)).values()
    assert (state.repeats, state.decided) == (3, 0.05)


def test_one_configuration_is_decided_by_the_interval_of_its_mean(tmp_path: Path) -> None:
    stated = experiment(tmp_path, a=scenario([32], repeats={"until": "5%", "least": 4}))
    measure(stated, FACTORS)
    results = results_of(stated)
    logs = [math.log(factor) for factor in FACTORS[:4]]
    low, high = np.exp(stats.ttest_1samp(logs, 0).confidence_interval(level_of_look(9)))
    half_width = (high - low) / 2 / math.exp(np.mean(logs))
    assert not are_decided(results, half_width / 1.1) and are_decided(results, half_width * 1.1)
