"""Steps that are long at equal distances, of synthetic runs: what they take follows by hand."""

from pathlib import Path

import numpy as np
import pytest

from factories import recommendations
from multicard.answers.diagnoses.host.regular import period_of
from rank_steps import NUMBERS, SHAPE, causes, even_steps, long_steps, results_of


def test_every_16th_step_is_told_with_what_it_takes_over_whole_periods(tmp_path: Path) -> None:
    # Steps 16, 32, 48, 64, 80, 96 of 11 to 110: 6 where 6.25 are due. Over whole periods a step takes 30 + 30 ms.
    [found] = causes(results_of(tmp_path, [even_steps(long_steps(16, 0.480, [0, 1]))], 0.059))
    assert found.share == pytest.approx(0.5, rel=0.01)
    assert found.evidence == (
        "every 16th step takes 480 ms longer outside of forward, backward and optimizer (50% of the time); the 100 "
        "measured steps hold 6 of them where 6.25 are due, so that their mean time is 2.0% too short"
    )
    assert found.remedy.startswith("what the script does in these steps alone less often, or in a thread")


def test_what_one_rank_does_alone_in_every_tenth_step_is_told_with_the_rank(tmp_path: Path) -> None:
    # 12 ms of 42 a step.
    results = results_of(tmp_path, [even_steps(long_steps(10, 0.120, [1]))], 0.042)
    [found] = causes(results)
    assert found.share == pytest.approx(12 / 42, rel=0.01)
    assert found.evidence == (
        "every 10th step takes 120 ms longer outside of forward, backward and optimizer on rank 1 alone, for which the "
        "others wait (29% of the time)"
    )
    assert "shares by all ranks" in found.remedy


def test_the_line_of_long_steps_is_told_with_the_remedy_of_what_it_calls(tmp_path: Path) -> None:
    # Every 10th step takes 300 ms longer: half of 60 ms a step. 20 of 40 samples are there, all others in the passes.
    rows = even_steps(long_steps(10, 0.300, [0, 1]))
    line = {"at": 0, "rank": 0, "site": "train.py:23", "function": "save", "stack_samples": 40, "samples_there": 20}
    saves = line | {"called": "torch.profiler.profiler.profile.step"}
    computes = line | {"site": "train.py:9", "function": "train", "phase": "forward"}
    results = results_of(tmp_path / "line", [rows], 0.060, code_lines=[saves, computes])
    [found] = [cause for cause in causes(results) if "every 10th" in cause.evidence]
    assert (
        "longer outside of forward, backward and optimizer, mostly at train.py, line 23 (`save`, in " in found.evidence
    )
    assert found.remedy == "no profiler, or one with a `schedule` of a few steps"
    # With 45 ms more in all steps, 75 of 105 ms are outside. The line has two thirds of the samples there, which may be
    # in all steps.
    even = even_steps(long_steps(10, 0.300, [0, 1]) + 0.045)
    other = line | {"site": "train.py:30", "function": "log", "samples_there": 10}
    results = results_of(tmp_path / "even", [even], 0.105, code_lines=[saves, other, computes])
    [found] = [cause for cause in causes(results) if "every 10th" in cause.evidence]
    assert "train.py" not in found.evidence


def test_long_steps_at_the_ends_of_passes_are_told_as_such(tmp_path: Path) -> None:
    # A pass has ten steps; the script does something for 0.3 s after each of them.
    rows = even_steps(long_steps(10, 0.300, [0, 1]))
    rows = [row | {"epoch": (row["step"] - 1) // 10} for row in rows]
    [found] = causes(results_of(tmp_path, [rows], 0.060))
    assert found.evidence.startswith("every 10th step, the last of a pass, takes 300 ms longer outside of forward")


def test_the_bottleneck_says_the_period_in_place_of_the_numbers_of_steps(tmp_path: Path) -> None:
    outside_s = long_steps(16, 0.480, [0, 1])
    results = results_of(
        tmp_path, [even_steps(outside_s)], 0.060, stalls_share=0.5, stalled_steps="6 of 100: 16, 32, …"
    )
    said = recommendations(results)
    assert "stalls between or inside steps (measures.csv); every 16th step takes 480 ms longer" in said
    assert "16, 32" not in said


@pytest.mark.parametrize("numbers", [[20, 41, 93], [20, 50, 80, 90], [50], [30, 60, 90, 95, 97]])
def test_stalls_at_other_distances_have_no_period(numbers: list[int], tmp_path: Path) -> None:
    outside_s = np.zeros(SHAPE)
    outside_s[np.isin(NUMBERS, numbers)] = 0.300
    assert causes(results_of(tmp_path, [even_steps(outside_s)], 0.040)) == []


def test_steps_that_wait_for_data_or_save_are_told_elsewhere(tmp_path: Path) -> None:
    seconds = long_steps(10, 0.300, [0, 1])
    bursts = even_steps(seconds, data_s=seconds)
    assert causes(results_of(tmp_path / "data", [bursts], 0.060)) == []
    saves = {
        "at": 0, "rank": 0, "kind": "saving", "function": "torch.save", "calls": 10, "seconds": 3.0, "bytes": 0,
        "steps": 10, "first_steps": "20, 30, 40, 50, 60, 70, 80, 90, 100, 110", "site": "train.py:12",
    }  # fmt: skip
    [found] = causes(results_of(tmp_path / "saving", [even_steps(seconds)], 0.060, host_work=[saves]))
    assert found.evidence.startswith("`torch.save` (train.py, line 12) saves in every 10th step")


def test_random_steps_hardly_ever_have_a_period() -> None:
    # A period of 4 to 33 steps that three random steps of 100 have.
    chance = np.random.default_rng(0)
    draws = [chance.choice(100, 3, replace=False).tolist() for _ in range(2000)]
    assert sum(period_of(draw, range(100)) is not None for draw in draws) <= 0.01 * len(draws)
