"""Batches that differ in work: what ranks lose by waiting for the largest one of each step, in closed form."""

from pathlib import Path

import numpy as np
import pytest

from rank_steps import REPEATS, causes, noise, results_of, steps_of

# All pairs of lengths of two ranks' batches, one in four of them long: 9 of 16 steps have two short ones.
LENGTHS = (8, 8, 8, 56)
PAIRS = np.array([(first, second) for first in LENGTHS for second in LENGTHS] * 6)


def lengths(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(PAIRS)


def test_batches_of_different_lengths_lose_what_the_closed_form_says_though_no_length_is_known(tmp_path: Path) -> None:
    # 18 or 126 ms: (9 × 18 + 7 × 126) / 16 = 65.25 ms a step, of which 45 ms are work.
    repeats = []
    for at in REPEATS:
        work = lengths(at) / 20 * noise(at, len(PAIRS), 2, 0.02)
        repeats.append(steps_of(at, 0.015 * work, 0.030 * work))
    [found] = causes(results_of(tmp_path, repeats, 0.065))
    assert found.share == pytest.approx(20.25 / 65.25, rel=0.05)
    assert found.remedy.startswith("batches with equally much work on all ranks in each step")
    assert "tokens" not in found.evidence


def test_tokens_say_how_much_the_batches_differ_and_show_small_losses(tmp_path: Path) -> None:
    # Each step has one batch with 1.22 times as many tokens as the other, and takes 44 or 22 ms: of 33 ms 3 are lost.
    tokens = np.array([(900, 1100), (1100, 900), (450, 550), (550, 450)] * 25)
    work = tokens / 1000
    repeats = [steps_of(at, 0.010 * work, 0.030 * work, tokens=tokens) for at in REPEATS]
    [found] = causes(results_of(tmp_path, repeats, 0.033))
    assert found.share == pytest.approx(3 / 33, rel=0.01)
    assert found.evidence == (
        "the batches of a step differ in work: the rank with most takes 33.0 ms in the mean of the steps, all ranks "
        "30.0 ms, and these wait for the difference (9.1% of the time); the most tokens of a rank are 1.22 times the "
        "fewest"
    )


def test_times_that_do_not_follow_the_tokens_are_no_uneven_work(tmp_path: Path) -> None:
    # Other programs make a step of either rank long by chance, while its tokens differ in another way.
    repeats = [
        steps_of(at, 0.010 * lengths(at) / 20, 0.030 * lengths(at) / 20, tokens=lengths(at + 20)) for at in REPEATS
    ]
    assert causes(results_of(tmp_path, repeats, 0.065)) == []


@pytest.mark.parametrize("scatter", [0.1, 0.3, 0.6])
def test_noise_in_each_phase_by_itself_is_no_uneven_work(scatter: float, tmp_path: Path) -> None:
    repeats = [
        steps_of(at, 0.015 * noise(at, 100, 2, scatter), 0.030 * noise(10 + at, 100, 2, scatter)) for at in REPEATS
    ]
    assert causes(results_of(tmp_path, repeats, 0.050)) == []


def test_a_disturbance_that_lasts_for_several_steps_is_no_uneven_work(tmp_path: Path) -> None:
    # Another program slows one rank down for five steps at a time, in both passes.
    slow = np.repeat(1 + lengths(1)[:20] / 56, 5, axis=0)
    repeats = [steps_of(at, 0.015 * slow, 0.030 * slow) for at in REPEATS]
    assert causes(results_of(tmp_path, repeats, 0.060)) == []


def test_last_batches_that_are_smaller_on_some_ranks_are_told_if_they_cost_time(tmp_path: Path) -> None:
    # A pass has 5 batches: 4 of 64 samples, and one of 64 on rank 0 and of 4 on rank 1: it waits 60 / 64 of that step.
    # Both ranks work 45 ms on 64 samples, so that they lose a half of 42.2 ms in one of five steps.
    samples = np.tile([(64, 64)] * 4 + [(64, 4)], (20, 1))
    work = samples / 64 * noise(1, 100, 2, 0.005)
    rows = steps_of(0, 0.015 * work, 0.030 * work, samples=samples)
    rows = [row | {"epoch": 1 + (row["step"] - 11) // 5} for row in rows]
    [found] = causes(results_of(tmp_path, [rows], 0.045))
    assert found.share == pytest.approx(45 * 60 / 64 / 2 / 5 / 45, rel=0.05)
    assert "in the last step of a pass, the most samples of a rank are 16 times the fewest" in found.evidence
    assert found.remedy.startswith("`drop_last=True`")


def test_a_loss_below_a_twentieth_of_the_time_is_not_told(tmp_path: Path) -> None:
    tokens = np.array([(960, 1040), (1040, 960)] * 50)
    repeats = [steps_of(at, 0.010 * tokens / 1000, 0.030 * tokens / 1000, tokens=tokens) for at in REPEATS]
    assert causes(results_of(tmp_path, repeats, 0.042)) == []
