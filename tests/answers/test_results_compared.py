"""Results compared: differences that were put in are found, and no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from multicard.answers.comparison.changes import Change
from multicard.answers.comparison.environments import environment_differences
from multicard.answers.comparison.results import Comparison, compare
from multicard.answers.comparison.sides import Side, name_of, read_side
from multicard.programs.script.parameters import ScriptParameters
from multicard.stats.looks import level_of_look
from script_runs import write_script_run

REPEATS = (1.0, 1.01, 0.99)  # how much longer the steps of each repeat last
STEP_S = 0.1


def results(
    folder: Path,
    times: float,
    repeats: tuple[float, ...] = REPEATS,
    size: int = 8,
    devices: int = 2,
    looks: int = 1,
    **changes: Any,
) -> Side:
    """Return the repeats of a configuration, whose steps last so many times 0.1 s, measured from their files."""
    parameters = {"command": ["train.py", "{size}"], "args": {"size": size}, "device": "cpu", "devices": devices}
    folders = []
    for number, factor in enumerate(repeats, start=1):
        job = ScriptParameters(**parameters, repeat=number)
        folders.append(write_script_run(folder, job, STEP_S * times * factor, **changes))
    return read_side(folders, {run.name: looks for run in folders})


def both(one: Side, other: Side) -> Side:
    return Side(one.records | other.records, one.configurations | other.configurations)


def change_of(comparison: Comparison, measure: str) -> Change:
    [change] = [change for change in comparison.changes if change.measure == measure]
    return change


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {change.measure: change.verdict for change in comparison.changes}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """Return the results that others are compared with."""
    return results(tmp_path_factory.mktemp("plain"), 1)


def test_a_slower_machine_is_slower_and_uses_as_much_memory(plain: Side, tmp_path: Path) -> None:
    b = results(tmp_path, 1.5)
    comparison = compare(plain, b)
    assert verdicts(comparison) == {"iteration_time": "regression", "memory": "undecided"}
    time = change_of(comparison, "iteration_time")
    assert (time.change.value, time.repeats) == (pytest.approx(0.5), (3, 3))
    assert comparison.missing == comparison.added == comparison.hardware == comparison.environment == []
    assert verdicts(compare(b, plain))["iteration_time"] == "better"
    assert verdicts(compare(plain, b, measures=["throughput"])) == {"throughput": "regression"}


@pytest.mark.slow
def test_results_that_scale_less_are_told_from_results_that_are_slower(tmp_path: Path) -> None:
    def scaled(name: str, one: float, two: float) -> Side:
        return read_side(
            [
                write_script_run(tmp_path / name, p, STEP_S * times * factor)
                for devices, times, factors in ((1, one, REPEATS), (2, two, REPEATS[::-1]))
                for number, factor in enumerate(factors, 1)
                for p in [ScriptParameters(command=["train.py"], device="cpu", devices=devices, repeat=number)]
            ]
        )

    # Two devices have twice the samples in a step.
    a = scaled("a", 1, 1)
    two = change_of(compare(a, scaled("b", 1, 1.6)), "speedup")
    assert two.verdict == "regression"
    assert two.change.value == pytest.approx(1 - 1 / 1.6)
    slower = compare(a, scaled("c", 2, 2))
    assert {c.verdict for c in slower.changes if c.measure == "iteration_time"} == {"regression"}
    assert change_of(slower, "speedup").verdict == "undecided"


def test_a_time_is_judged_among_all_that_is_compared(plain: Side, tmp_path: Path) -> None:
    comparison = compare(plain, results(tmp_path, 1.01))
    logs = np.log(REPEATS)
    alone = ttest_ind(logs + np.log(1.01), logs, equal_var=False).pvalue
    # One of two; the memory, which is equal, has a p-value of 1.
    assert change_of(comparison, "iteration_time").change.p_value == pytest.approx(2 * alone, rel=1e-2)


def test_an_interval_allows_for_each_look_that_one_side_was_given(tmp_path: Path) -> None:
    before, after = results(tmp_path / "a", 1, looks=9), results(tmp_path / "b", 1.01)
    logs = np.log(REPEATS)
    expected = ttest_ind(logs + np.log(1.01), logs).confidence_interval(level_of_look(9))
    found = change_of(compare(before, after, measures=["iteration_time"]), "iteration_time").change
    assert (found.low, found.high) == pytest.approx((np.exp(expected.low) - 1, np.exp(expected.high) - 1), rel=1e-2)


def test_configurations_are_kept_apart_and_missing_runs_are_named(plain: Side, tmp_path: Path) -> None:
    more, others = results(tmp_path / "a", 1, size=16), results(tmp_path / "b", 1, size=32)
    comparison = compare(both(plain, more), both(plain, others))
    [configuration] = {change.configuration for change in comparison.changes}
    assert configuration in set(map(name_of, plain.configurations.values()))
    names = [list(map(name_of, side.configurations.values())) for side in (more, others)]
    assert [comparison.missing, comparison.added] == names


def test_another_machine_driver_and_version_are_listed(plain: Side, tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA H100", "memory_bytes": 80_000_000_000, "capability": "9.0"}
    other = {
        "host": {"name": "another"},
        "hardware": {"gpus": [gpu] * 2, "processor": "synthetic processor", "logical_cpus": 8},
        "versions": {"torch": "9.9", "driver": "590.1"},
        "data": {"dataset": "digits", "files": [{"bytes": 1, "sha256": "0" * 64}]},
        "variables": {"NCCL_ALGO": "Ring"},
        "script": {"file": "train.py", "sha256": "cd" * 32},
    }
    compared = results(tmp_path, 1, repeats=(1.0,), **other)
    records = list(plain.records.values())[:1], list(compared.records.values())
    assert {name: values for name, *values in environment_differences(*records)} == {
        "machine": ["synthetic", "another"],
        "GPUs": ["not recorded", "NVIDIA H100 (80.0 GB)"],
        "number of GPUs": ["not recorded", "2"],
        "version of torch": ["2.5.0", "9.9"],
        "version of driver": ["not recorded", "590.1"],
        "variable NCCL_ALGO": ["not set", "Ring"],
        "data digits": ["not recorded", "0" * 12],
        "script train.py": ["ab" * 6, "cd" * 6],
    }
