"""Speed-ups that are more than ideal: where it is told, and what the runs show of the reasons."""

from pathlib import Path
from typing import Any

import pytest

from factories import GPU, Row, make_results, recommendations, strong_scaling_runs, vision_runs
from multicard.answers.scaling.headline import headline
from multicard.answers.scaling.speedup import speedups_of
from multicard.answers.scaling.superlinear import superlinear_caveat

SCRIPT = {"workload": "script", "command": ["train.py"], "device": "cpu"}


def script(devices: int, samples_per_s: float, batch: int = 16, **columns: Any) -> Row:
    times = {"iteration_time_s": batch * devices / samples_per_s, "throughput_samples_per_s": samples_per_s}
    return SCRIPT | times | {"devices": devices} | columns


def caveat(folder: Path, rows: list[Row]) -> str | None:
    *_, last = speedups_of(make_results(folder, rows).configurations())
    return superlinear_caveat(last)


LOOK_AT = "2 CPU processes are more than ideal, so look at 1 CPU process: "


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        ({}, {}, "it ran only once"),
        ({"disturbance": "other processes: 1.6 CPUs"}, {}, "its only run was disturbed"),
        (
            {"disturbance": "other processes: 1.6 CPUs", "stalled_steps": "2 of 50: 3, 9"}, {},
            "its only run was disturbed and had stalled steps",
        ),
        (
            {"intraop_threads": 1}, {"intraop_threads": 2},
            "it computes with 1 thread, each of several with 2 threads; it ran only once",
        ),
        ({"intraop_threads": 2}, {"intraop_threads": 1}, "it ran only once"),
        (
            {"batch": 32}, {"batch": 16},
            "it computes 32 samples in a step, each of several 16 samples; it ran only once",
        ),
    ],
)  # fmt: skip
def test_what_the_runs_show_of_the_reasons_is_told(one: Row, two: Row, reason: str, tmp_path: Path) -> None:
    assert caveat(tmp_path, [script(1, 100, **one), script(2, 250, **two)]) == LOOK_AT + reason


def test_of_several_repeats_it_is_told_in_how_many(tmp_path: Path) -> None:
    one = vision_runs(100)
    one[1]["disturbance"] = "other processes: 1.6 CPUs"
    said = caveat(tmp_path, one + vision_runs(250, devices=2))
    assert said == "2 GPUs are more than ideal, so look at 1 GPU: in 1 of 3 runs it was disturbed"


def test_without_a_reason_it_says_what_to_check_and_with_plausible_gains_nothing(tmp_path: Path) -> None:
    unexplained = vision_runs(100) + vision_runs(250, devices=2)
    assert caveat(tmp_path / "a", unexplained) == (
        "2 GPUs are more than ideal, so look at 1 GPU: check that it does the same work and does not lack memory"
    )
    for rate in (215, 150, 3):
        assert caveat(tmp_path / str(rate), vision_runs(100) + vision_runs(rate, devices=2)) is None


def test_a_gpu_whose_memory_is_full_is_a_reason(tmp_path: Path) -> None:
    full = vision_runs(100, peak_reserved_bytes=0.95 * GPU["memory_bytes"])
    said = caveat(tmp_path, full + vision_runs(250, devices=2))
    assert said is not None and said.endswith("1 GPU: 95% of its memory was used")


def test_the_caveat_stands_with_the_speed_up_wherever_that_is_told(tmp_path: Path) -> None:
    results = make_results(tmp_path, strong_scaling_runs(1, 100, (1.0,)) + strong_scaling_runs(2, 250, (1.0,)))
    found = headline(results)
    assert found.sentence == "2 GPUs 2.50× as fast as 1 GPU (n=1), 125% efficient: more than ideal"
    [said] = found.caveats
    assert said == "2 GPUs are more than ideal, so look at 1 GPU: it ran only once"
    text = recommendations(results)
    [many] = [line for line in text.splitlines() if line.startswith("- How many devices")]
    [sure] = [line for line in text.splitlines() if line.startswith("- How sure")]
    assert many.endswith("125% efficient: more than ideal") and said in sure


def test_of_several_configurations_it_is_told_of_which(tmp_path: Path) -> None:
    rows = [
        row
        for size, speeds in ((224, (100, 250)), (512, (50, 80)))
        for devices, speed in zip((1, 2), speeds, strict=True)
        for row in vision_runs(speed, (1.0,), devices=devices, image_size=size)
    ]
    assert headline(make_results(tmp_path, rows)).caveats == (
        "image_size: 224: 2 GPUs are more than ideal, so look at 1 GPU: it ran only once",
    )
