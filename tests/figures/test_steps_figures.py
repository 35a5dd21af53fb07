"""Steps, losses, accuracy and utilization, as their figures show them; all numbers are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import (
    closed,
    drawn,
    gathered,
    group_names,
    heading,
    legend,
    lengths,
    lines,
    measured,
    pictures,
    texts,
    two_repeats,
)
from multicard.answers.phases import PARTS
from multicard.core.layout import STEP_COLUMNS
from multicard.core.units import number_in
from multicard.figures import steps
from multicard.figures.draw import draw
from multicard.results.breakdown import StepPart
from multicard.results.utilization import Utilization


def rows_of(run: str, losses: list[float], ranks: int = 1) -> list[dict[str, Any]]:
    """Steps of a run, whose ranks differ from the given loss by ±0.1, ±0.2, …, so that their mean is it."""
    return [
        {"run": run, "rank": rank, "step": number + 1, "window": "measured"}
        | {"loss": loss + 0.1 * (rank - (ranks - 1) / 2)}
        for rank in range(ranks)
        for number, loss in enumerate(losses)
    ]


def test_the_parts_of_a_step_add_up_to_it() -> None:
    [axes] = drawn("step_breakdown", texts())[0].axes
    assert group_names(axes) == [
        "preferences, LoRA, 1 CPU process", "preferences, LoRA, 2 CPU processes",
        "preferences, DPO, 1 CPU process", "preferences, DPO, 2 CPU processes",
        "articles, LoRA, 1 CPU process",
    ]  # fmt: skip
    parts = lengths(axes)
    assert list(parts) == ["forward", "backward", "other"]
    # Geometric means of two repeats: 100 and 110 ms, 160 and 176 ms, …
    steps_ms = [first_ms * 1.1**0.5 for first_ms in (100, 160, 200, 300, 500)]
    assert [sum(bar) for bar in zip(*parts.values(), strict=True)] == pytest.approx(steps_ms)
    assert [bar.get_x() + bar.get_width() for bar in axes.containers[-1]] == pytest.approx(steps_ms)
    for measures, name in ((pictures(), "ddp, 1 CPU process"), (texts(), "LoRA, 1 CPU process")):  # nothing varies
        assert group_names(drawn("step_breakdown", measures[:2])[0].axes[0]) == [name]
    with_evaluation = {"data_s": 0.01, "forward_s": 0.03, "backward_s": 0.04, "evaluation_s": 0.015, "other_s": 0.005}
    [axes] = drawn("step_breakdown", measured("script", {"command": ["train.py"], **with_evaluation}))[0].axes
    expected = {name.removesuffix("_s"): [pytest.approx(1000 * value)] for name, value in with_evaluation.items()}
    assert lengths(axes) == expected


def test_a_bar_is_the_iteration_time_of_the_other_figures_with_its_interval() -> None:
    # Steps of 100 and 400 ms: 200 ms is the geometric mean, and 250 ms the arithmetic one.
    repeats = [
        {"repeat": 1, "iteration_time_s": 0.1, "forward_s": 0.03, "backward_s": 0.06},
        {"repeat": 2, "iteration_time_s": 0.4, "forward_s": 0.12, "backward_s": 0.24, "transfer_s": 0.0001},
    ]
    measures = measured("vision", *repeats)
    figure, data = drawn("step_breakdown", measures)
    [axes] = figure.axes
    # Three tenths of each step are forward, six tenths backward, the rest is in no phase; the transfer cannot be seen.
    expected = {"forward": [60], "backward": [120], "other": [20]}
    assert lengths(axes) == {part: pytest.approx(each, rel=3e-3) for part, each in expected.items()}
    assert legend(figure) == [list(expected)]
    [number] = [text.get_text() for text in axes.texts]
    _, of_times = drawn("iteration_time", measures)
    columns = ["iteration_time_s", "iteration_time_s_low", "iteration_time_s_high"]
    value, low, high = (1000 * of_times[column][0] for column in columns)
    assert value == pytest.approx(200)
    assert number == number_in(value, low, high)
    assert data[columns].equals(of_times[columns])
    # The phases add up to it.
    assert data[["forward_s", "backward_s", "transfer_s", "other_s"]].sum(axis=1).tolist() == pytest.approx([0.2])


def test_a_bar_of_a_run_without_phases_says_so() -> None:
    timed = {"devices": 1, "iteration_time_s": 0.1, "forward_s": 0.1}
    figure, _ = drawn("step_breakdown", measured("vision", timed, {"devices": 2, "strategy": "ddp"}))
    assert [text.get_text() for text in figure.axes[0].texts] == ["100", "not recorded"]


def test_a_bar_of_repeats_of_which_some_evaluated_is_as_long_as_their_mean_step() -> None:
    # Steps of 100 ms, of which 30 ms are evaluation, and steps of 70 ms without: 85 ms, of which 15 ms are evaluation.
    common = {"command": ["train.py"], "forward_s": 0.05, "other_s": 0.02}
    evaluated = common | {"repeat": 1, "evaluation_s": 0.03, "mean_iteration_time_s": 0.10}
    not_evaluated = common | {"repeat": 2, "mean_iteration_time_s": 0.07}
    figure, data = drawn("step_breakdown", measured("script", evaluated, not_evaluated))
    assert lengths(figure.axes[0]) == {
        "forward": [pytest.approx(50)], "evaluation": [pytest.approx(15)], "other": [pytest.approx(20)],
    }  # fmt: skip
    # A phase that no repeat recorded stays empty.
    assert data["backward_s"].isna().all()


def test_every_part_of_a_step_has_a_look_of_its_own() -> None:
    timed = {name.removesuffix("_s") for name in STEP_COLUMNS if name.endswith("_s")} - {"start", "duration"}
    assert set(steps.PHASE_FILLS) == set(PARTS) == timed | {"other", "evaluation", "stalls"}
    assert set(steps.STEP_PART_FILLS) >= set(StepPart)
    for fills in (steps.PHASE_FILLS, steps.STEP_PART_FILLS):
        assert len(set(fills.values())) == len(fills)


def test_a_box_holds_the_steps_of_all_repeats_by_their_slowest_rank(tmp_path: Path) -> None:
    measures = measured("vision", *two_repeats(iteration_time_s=0.2))
    every = [
        {"run": run, "rank": rank, "step": step, "window": window, "duration_s": seconds + rank * 0.01}
        for run, seconds in (("run0", 0.1), ("run1", 0.3))
        for window, step in (("warmup", 1), ("measured", 2), ("measured", 3))
        for rank in (0, 1)
    ]
    figure, data = draw("step_times", gathered(tmp_path, measures, steps=every))
    [axes] = closed(figure).axes
    assert data["steps"].tolist() == [4]
    assert data["median_s"].tolist() == pytest.approx([0.21])
    assert data[["lowest_s", "highest_s"]].iloc[0].tolist() == pytest.approx([0.11, 0.31])
    # A diamond marks the geometric mean from which throughput follows, of 200 and 220 ms.
    assert lines(axes)["iteration time (elapsed / steps)"][0] == pytest.approx([(200 * 220) ** 0.5])
    assert axes.get_xlabel() == "Time of a measured step (ms)"
    assert group_names(axes) == ["single, 1 CPU process"]


def test_accuracy_is_a_line_per_run_over_training_time(tmp_path: Path) -> None:
    rows = [row | {"devices": n, "strategy": "ddp-ds"} for n in (1, 2) for row in two_repeats(test_accuracy=0.9)]
    epochs = [
        {"run": f"run{i}", "epoch": epoch, "test_accuracy": accuracy, "epoch_time_s": 60.0}
        for i in range(4)
        for epoch, accuracy in ((2, 0.98), (1, 0.5))
    ]
    figure, _ = draw("accuracy", gathered(tmp_path, measured("vision", *rows), epochs=epochs))
    [axes] = closed(figure).axes
    runs = [line for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_label().startswith("_")]
    assert len(runs) == 4
    assert list(zip(*runs[0].get_data(), strict=True)) == [pytest.approx((1, 50)), pytest.approx((2, 98))]
    assert axes.get_xlabel() == "Training time, without evaluation (min)"
    assert axes.get_ylabel() == "Test accuracy (%)"
    assert legend(figure) == [["ddp-ds, 1 CPU process", "ddp-ds, 2 CPU processes", "target: 98%"]]


def test_a_setting_has_a_colour_and_a_number_of_devices_a_dash(tmp_path: Path) -> None:
    rows = [{"strategy": strategy, "devices": n} for strategy in ("ddp", "ddp-ds") for n in (1, 2)]
    epochs = [{"run": f"run{i}", "epoch": 1, "test_accuracy": 0.9, "epoch_time_s": 60.0} for i in range(4)]
    figure, _ = draw("accuracy", gathered(tmp_path, measured("vision", *rows), epochs=epochs))
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in closed(figure).axes[0].get_lines()}
    one, two = looks["ddp, 1 CPU process"], looks["ddp, 2 CPU processes"]
    other_one, other_two = looks["ddp-ds, 1 CPU process"], looks["ddp-ds, 2 CPU processes"]
    assert one[0] == two[0] != other_one[0] == other_two[0]
    assert one[1] == other_one[1] != two[1] == other_two[1]


def test_losses_are_means_over_ranks_and_those_that_cannot_be_compared_have_a_panel_each(tmp_path: Path) -> None:
    measures = measured("vision", {"strategy": "ddp-ds", "devices": 1}, {"strategy": "ddp-ds", "devices": 2})
    rows = [*rows_of("run0", [3, 2, 1]), *rows_of("run1", [3, 1.5], ranks=2)]
    figure, data = draw("loss", gathered(tmp_path / "vision", measures, steps=rows))
    [axes] = closed(figure).axes
    runs = [line.get_ydata().tolist() for line in axes.get_lines() if len(line.get_xdata()) > 1]
    assert runs == [pytest.approx([3, 2, 1]), pytest.approx([3, 1.5])]
    assert legend(figure) == [["ddp-ds, 1 CPU process", "ddp-ds, 2 CPU processes"]] and len(data) == 5
    measures = measured("llm", *({"technique": t, "devices": n} for t in ("lora", "dpo", "full") for n in (1, 2)))
    rows = [row for number in range(6) for row in rows_of(f"run{number}", [7 - number, 1])]
    figure, _ = draw("loss", gathered(tmp_path / "llm", measures, steps=rows))
    titles = [f"Training loss, {technique}" for technique in ("LoRA", "DPO", "full fine-tuning")]
    assert [heading(axes) for axes in closed(figure).axes] == titles
    assert legend(figure) == [["1 CPU process", "2 CPU processes"]]
    _, data = draw("loss", gathered(tmp_path / "none", measured("llm", {})))
    assert data["nothing_to_show"].tolist() == ["no losses were recorded"]


def test_lines_that_coincide_take_turns_and_are_whole_in_the_legend(tmp_path: Path) -> None:
    measures = measured("vision", *({"strategy": "ddp-ds", "devices": n} for n in (1, 2, 4)))
    rows = [row for number in range(3) for row in rows_of(f"run{number}", [3, 2, 1])]
    figure, _ = draw("loss", gathered(tmp_path, measures, steps=rows))
    figure = closed(figure)
    drawn_lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata())]
    assert [line.get_linestyle() for line in drawn_lines] == ["-", "--", "--"]
    assert [line.get_linestyle() for line in figure.legends[0].get_lines()] == ["-", "-", "-"]


def test_of_a_long_run_neighbouring_steps_are_averaged(tmp_path: Path) -> None:
    falling = [float(1000 - n) for n in range(1000)]
    figure, data = draw("loss", gathered(tmp_path, measured("llm", {}), steps=rows_of("run0", falling)))
    closed(figure)
    # 200 points of five steps each: the first is the mean of steps 1 to 5, whose losses are 1000 to 996.
    assert data["step"].tolist() == [3 + 5 * n for n in range(200)]
    assert data["loss"].tolist() == [998 - 5 * n for n in range(200)]


def test_a_bar_of_mfu_stands_beside_the_parts_of_the_step() -> None:
    common = {"technique": "lora", "device": "cuda"}
    one = {"compute_share": 0.7, "launch_overhead_share": 0.2, "data_loading_share": 0.1}
    two = {"compute_share": 0.7, "exposed_communication_share": 0.15, "waiting_for_other_ranks_share": 0.05}
    two |= {"memory_operations_share": 0.1}
    measures = measured("llm", common | one | {"mfu": 0.25}, common | two | {"mfu": 0.4, "devices": 2})
    figure, data = drawn("utilization", measures)
    left, right = figure.axes
    assert lengths(left) == {"_": [25, 40]}
    expected = {
        "compute": [70, 70], "exposed communication": [0, 15], "waiting for other ranks": [0, 5],
        "memory operations": [0, 10], "launch overhead": [20, 0], "data loading": [10, 0],
    }  # fmt: skip
    assert lengths(right) == {part: pytest.approx(each) for part, each in expected.items()}
    assert data[["mfu", "compute"]].to_numpy().tolist() == [[0.25, pytest.approx(0.7)], [0.4, pytest.approx(0.7)]]
    # Runs whose peak is not known show the parts alone.
    [axes] = drawn("utilization", measures.assign(**dict.fromkeys(Utilization.__annotations__)))[0].axes
    assert lengths(axes) == lengths(right)


def test_parts_are_means_over_repeats_so_that_they_add_up() -> None:
    # In one of three repeats the loader was slow: medians would add up to 0.6 + 0.1 and not to 1.
    repeats = [
        {"repeat": number, "compute_share": compute, "data_loading_share": data, "launch_overhead_share": other}
        for number, (compute, data, other) in enumerate(((0.6, 0.1, 0.3), (0.1, 0.8, 0.1), (0.8, 0.1, 0.1)), 1)
    ]
    [axes] = drawn("utilization", measured("vision", *repeats))[0].axes
    assert lengths(axes) == {
        "compute": pytest.approx([50]), "launch overhead": pytest.approx([50 / 3]),
        "data loading": pytest.approx([100 / 3]),
    }  # fmt: skip
