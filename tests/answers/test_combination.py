"""A configuration that was not run, although each of its two gains was measured: of synthetic runs."""

import math
from pathlib import Path

import pytest

from factories import Row, make_results, vision_runs
from multicard.answers.answer import NEXT
from multicard.answers.choice.choices import choices
from multicard.answers.choice.combination import Combination, combination
from multicard.answers.choice.recommend import advise, whole_of

# In the blocks, these repeats are 0.99/1.01, 1 and 1.01/0.99 apart.
FALLING, RISING = (1.01, 1.0, 0.99), (0.99, 1.0, 1.01)
ONE = vision_runs(100, FALLING)
NHWC = vision_runs(150, RISING, layout="nhwc")


def of(folder: Path, *scenarios: list[Row]) -> Combination | None:
    [job] = choices(make_results(folder, *scenarios))
    return combination(job)


def test_a_gain_on_one_device_is_told_with_the_run_on_two_that_lacks_it(tmp_path: Path) -> None:
    found = of(tmp_path, ONE + vision_runs(180, devices=2), ONE + NHWC)
    # A t interval of two degrees of freedom around a gain of 1.5.
    reach = math.exp(4.3027 * math.log(1.01 / 0.99) / math.sqrt(3))
    assert found is not None and found.changes == {"layout": "nhwc"}
    assert found.sentence == (
        "not run yet: 2 GPUs with layout: nhwc; measured on 1 GPU: layout: nhwc 1.50× as fast as layout: nchw "
        f"(95% CI {1.5 / reach:.2f} to {1.5 * reach:.2f}, n=3); "
        "to run both together, put `layout: [nchw, nhwc]` under vary (not fixed) of scenario s0"
    )


def test_a_gain_by_devices_is_told_with_the_faster_layout_that_ran_on_one(tmp_path: Path) -> None:
    found = of(tmp_path, ONE + vision_runs(120, devices=2), ONE + NHWC)
    assert found is not None and found.changes == {"devices": 2}
    assert found.sentence.startswith(
        "not run yet: 2 GPUs with layout: nhwc; measured with layout: nchw: 2 GPUs 1.20× as fast as 1 GPU (95% CI "
    )
    assert found.sentence.endswith("put `devices: [1, 2]` under vary (not fixed) of scenario s1")


@pytest.mark.parametrize("outcome", ["completed", "out_of_memory"])
def test_what_was_run_is_no_longer_told_even_if_it_failed(tmp_path: Path, outcome: str) -> None:
    both = vision_runs(90, devices=2, layout="nhwc", outcome=outcome)
    assert of(tmp_path, ONE + vision_runs(180, devices=2) + both, ONE + NHWC) is None


def test_a_gain_that_repeats_do_not_show_is_not_combined(tmp_path: Path) -> None:
    scattered = vision_runs(103, (0.8, 1.0, 1.25), layout="nhwc")
    assert of(tmp_path, vision_runs(100, (1.25, 1.0, 0.8)) + vision_runs(180, devices=2), ONE + scattered) is None


def test_advice_on_one_scenario_tells_what_another_one_measured(tmp_path: Path) -> None:
    first = make_results(tmp_path / "first", ONE + vision_runs(180, devices=2))
    both = make_results(tmp_path / "both", ONE + vision_runs(180, devices=2), ONE + NHWC)

    def first_trial(**whole: object) -> str:
        [job] = advise(first, **whole).jobs
        return next((answer.sentence for answer in job.others if answer.question == NEXT), "")

    assert "layout" not in first_trial()
    assert first_trial(whole=whole_of(both)).startswith("not run yet: 2 GPUs with layout: nhwc; measured on 1 GPU")
