"""The result of a scenario in a sentence: of synthetic runs whose ratios follow by hand."""

import json
import math
from pathlib import Path

import pytest

from factories import STEADY, Row, make_results, vision_runs
from multicard.answers.answer import HOW_LONG, HOW_MANY, WHICH, Answer
from multicard.answers.outputs import write_scenario
from multicard.answers.scaling.headline import NO_SAMPLES, headline

FALLING, RISING, ONCE = (1.1, 1.0, 0.9), (0.9, 1.0, 1.1), (1.0,)


def of(folder: Path, *runs: list[Row]) -> Answer:
    return headline(make_results(folder, [row for each in runs for row in each]))


def test_of_several_devices_it_is_the_speed_up_of_the_most_that_completed(tmp_path: Path) -> None:
    one, two = vision_runs(100, FALLING), vision_runs(200, RISING, devices=2)
    lost = vision_runs(0, devices=4, outcome="out_of_memory")
    found = of(tmp_path, one, two, lost)
    # The ratios of the blocks are 2 × (9/11, 1, 11/9): a t interval of two degrees of freedom around 2.
    assert found.sentence == "2 GPUs 2.00× (95% CI 1.21 to 3.29, n=3), 100% efficient"
    reach = 4.3027 * math.log(11 / 9) / math.sqrt(3)
    [row] = found.rows
    assert [row["speedup"], row["speedup_low"], row["speedup_high"]] == pytest.approx(
        [2, 2 * math.exp(-reach), 2 * math.exp(reach)], rel=1e-4
    )
    assert (found.question, row["varied"], row["repeats"], found.figure) == (HOW_MANY, "devices", 3, "speedup")


def test_several_configurations_have_their_mean_and_their_range(tmp_path: Path) -> None:
    rows = [
        vision_runs(speed, ONCE, image_size=size, devices=devices)
        for size, devices, speed in ((224, 1, 100), (224, 2, 80), (512, 1, 10), (512, 2, 15))
    ]
    # √(0.8 × 1.5) = 1.095
    said = "2 GPUs 1.10× (n=1) on average over 2 configurations (0.8× to 1.5×), 55% efficient"
    assert of(tmp_path, *rows).sentence == said


def test_what_repeats_do_not_decide_is_no_difference(tmp_path: Path) -> None:
    devices = of(tmp_path / "a", vision_runs(100, FALLING), vision_runs(100, RISING, devices=2))
    assert devices.sentence == "2 GPUs 1.00× (95% CI 0.61 to 1.65, n=3), 50% efficient, no difference shown"
    layouts = of(tmp_path / "b", vision_runs(100, FALLING), vision_runs(100, RISING, layout="nhwc"))
    assert layouts.sentence == "no difference shown between nhwc and nchw: 1.00× (95% CI 0.61 to 1.65, n=3)"


def test_of_another_parameter_the_second_value_is_compared_with_the_first(tmp_path: Path) -> None:
    def said(*speeds: float, repeats: tuple[float, ...] = FALLING) -> str:
        rows = [
            vision_runs(speed, repeats, layout=layout) for speed, layout in zip(speeds, ("nchw", "nhwc"), strict=True)
        ]
        return of(tmp_path / str(speeds) / str(len(repeats)), *rows).sentence

    assert said(100, 97) == "nhwc 0.970× as fast as nchw (n=3, equal to the last digit)"
    assert said(100, 125, repeats=STEADY).startswith("nhwc 1.25× as fast as nchw (95% CI 1.24 to 1.26, n=3)")
    assert said(100, 250, repeats=ONCE) == "nhwc 2.50× as fast as nchw (n=1)"
    # The ratios of the blocks are 0.6 × (9/11, 1, 11/9): from 0.6 / 1.6462 to 0.6 × 1.6462.
    scattered = of(tmp_path, vision_runs(100, FALLING), vision_runs(60, RISING, layout="nhwc"))
    assert scattered.sentence == "nhwc 0.600× as fast as nchw (95% CI 0.364 to 0.988, n=3)"


def test_of_more_values_the_fastest_is_compared_with_the_next(tmp_path: Path) -> None:
    precisions = [vision_runs(speed, precision=name) for name, speed in (("fp32", 100), ("fp16", 130), ("bf16", 325))]
    assert of(tmp_path / "a", *precisions).sentence.startswith("bf16 the fastest, 2.5")
    both = [vision_runs(100 + 10 * at, pin_memory=bool(at % 2), image_size=512 if at > 1 else 224) for at in range(4)]
    said = of(tmp_path / "b", *both)
    assert said.sentence.startswith(
        "image_size: 512, pin_memory: true the fastest, 1.08× as fast as image_size: 512, pin_memory: false (95% CI "
    )
    assert said.question == WHICH and said.figure == "gain_pin_memory"
    assert set(said.rows[0]["varied"].split(", ")) == {"image_size", "pin_memory"}


def test_where_work_is_unknown_steps_are_compared_but_not_those_of_other_devices(tmp_path: Path) -> None:
    def script(step_s: float, **others: object) -> list[Row]:
        stated = {"workload": "script", "command": ["train.py", "{b}"], "device": "cuda", "iteration_time_s": step_s}
        return [stated | {"args": {"b": 1}} | others]

    assert of(tmp_path / "a", script(0.1), script(0.1, devices=2)).sentence == (
        f"{NO_SAMPLES} (--samples-per-step or --samples-per-device)"
    )
    assert (
        of(tmp_path / "b", script(0.1), script(0.08, args={"b": 2})).sentence == "2 1.25× as fast per step as 1 (n=1)"
    )


def test_a_single_configuration_has_its_step_time_and_none_that(tmp_path: Path) -> None:
    alone = of(tmp_path / "a", vision_runs(100, ONCE, iteration_time_s=0.0123))
    assert alone.sentence == "12.3 ms (n=1) per step"
    [row] = alone.rows
    assert (row["varied"], row["iteration_time_s"]) == ("", pytest.approx(0.0123))
    assert of(tmp_path / "b", vision_runs(100, ONCE, outcome="failed")) == Answer(HOW_LONG, "no run completed")


def test_it_is_written_where_the_console_finds_it(extracted_run: Path, tmp_path: Path) -> None:
    write_scenario([extracted_run], {}, tmp_path)
    found = json.loads((tmp_path / "answer.json").read_text())
    assert found["question"] == HOW_LONG and found["sentence"].endswith(" (n=1) per step")
    assert [row["varied"] for row in found["rows"]] == [""]
