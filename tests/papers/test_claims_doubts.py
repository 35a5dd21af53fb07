"""What claims must not be decided by: runs that show something else, or the same once more."""

import math
from pathlib import Path

import pytest
from claim_worlds import TRUE, changed, results_of, strategies, verdict_on

from factories import make_results, vision_runs
from multicard.papers.verdicts import TestResult
from multicard.results.configuration import OBSERVATION, Configuration, observed_once
from multicard.results.provenance import Provenance

PROFILERS = ("none", "kineto", "nsys")


def test_dp_that_waits_for_its_loader_is_not_judged(tmp_path: Path) -> None:
    judged = verdict_on("ddp_ds_scales", results_of(tmp_path, strategies(dp_waits=0.5)))
    assert judged.verdict == "not decided" and judged.tests[1].verdict == "not judged"
    assert judged.can_be_judged.startswith("in part; not judged: dp keeps less than 75%")
    assert "(the loader sets the pace (data share above 10%))" in judged.can_be_judged


def test_runs_whose_pace_the_loader_sets_do_not_refute_what_speeds_up_the_gpu(tmp_path: Path) -> None:
    for claim, base, switch in (
        ("nhwc_gain", {}, {"layout": "nhwc"}),
        ("fp16_speedup", {"precision": "fp64"}, {"precision": "fp16"}),
        ("pin_memory_gain", {}, {"pin_memory": True}),
    ):
        rows = vision_runs(100, data_share=0.4, **base) + vision_runs(100, data_share=0.6, **switch)
        judged = verdict_on(claim, make_results(tmp_path / claim, rows))
        assert judged.verdict == "not judged" and "the loader sets the pace" in judged.can_be_judged


def test_runs_that_were_disturbed_or_not_stationary_are_left_out_of_times(tmp_path: Path) -> None:
    for doubt, reason in (
        ({"stationary": False, "drift": 0.2}, "not stationary"),
        ({"disturbance": "other processes: 2 CPUs"}, "disturbed"),
    ):
        slow = doubt | {"throughput_samples_per_s": 50}
        rows = vision_runs(100) + [
            row | (slow if row["repeat"] == 1 else {}) for row in vision_runs(120, layout="nhwc")
        ]
        judged = verdict_on("nhwc_gain", make_results(tmp_path / f"one {reason}", rows))
        assert judged.verdict == "confirmed" and "repeats: 2" in judged.conditions
        assert judged.tests[0].pooled.value == pytest.approx(1.2, rel=2e-3)
        judged = verdict_on("nhwc_gain", make_results(tmp_path / f"all {reason}", [row | doubt for row in rows]))
        assert judged.verdict == "not judged" and reason in judged.can_be_judged


def test_accuracy_and_memory_are_judged_whatever_disturbed_the_run(tmp_path: Path) -> None:
    doubt = {"disturbance": "other processes: 2 CPUs", "stationary": False, "drift": 0.2}
    disturbed = [changed(TRUE[claim], lambda row: row | doubt) for claim in ("mnist_accuracy", "qlora_smallest")]
    assert verdict_on("mnist_accuracy", results_of(tmp_path / "a", disturbed[0])).verdict == "confirmed"
    judged = verdict_on("qlora_smallest", results_of(tmp_path / "b", disturbed[1]))
    assert [each.verdict for each in judged.tests] == ["confirmed"] * 3 + ["not judged"]


# How runs are observed makes no further evidence.


def test_a_configuration_that_was_observed_in_several_ways_counts_once(tmp_path: Path) -> None:
    # 1.2 and 0.9 have the geometric mean 1.04; with the second one counted three times it is 0.97.
    rows = vision_runs(100, image_size=300) + vision_runs(120, image_size=300, layout="nhwc")
    for by in ("auto", *PROFILERS):
        extra = {"profiler": by, "profiled_steps": 30 if by == "nsys" else 10}
        rows += vision_runs(100, **extra) + vision_runs(90, layout="nhwc", **extra)
    judged = verdict_on("nhwc_gain", make_results(tmp_path, rows))
    [test] = judged.tests
    assert test.pooled.value == pytest.approx(math.sqrt(1.2 * 0.9)) and judged.verdict == "confirmed"
    assert {each["profiler"] for one in test.comparisons for each in one.sides} == {"auto"}


def test_of_runs_observed_in_several_ways_those_that_may_be_judged_count(tmp_path: Path) -> None:
    rows = vision_runs(100, data_share=0.5) + vision_runs(100, data_share=0.5, layout="nhwc")
    rows += vision_runs(100, profiler="none") + vision_runs(120, layout="nhwc", profiler="none")
    judged = verdict_on("nhwc_gain", make_results(tmp_path, rows))
    assert judged.verdict == "confirmed" and judged.tests[0].pooled.value == pytest.approx(1.2, rel=2e-3)


def test_a_trend_is_judged_by_the_ends_that_do_not_wait_for_data(tmp_path: Path) -> None:
    def trend(name: str, *measured: tuple[int, float, float]) -> TestResult:
        rows = []
        for devices, gain, waits in measured:
            rows += vision_runs(100, devices=devices, data_share=waits)
            rows += vision_runs(100 * gain, devices=devices, data_share=waits, pin_memory=True)
        return verdict_on("pin_memory_gain", make_results(tmp_path / name, rows)).tests[1]

    found = trend("two", (1, 1.2, 0.02), (4, 1.2, 0.5))
    assert found.verdict == "not judged" and "the loader sets the pace" in found.not_judged_because
    found = trend("three", (1, 1.28, 0.02), (2, 1.18, 0.02), (4, 1.0, 0.5))
    [judged] = found.comparisons
    assert found.verdict == "confirmed" and {side["devices"] for side in judged.sides} == {1, 2}


NSYS = {"profiler": "nsys", "profiled_steps": 10}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([("a", 3), ("b", 3)], [("a", 3), ("b", 3)], id="different jobs count both"),
        pytest.param([("a", 3), ("a", 5), ("b", 3)], [("a", 5), ("b", 3)], id="the one with the most blocks"),
        pytest.param([("a", 3, "first"), ("b", 3), ("a", 3, "last")], [("a", 3, "first"), ("b", 3)], id="the first"),
    ],
)
def test_of_a_job_counts(items: list[tuple[object, ...]], expected: list[tuple[object, ...]]) -> None:
    assert observed_once(items, lambda item: item[0], lambda item: int(str(item[1]))) == expected


def test_the_profiler_that_was_used_is_part_of_how_a_run_is_observed() -> None:
    nsys, none, other = (
        Configuration({"workload": "vision", **NSYS}, Provenance(versions=versions), ())
        for versions in ("torch 2.11.0, profiler nsys", "torch 2.11.0, profiler none", "torch 2.10.0, profiler nsys")
    )
    assert nsys.rest(OBSERVATION) == none.rest(OBSERVATION) != other.rest(OBSERVATION)
    assert nsys.rest(["devices"]) != none.rest(["devices"])  # compared by another parameter, observed alike
