"""Results compared: differences that were put in are found, and no others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from multicard.analysis.result_comparison import ResultComparison, compare_results
from recorded_runs import add_run

REPEATS = (1.0, 1.01, 0.99, 1.005, 0.995)  # how much longer the steps of each repeat last


def results(source: Path, folder: Path, times: float, repeats: tuple[float, ...] = REPEATS, **keys: Any) -> list[Path]:
    """Run directories of the repeats of a synthetic configuration, each step `times` as long as in the real run."""
    return [add_run(source, folder, times * own, repeat=i, **keys) for i, own in enumerate(repeats, start=1)]


def words(found: ResultComparison) -> dict[str, str]:
    return {change.measure: change.verdict for change in found.changes}


def test_a_slower_machine_is_slower_and_uses_as_much_memory(extracted_run: Path, tmp_path: Path) -> None:
    a = results(extracted_run, tmp_path / "a", 1)
    b = results(extracted_run, tmp_path / "b", 1.5)
    found = compare_results(a, b)
    assert words(found) == {
        "iteration_time_s": "slower",
        "throughput_samples_per_s": "slower",
        "peak_memory_bytes": "inconclusive",
        "test_accuracy": "inconclusive",
        "test_loss": "inconclusive",
    }
    time = found.changes[0]
    assert time.ratio.value == pytest.approx(1.5)
    logs = np.log(REPEATS)
    expected = ttest_ind(logs + np.log(1.5), logs, equal_var=False).confidence_interval()
    assert (time.ratio.low, time.ratio.high) == pytest.approx(tuple(np.exp(expected)), rel=1e-3)
    assert time.repeats == (5, 5)
    assert (found.outcomes, found.only_a, found.only_b, found.environment) == ([], [], [], [])
    back = compare_results(b, a)
    assert [words(back)[name] for name in ("iteration_time_s", "throughput_samples_per_s")] == ["faster", "faster"]


def test_runs_whose_numbers_are_in_doubt_are_named(extracted_run: Path, tmp_path: Path) -> None:
    a, b = results(extracted_run, tmp_path / "a", 1, (1.0,)), results(extracted_run, tmp_path / "b", 1, (1.0,))
    steps = pd.read_csv(b[0] / "steps.csv")
    # In b every measured step waits for data half of its time, the profiled ones never.
    measured = steps["window"] == "measured"
    steps = steps.assign(start_s=(steps["step"] - 1) * 0.2, duration_s=0.1, data_s=0.0)
    steps.loc[measured, ["duration_s", "data_s"]] = [0.2, 0.1]
    steps.to_csv(b[0] / "steps.csv", index=False)
    record = json.loads((b[0] / "run.json").read_text())
    (b[0] / "run.json").write_text(json.dumps(record | {"files": []}))
    [(run, why)] = [each[1:] for each in compare_results(a, b).notices if each[0] == "b"]
    assert run == b[0].name
    assert "data share 0.0% instead of 50%" in why


def test_results_that_scale_less_are_told_from_results_that_are_slower(extracted_run: Path, tmp_path: Path) -> None:
    def scaled(folder: Path, one: float, two: float) -> list[Path]:
        return results(extracted_run, folder, one, devices=1) + results(extracted_run, folder, two, devices=2)

    a = scaled(tmp_path / "a", 1, 0.5)
    found = [c for c in compare_results(a, scaled(tmp_path / "b", 1, 0.8)).changes if c.measure == "speedup"]
    [two] = found
    assert (two.verdict, two.ratio.value) == ("scales worse", pytest.approx(0.5 / 0.8))
    # Repeats of a side are paired, so all have the same speed-up, whatever the scatter of their times.
    assert (two.ratio.low, two.ratio.high) == pytest.approx((0.5 / 0.8, 0.5 / 0.8))
    slower = compare_results(a, scaled(tmp_path / "c", 2, 1)).changes
    assert {c.verdict for c in slower if c.measure == "iteration_time_s"} == {"slower"}
    assert [c.verdict for c in slower if c.measure == "speedup"] == ["inconclusive"]


def test_time_and_throughput_of_the_same_work_are_one_comparison(extracted_run: Path, tmp_path: Path) -> None:
    a = results(extracted_run, tmp_path / "a", 1)
    found = compare_results(a, results(extracted_run, tmp_path / "b", 1.01)).changes
    p_values = {change.measure: change.ratio.p_value for change in found}
    assert len(p_values) == 5
    logs = np.log(REPEATS)
    alone = ttest_ind(logs + np.log(1.01), logs, equal_var=False).pvalue
    # Time and throughput are one of four; the other three, which are equal, have p-values of 1.
    assert p_values["iteration_time_s"] == pytest.approx(4 * alone, rel=1e-2)
    assert p_values["throughput_samples_per_s"] == p_values["iteration_time_s"]


def test_a_difference_within_the_spread_of_repeats_is_none(extracted_run: Path, tmp_path: Path) -> None:
    a = results(extracted_run, tmp_path / "a", 1)
    assert words(compare_results(a, results(extracted_run, tmp_path / "b", 1.002)))["iteration_time_s"] == (
        "inconclusive"
    )


def test_one_repeat_is_inconclusive(extracted_run: Path, tmp_path: Path) -> None:
    a = results(extracted_run, tmp_path / "a", 1)
    found = compare_results(a, results(extracted_run, tmp_path / "b", 9, repeats=(1.0,)))
    assert set(words(found).values()) == {"cannot tell"}
    assert (found.changes[0].ratio.low, found.changes[0].repeats) == (None, (5, 1))
    assert len(found.only_a) == 4


def test_configurations_are_kept_apart_and_missing_runs_are_named(extracted_run: Path, tmp_path: Path) -> None:
    a = results(extracted_run, tmp_path / "a", 1) + results(extracted_run, tmp_path / "a", 1, seed=7)
    b = results(extracted_run, tmp_path / "b", 2) + results(extracted_run, tmp_path / "b", 1, threads=2)
    found = compare_results(a, b)
    [configuration] = {change.configuration for change in found.changes}
    assert f"{configuration}_r1" == a[0].name
    assert found.only_a == [folder.name for folder in a[5:]]
    assert found.only_b == [folder.name for folder in b[5:]]


def test_a_measure_that_only_one_side_has_is_listed(extracted_run: Path, tmp_path: Path) -> None:
    def metered(record: dict[str, Any]) -> None:
        for rank in record["ranks"]:
            rank["energy"] = [{"energy_j": 5.0}]

    plain = results(extracted_run, tmp_path / "a", 1, repeats=(1.0, 1.0))
    with_energy = results(extracted_run, tmp_path / "b", 1, repeats=(1.0, 1.0), change=metered)
    for a, b, verdict, repeats in (
        (plain, with_energy, "measured in b only", (0, 2)),
        (with_energy, plain, "measured in a only", (2, 0)),
    ):
        [change] = [each for each in compare_results(a, b).changes if each.measure == "energy_per_sample_j"]
        assert (change.verdict, change.repeats, change.ratio.value) == (verdict, repeats, None)
        assert [value is None for value in (change.a, change.b)] == [count == 0 for count in repeats]


def test_disturbed_runs_are_counted_on_both_sides(extracted_run: Path, tmp_path: Path) -> None:
    def busy(record: dict[str, Any]) -> None:
        record["conditions"] = [{"others_cpu_s": 30.0, "stolen_cpu_s": 0.0, "wall_s": 20.0}]

    a = results(extracted_run, tmp_path / "a", 1, repeats=(1.0, 1.0))
    b = results(extracted_run, tmp_path / "b", 1, repeats=(1.0,))
    b += [add_run(extracted_run, tmp_path / "b", repeat=2, change=busy)]
    assert compare_results(a, b).environment == [("disturbed runs", "0 of 2", "1 of 2 (other processes)")]


def test_another_machine_driver_version_and_outcome_are_listed(extracted_run: Path, tmp_path: Path) -> None:
    def other(record: dict[str, Any]) -> None:
        record["host"]["name"] = "another"
        record["hardware"]["gpus"] = [{"name": "NVIDIA H100", "memory_bytes": 80e9, "capability": "9.0"}] * 2
        record["versions"] |= {"torch": "9.9", "driver": "590.1"}
        record["data"]["files"][0]["sha256"] = "0" * 64
        record["variables"] |= {"NCCL_ALGO": "Ring"}

    def lost(record: dict[str, Any]) -> None:
        other(record)
        record["outcome"] = "out_of_memory"

    a = results(extracted_run, tmp_path / "a", 1, repeats=(1.0, 1.0))
    b = results(extracted_run, tmp_path / "b", 1, repeats=(1.0,), change=other)
    b += [add_run(extracted_run, tmp_path / "b", repeat=2, change=lost)]
    found = compare_results(a, b)
    assert found.outcomes == [(a[1].name, "completed", "out_of_memory")]
    record = json.loads((a[0] / "run.json").read_text())
    differing = {name: (before, after) for name, before, after in found.environment}
    assert differing.pop("data digits")[1].startswith("0" * 12)
    assert differing == {
        "machine": (record["host"]["name"], "another"),
        "GPUs": ("not recorded", "NVIDIA H100 (80.0 GB)"),
        "number of GPUs": ("not recorded", "2"),
        "version of torch": (record["versions"]["torch"], "9.9"),
        "version of driver": ("not recorded", "590.1"),
        "variable NCCL_ALGO": ("not set", "Ring"),
    }
