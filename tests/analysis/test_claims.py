"""Verdicts on claims, by synthetic experiments whose truth is known."""

import math
import re
from pathlib import Path

import pytest
from claim_worlds import (
    CLAIMS,
    FALSE,
    TRUE,
    accuracy,
    evidence_of,
    verdict_on,
)
from synthetic_results import images, made

from multicard.analysis.evidence import read_evidence
from multicard.papers.judge import COLUMNS, TEST_COLUMNS, claims_table, judge, table_of_tests

# One of the experiments that refute each claim.
REFUTING = {claim: experiment for claim, numbers, experiment in FALSE if 0 in numbers}


def test_every_claim_of_the_papers_is_there_and_every_test_of_it_can_be_refuted() -> None:
    assert {claim.id for claim in CLAIMS} == TRUE.keys() and len(CLAIMS) == 12
    assert all(re.search(r"arXiv 25\d\d\.\d{5}", claim.source) for claim in CLAIMS)
    refuted = {(claim, number) for claim, numbers, _ in FALSE for number in numbers}
    assert refuted == {(claim.id, number) for claim in CLAIMS for number in range(len(claim.tests))}


@pytest.mark.parametrize("claim", TRUE)
def test_a_claim_that_is_true_of_the_synthetic_data_is_confirmed(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, TRUE[claim]))
    assert judged.verdict == "confirmed", judged.finding
    assert {each.verdict for each in judged.tests} == {"confirmed"}
    assert "NVIDIA H100" in judged.conditions and "repeats: 3" in judged.conditions
    assert judged.can_be_judged == "yes"


def test_results_without_any_run_give_a_row_per_claim(tmp_path: Path) -> None:
    table = claims_table(judge(CLAIMS, read_evidence(tmp_path)))
    assert list(table.columns) == list(COLUMNS)
    assert set(table["verdict"]) == {"not measured here"} and len(table) == 12
    assert table["can_be_judged"].str.match(r"no: .* \(no such runs on ").all()
    tests = table_of_tests(judge(CLAIMS, read_evidence(tmp_path)))
    assert list(tests.columns) == list(TEST_COLUMNS) and tests["not_judged_because"].all()


def test_a_share_is_worded_as_one_wherever_it_stands_and_its_interval_ends_at_100_per_cent(tmp_path: Path) -> None:
    # Mean 0.98 and standard error 0.01: the t interval would reach 0.98 + 4.303 × 0.01 = 1.023.
    scatter = 0.01 * math.sqrt(3)
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, accuracy(0.98 - scatter, 0.98, 0.98 + scatter)))
    assert "Not decided: 98% (95% CI 93.7% to 100%, n=" in judged.finding
    [row] = table_of_tests([judged]).to_dict("records")
    assert (row["low"], row["high"]) == (pytest.approx(0.98 - 0.01 * 4.302653), 1.0)
    assert row["refuted_if"] == "The interval of the pooled share is wholly below 98%."


def test_conditions_count_the_runs_that_are_behind_the_pooled_number(tmp_path: Path) -> None:
    # A further repeat of one of the sides has no partner, and one of a pair has none in the other pairs.
    rows = images(100, (1.0, 1.0)) + images(120, (1.0, 1.0), layout="nhwc")
    rows += images(100, (1.0, 1.0, 1.0, 1.0), devices=2) + images(120, (1.0, 1.0, 1.0), layout="nhwc", devices=2)
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert "8 runs, repeats: 2" in judged.conditions


def test_why_a_claim_cannot_be_judged_names_the_tests_where_these_differ(tmp_path: Path) -> None:
    rows = images(100, devices=1, data_share=0.5) + images(120, devices=1, data_share=0.5, pin_memory=True)
    judged = verdict_on("pin_memory_gain", made(tmp_path, rows))
    assert judged.verdict == "not judged"
    first, second = judged.can_be_judged.split("; ")
    assert first.startswith("no: With pin_memory") and "(the loader sets the pace" in first
    assert second.startswith("The gain is smaller") and "(no such runs on GPUs" in second
