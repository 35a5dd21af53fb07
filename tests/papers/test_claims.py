"""Verdicts on claims, by synthetic experiments whose truth is known."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from claim_worlds import (
    FALSE,
    OPEN,
    TRUE,
    Experiment,
    accuracy,
    changed,
    on_cpu,
    results_of,
    switched,
    verdict_on,
)

from factories import GPU, make_results, tuning_runs, vision_runs, with_provenance
from multicard.papers.tables import BOTH_PAPERS, claims_table, judge_papers, table_of_tests
from multicard.results.results import Results

# One of the experiments that refute each claim.
REFUTING = {claim: experiment for claim, numbers, experiment in FALSE if 0 in numbers}


def test_every_claim_of_the_papers_is_there_and_every_test_of_it_can_be_refuted() -> None:
    assert {claim.id for claim in BOTH_PAPERS} == TRUE.keys() and len(BOTH_PAPERS) == 12
    assert all(re.search(r"arXiv 25\d\d\.\d{5}", claim.source) for claim in BOTH_PAPERS)
    refuted = {(claim, number) for claim, numbers, _ in FALSE for number in numbers}
    assert refuted == {(claim.id, number) for claim in BOTH_PAPERS for number in range(len(claim.tests))}


@pytest.mark.parametrize("claim", TRUE)
def test_a_claim_that_is_true_of_the_synthetic_data_is_confirmed(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, results_of(tmp_path, TRUE[claim]))
    assert judged.verdict == "confirmed", judged.finding
    assert {each.verdict for each in judged.tests} == {"confirmed"}
    assert "NVIDIA H100" in judged.conditions and "repeats: 3" in judged.conditions
    assert judged.can_be_judged == "yes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "numbers", "experiment"), FALSE, ids=[f"{claim}-{i}" for i, (claim, *_) in enumerate(FALSE)]
)
def test_a_claim_that_is_false_of_the_synthetic_data_is_refuted(
    claim: str, numbers: set[int], experiment: Experiment, tmp_path: Path
) -> None:
    judged = verdict_on(claim, results_of(tmp_path, experiment))
    assert {number for number, each in enumerate(judged.tests) if each.verdict == "refuted"} == numbers, judged.finding
    assert judged.verdict == "refuted"


@pytest.mark.parametrize("claim", OPEN)
def test_a_limit_inside_the_interval_decides_nothing(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, results_of(tmp_path, OPEN[claim]))
    assert judged.verdict == "not decided", judged.finding


@pytest.mark.parametrize(
    ("claim", "experiment"),
    [("nhwc_gain", switched(1.2, (1.0,), layout="nhwc")), ("mnist_accuracy", accuracy(0.985))],
)
def test_one_repeat_decides_nothing(claim: str, experiment: Experiment, tmp_path: Path) -> None:
    judged = verdict_on(claim, results_of(tmp_path, experiment))
    assert judged.verdict == "not decided" and "(n=1)" in judged.finding
    assert re.match(r"no: .*\(one repeat only, which has no interval\)", judged.can_be_judged)


@pytest.mark.parametrize("claim", [claim.id for claim in BOTH_PAPERS if claim.hardware != "any"])
def test_cpu_data_decides_no_claim_about_gpus_and_the_reason_is_told(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, results_of(tmp_path, on_cpu(REFUTING[claim]), gpu=None))
    assert judged.verdict == "not measured here" and judged.conditions == ""
    assert "CPU processes" in judged.can_be_judged


TINY = changed(TRUE["qlora_smallest"], lambda row: row | {"parameters": 6_000_000})
SMALL = changed(TRUE["fp16_speedup"], lambda row: row | {"image_size": 32})
LOST = [row | {"outcome": "out_of_memory"} for row in vision_runs(120, layout="nhwc")]


@pytest.mark.parametrize(
    ("claim", "experiment", "others", "why"),
    [
        ("nhwc_gain", TRUE["nhwc_gain"], {"gpu": GPU | {"name": "synthetic GPU"}}, "synthetic timings"),
        ("mnist_accuracy", TRUE["mnist_accuracy"], {"processor": "Synthetic CPU"}, "synthetic timings"),
        ("dali_gain", TRUE["dali_gain"], {"source": "synthetic"}, "synthetic images"),
        ("dali_gain", TRUE["dali_gain"], {"nodes": (0,)}, "two or more NUMA nodes"),
        ("nhwc_gain", TRUE["nhwc_gain"], {"gpu": None}, "GPU not recorded"),
        ("nhwc_gain", TRUE["nhwc_gain"], {"recorded": False}, "GPU not recorded"),
        ("qlora_smallest", TINY, {}, "too small a workload"),
        ("fp16_speedup", SMALL, {}, "too small a workload"),
        # Not of more than the compared parameter, nor of what did not complete.
        (
            "nhwc_gain",
            ([vision_runs(100) + vision_runs(120, layout="nhwc", batch_size=128)], {}),
            {},
            "no such runs on GPUs",
        ),
        ("nhwc_gain", ([vision_runs(100) + LOST], {}), {}, "no such runs on GPUs"),
    ],
)
def test_what_is_not_what_a_claim_is_about_decides_nothing(
    claim: str, experiment: Experiment, others: dict[str, Any], why: str, tmp_path: Path
) -> None:
    judged = verdict_on(claim, results_of(tmp_path, experiment, **others))
    assert judged.verdict == "not measured here"
    assert why in judged.can_be_judged


def test_accuracy_counts_of_whole_trainings_only_and_on_any_device(tmp_path: Path) -> None:
    for reached in (0.9, 0.99):
        short = results_of(tmp_path / str(reached), accuracy(reached, reached, reached, epochs=3))
        assert verdict_on("mnist_accuracy", short).verdict == "not measured here"
    on_cpus = results_of(tmp_path / "cpu", on_cpu(TRUE["mnist_accuracy"]), gpu=None)
    assert verdict_on("mnist_accuracy", on_cpus).verdict == "confirmed"


def test_runs_of_two_machines_or_versions_are_not_compared(tmp_path: Path) -> None:
    evidence = results_of(tmp_path / "gain", TRUE["nhwc_gain"])
    elsewhere = with_provenance(evidence, machine=lambda run: run.values["layout"])
    assert verdict_on("nhwc_gain", elsewhere).verdict == "not measured here"
    # A speed-up is over one device of the same machine with the same versions.
    evidence = results_of(tmp_path / "speed-up", TRUE["llm_scaling_is_smaller"])
    for where in ("machine", "versions"):
        elsewhere = with_provenance(evidence, **{where: lambda run: str(run.values["devices"])})
        assert verdict_on("llm_scaling_is_smaller", elsewhere).verdict == "not measured here"
    # Of whatever number of nodes.
    rows = vision_runs(100, image_size=500) + vision_runs(750, image_size=500, devices=8, nodes=2)
    judged = verdict_on("large_images_scale", make_results(tmp_path / "nodes", rows))
    assert judged.tests[0].pooled.value == pytest.approx(750 / 800)


def test_speed_ups_of_several_configurations_are_compared_by_their_geometric_means(tmp_path: Path) -> None:
    llm, vision = 3.8, 2.5
    is_vision, is_llm = [], []
    for dataset, factor in (("a", 0.5), ("b", 1.0), ("c", 2.0)):
        is_vision += vision_runs(100, dataset=dataset) + vision_runs(100 * vision * factor, dataset=dataset, devices=4)
        is_llm += tuning_runs(1.0, dataset=dataset) + tuning_runs(4 / (llm * factor), dataset=dataset, devices=4)
    judged = verdict_on("llm_scaling_is_smaller", make_results(tmp_path, is_vision, is_llm))
    assert judged.verdict == "refuted", judged.finding
    [test] = judged.tests
    assert test.pooled.value == pytest.approx(llm / vision)
    assert test.pooled.repeats == 3 and len(test.runs) == 36


def test_results_without_any_run_give_a_row_per_claim_with_all_columns(tmp_path: Path) -> None:
    judged = judge_papers(Results.read(tmp_path))
    table, tests = claims_table(judged), table_of_tests(judged)
    assert " ".join(table.columns) == (
        "claim verdict claim_text paper source hardware refuted_if can_be_judged finding conditions our_choice"
    )
    assert set(table["verdict"]) == {"not measured here"} and len(table) == 12
    assert table["can_be_judged"].str.match(r"no: .* \(no such runs on ").all()
    assert " ".join(tests.columns) == (
        "claim test verdict finding value low high level comparisons blocks not_judged_because"
    )
    assert tests["not_judged_because"].all()


def test_a_share_is_worded_as_one_wherever_it_stands_and_its_interval_ends_at_100_per_cent(tmp_path: Path) -> None:
    # Mean 0.98 and standard error 0.01: the t interval would reach 0.98 + 4.303 × 0.01 = 1.023.
    scatter = 0.01 * math.sqrt(3)
    judged = verdict_on("mnist_accuracy", results_of(tmp_path, accuracy(0.98 - scatter, 0.98, 0.98 + scatter)))
    assert "Not decided: 98% (95% CI 93.7% to 100%, n=" in judged.finding
    [row] = table_of_tests([judged]).to_dict("records")
    assert (row["low"], row["high"]) == (pytest.approx(0.98 - 0.01 * 4.302653), 1.0)
    assert (row["level"], row["blocks"], row["comparisons"]) == (0.95, 3, 1)
