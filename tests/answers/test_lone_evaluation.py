"""Evaluations by one rank while the others wait: what they take and what shares would gain follows by hand."""

from pathlib import Path

import numpy as np
import pytest

from rank_steps import SHAPE, causes, even_steps, long_steps, results_of


def test_an_evaluation_of_rank_0_is_told_with_its_period_and_what_shares_would_gain(tmp_path: Path) -> None:
    # 300 ms in every tenth step of 30 ms: a mean of 60 ms, and 45 ms if two ranks evaluate a half each.
    seconds = long_steps(10, 0.300, [0])
    results = results_of(tmp_path, [even_steps(seconds, evaluation_s=seconds)], 0.060)
    [found] = causes(results)
    assert found.evidence == (
        "rank 0 evaluates alone in every 10th step, for 300 ms, while the others wait (50% of the time)"
    )
    assert found.gain == pytest.approx(60 / 45, rel=0.01)
    assert found.remedy.startswith("evaluation by all ranks, each of a share of the batches")


def test_an_evaluation_by_all_ranks_is_no_cause(tmp_path: Path) -> None:
    seconds = long_steps(10, 0.300, [0, 1])
    assert causes(results_of(tmp_path, [even_steps(seconds, evaluation_s=seconds)], 0.060)) == []


def test_evaluations_that_are_no_period_are_told_by_their_number(tmp_path: Path) -> None:
    seconds = np.zeros(SHAPE)
    seconds[[20, 90], 0] = 0.600
    [found] = causes(results_of(tmp_path, [even_steps(seconds, evaluation_s=seconds)], 0.042))
    assert "rank 0 evaluates alone in 2 of 100 steps, for 600 ms" in found.evidence


@pytest.mark.parametrize("step", [0, SHAPE[0] - 1])
def test_a_stall_in_the_first_or_last_step_hides_no_evaluation(tmp_path: Path, step: int) -> None:
    # Rank 1 stands still for 500 ms, while rank 0 is measured no more, or not yet.
    seconds = long_steps(10, 0.300, [0])
    rows = even_steps(seconds, evaluation_s=seconds)
    rows[2 * step + 1]["duration_s"] += 0.5
    [found, *_] = causes(results_of(tmp_path, [rows], 0.060))
    assert "rank 0 evaluates alone in every 10th step, for 300 ms" in found.evidence


def test_ranks_that_do_not_wait_for_each_other_are_no_cause(tmp_path: Path) -> None:
    # Rank 0 evaluates for 3 s in all, which rank 1 spends on training, and ends 3 s earlier.
    seconds = long_steps(10, 0.300, [0])
    rows = even_steps(seconds, evaluation_s=seconds)
    for row in rows[1::2]:
        row["duration_s"] = 0.030
    assert not [found for found in causes(results_of(tmp_path, [rows], 0.060)) if "alone" in found.evidence]
