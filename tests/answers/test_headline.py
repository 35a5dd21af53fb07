"""The result of a scenario in a sentence: of synthetic runs whose ratios follow by hand."""

import json
import math
import re
from pathlib import Path

import pytest

from factories import STEADY, Row, make_results, tuning_runs, vision_runs
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
    assert found.sentence == "2 GPUs 2.00× as fast as 1 GPU (95% CI 1.21 to 3.29, n=3), 100% efficient"
    reach = 4.3027 * math.log(11 / 9) / math.sqrt(3)
    [row] = found.rows
    assert [row["speedup"], row["speedup_low"], row["speedup_high"]] == pytest.approx(
        [2, 2 * math.exp(-reach), 2 * math.exp(reach)], rel=1e-4
    )
    assert (found.question, row["varied"], row["repeats"], found.figure) == (HOW_MANY, "devices", 3, "speedup")


@pytest.mark.parametrize(
    ("scaling", "batches", "said"),
    [
        ("weak", (16, 32), "weak scaling: each GPU has a batch of 16, so 2 compute 32 samples per step"),
        ("strong", (16, 16), "strong scaling: 2 GPUs share a batch of 16 samples"),
    ],
)
def test_a_speed_up_names_how_the_batch_grows(
    tmp_path: Path, scaling: str, batches: tuple[int, int], said: str
) -> None:
    # Samples of a step are its seconds times the samples per second of all devices.
    runs = [
        vision_runs(
            speed, ONCE, devices=devices, scaling=scaling, processed_samples_per_s=speed, iteration_time_s=batch / speed
        )
        for devices, speed, batch in ((1, 100.0, batches[0]), (2, 160.0, batches[1]))
    ]
    assert of(tmp_path, *runs).sentence == f"2 GPUs 1.60× as fast as 1 GPU (n=1), 80% efficient; {said}"


def test_where_methods_are_compared_their_memory_follows_with_its_interval(tmp_path: Path) -> None:
    sizes = (900 * 10**6, 1000 * 10**6, 1100 * 10**6)
    lora = [row | {"peak_memory_bytes": size} for row, size in zip(tuning_runs(0.2), sizes, strict=True)]
    full, dpo, qlora = (
        [row | {"peak_memory_bytes": size} for row in tuning_runs(0.25, technique=technique)]
        for technique, size in (("full", 2 * 10**9), ("dpo", 3 * 10**9), ("qlora", 10**9))
    )
    # The geometric means of 0.9, 1 and 1.1, and of three times 2.
    memory = of(tmp_path / "a", full, lora).sentence.partition("; peak memory of a rank: ")[2]
    assert re.fullmatch(r"full 2\.00 GB \(95% CI .*, n=3\), lora 997 MB \(95% CI .*, n=3\)", memory)
    assert of(tmp_path / "b", full, dpo, qlora).sentence.endswith(
        "; peak memory of a rank: full 2.00 GB, dpo 3.00 GB, qlora 1.00 GB"
    )
    assert "memory" not in of(tmp_path / "c", full, tuning_runs(0.2)).sentence


def test_where_another_parameter_is_compared_memory_is_left_out(tmp_path: Path) -> None:
    rows = [row | {"peak_memory_bytes": 10**9} for row in vision_runs(100) + vision_runs(125, layout="nhwc")]
    assert "memory" not in of(tmp_path, rows).sentence


def of_two_sizes(folder: Path, repeats: tuple[float, ...], *speeds: float) -> Answer:
    """The answer of two image sizes on one and on two GPUs, by the speeds of 224 on one and two, and of 512."""
    places = ((224, 1), (224, 2), (512, 1), (512, 2))
    rows = [
        vision_runs(speed, repeats, image_size=size, devices=devices)
        for (size, devices), speed in zip(places, speeds, strict=True)
    ]
    return of(folder, *rows)


def test_of_several_configurations_each_gain_is_named_the_largest_first(tmp_path: Path) -> None:
    found = of_two_sizes(tmp_path, ONCE, 100, 80, 10, 15)
    assert found.sentence == (
        "on 2 GPUs: image_size 512 1.50× as fast as 1 GPU (n=1), 75% efficient; image_size 224 0.800×; "
        "with one repeat, which gains most may be noise"
    )
    assert [(row["compared"], row["speedup"]) for row in found.rows] == [
        ("image_size: 512", pytest.approx(1.5)),
        ("image_size: 224", pytest.approx(0.8)),
    ]


def test_which_gains_most_is_said_only_if_repeats_show_it(tmp_path: Path) -> None:
    assert of_two_sizes(tmp_path / "a", STEADY, 100, 120, 10, 18).sentence.endswith("; image_size 512 gains most")
    assert of_two_sizes(tmp_path / "c", STEADY, 100, 50, 10, 8).sentence.endswith("; image_size 512 loses least")
    # Of the same repeats, gains of 1.2 and 1.2002 are as good as equal.
    same = of_two_sizes(tmp_path / "b", STEADY, 100, 120, 10, 12.002).sentence
    assert same.endswith("; which of image_size 512 and image_size 224 gains more is not decided")


def test_what_repeats_do_not_decide_is_no_difference(tmp_path: Path) -> None:
    less, more = (1.04, 1.0, 0.96), (0.96, 1.0, 1.04)
    # The ratios of the blocks are (0.96 / 1.04, 1, 1.04 / 0.96): a t interval of two degrees of freedom around 1.
    reach = math.exp(4.3027 * math.log(1.04 / 0.96) / math.sqrt(3))
    bounds = f"95% CI {1 / reach:.2f} to {reach:.2f}, n=3"
    devices = of(tmp_path / "a", vision_runs(100, less), vision_runs(100, more, devices=2))
    assert devices.sentence == f"no difference shown between 2 GPUs and 1 GPU: 1.00× ({bounds})"
    layouts = of(tmp_path / "b", vision_runs(100, less), vision_runs(100, more, layout="nhwc"))
    assert layouts.sentence == f"no difference shown between layout nhwc and nchw: 1.00× ({bounds})"


def test_repeats_over_which_an_interval_spans_a_factor_of_two_tell_nothing(tmp_path: Path) -> None:
    # From 1 / 1.6462 to 1.6462, by ratios from 9/11 to 11/9.
    scattered = "too scattered to tell (0.818× to 1.22× measured, n=3); more repeats on an idle machine would tell"
    devices = of(tmp_path / "a", vision_runs(100, FALLING), vision_runs(100, RISING, devices=2))
    assert devices.sentence == f"2 GPUs against 1 GPU: {scattered}"
    layouts = of(tmp_path / "b", vision_runs(100, FALLING), vision_runs(100, RISING, layout="nhwc"))
    assert layouts.sentence == f"layout nhwc against nchw: {scattered}"


def test_a_baseline_of_another_strategy_is_named(tmp_path: Path) -> None:
    one, two = vision_runs(100, STEADY, strategy="single"), vision_runs(150, STEADY, strategy="ddp", devices=2)
    found = of(tmp_path, one, two)
    assert found.sentence.startswith("2 GPUs 1.500× as fast as 1 GPU (single) (95% CI ")


def test_of_another_parameter_the_second_value_is_compared_with_the_first(tmp_path: Path) -> None:
    def said(*speeds: float, repeats: tuple[float, ...] = FALLING) -> str:
        rows = [
            vision_runs(speed, repeats, layout=layout) for speed, layout in zip(speeds, ("nchw", "nhwc"), strict=True)
        ]
        return of(tmp_path / str(speeds) / str(len(repeats)), *rows).sentence

    assert said(100, 97) == "layout nhwc 0.970× as fast as nchw (n=3, equal to the last digit)"
    assert said(100, 125, repeats=STEADY).startswith("layout nhwc 1.25× as fast as nchw (95% CI 1.24 to 1.26, n=3)")
    assert said(100, 250, repeats=ONCE) == "layout nhwc 2.50× as fast as nchw (n=1)"
    # The ratios of the blocks are 0.6 × (9/11, 1, 11/9): from 0.6 / 1.6462 to 0.6 × 1.6462.
    scattered = of(tmp_path, vision_runs(100, FALLING), vision_runs(60, RISING, layout="nhwc"))
    assert scattered.sentence == "layout nhwc 0.600× as fast as nchw (95% CI 0.364 to 0.988, n=3)"


def test_of_more_values_the_fastest_is_compared_with_the_next(tmp_path: Path) -> None:
    precisions = [vision_runs(speed, precision=name) for name, speed in (("fp32", 100), ("fp16", 130), ("bf16", 325))]
    assert of(tmp_path / "a", *precisions).sentence == (
        "precision bf16 is the fastest, 2.500× as fast as fp16 (95% CI 2.495 to 2.505, n=3); 3.25× as fast as fp32"
    )
    both = [vision_runs(100 + 10 * at, pin_memory=bool(at % 2), image_size=512 if at > 1 else 224) for at in range(4)]
    said = of(tmp_path / "b", *both)
    assert said.sentence.startswith(
        "image_size: 512, pin_memory: true is the fastest, 1.08× as fast as image_size: 512, pin_memory: false (95% CI "
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
        of(tmp_path / "b", script(0.1), script(0.08, args={"b": 2})).sentence
        == "b 2 1.25× as fast per step as b 1 (n=1)"
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
