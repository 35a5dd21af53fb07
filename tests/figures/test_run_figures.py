"""Image sizes, step times, accuracy, energy and the profiler's cost, as their figures show them; all synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, group_names, heading, legend, lengths, measured, two_repeats, words
from multicard.analysis.runs.breakdown import PARTS
from multicard.core.layout import STEP_COLUMNS
from multicard.figures import steps, utilization
from multicard.figures.costs import energy, profiler_overhead
from multicard.figures.draw import draw
from multicard.figures.scaling import image_size_scaling
from multicard.figures.steps import step_breakdown


def sized(size: int, devices: int, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    """A run on GPUs whose pass takes a second per pixel of edge, divided by the devices."""
    return {
        "strategy": "ddp-ds", "device": "cuda", "image_size": size, "devices": devices, "precision": precision,
        "estimated_epoch_time_s": size / devices, "throughput_samples_per_s": 10 * devices / size, **more,
    }  # fmt: skip


def test_sizes_are_lines_of_time_and_efficiency_a_row_per_precision() -> None:
    rows = [sized(size, n, p) for p in ("fp64", "fp32") for size in (300, 100) for n in (1, 2)]
    figure, _ = image_size_scaling(measured("vision", *rows))
    panels = closed(figure).axes
    assert [heading(axes) for axes in panels] == [
        "fp64: time", "fp64: efficiency", "fp32: time", "fp32: efficiency",
    ]  # fmt: skip
    assert [axes.get_ylabel() for axes in panels[:2]] == ["Time per pass (min)", "Speed-up per device"]
    assert panels[0].get_xlabel() == "GPUs\n(weak scaling: a batch on each)"
    drawn = {line.get_label(): line.lines[0].get_ydata().tolist() for line in panels[0].containers}
    assert drawn == {"100 px": pytest.approx([100 / 60, 50 / 60]), "300 px": pytest.approx([5, 2.5])}
    assert panels[1].containers[0].lines[0].get_ydata().tolist() == pytest.approx([1, 1])
    assert legend(figure) == [["100 px", "300 px", "ideal"]]
    left, right = closed(image_size_scaling(measured("vision", sized(100, 2), sized(300, 2)))[0]).axes
    assert len(left.containers) == 2
    assert words(right) == ["completed runs on 2 GPUs only:\nno efficiency"]


def test_parts_of_a_step_add_up_to_it_evaluation_too() -> None:
    parts = {"data_s": 0.01, "forward_s": 0.03, "backward_s": 0.04, "evaluation_s": 0.015, "other_s": 0.005}
    figure, _ = step_breakdown(measured("script", {"command": ["train.py"], **parts}))
    [axes] = closed(figure).axes
    drawn = lengths(axes)
    assert drawn == {name.removesuffix("_s"): [pytest.approx(1000 * value)] for name, value in parts.items()}
    assert sum(width for [width] in drawn.values()) == pytest.approx(100)


def test_every_part_of_a_step_has_a_look_of_its_own() -> None:
    timed = {name.removesuffix("_s") for name in STEP_COLUMNS if name.endswith("_s")} - {"start", "duration"}
    assert set(steps.LOOK) == timed | {"other"}
    assert set(utilization.LOOK) == set(PARTS)
    for module in (steps, utilization):
        assert len(set(module.LOOK.values())) == len(module.LOOK)


def test_a_box_holds_the_steps_of_all_repeats_by_their_slowest_rank(tmp_path: Path) -> None:
    measures = measured("vision", *two_repeats(iteration_time_s=0.2))
    steps = [
        {"run": run, "rank": rank, "step": step, "window": window, "duration_s": seconds + rank * 0.01}
        for run, seconds in (("run0", 0.1), ("run1", 0.3))
        for window, step in (("warmup", 1), ("measured", 2), ("measured", 3))
        for rank in (0, 1)
    ]
    figure, data = draw("step_times", gathered(tmp_path, measures, steps=steps))
    [axes] = closed(figure).axes
    assert data["steps"].tolist() == [4]
    assert data["median_s"].tolist() == pytest.approx([0.21])
    assert data[["lowest_s", "highest_s"]].iloc[0].tolist() == pytest.approx([0.11, 0.31])
    # A diamond marks the mean from which throughput follows, of 200 and 220 ms.
    [mark] = [line for line in axes.get_lines() if line.get_label() == "iteration time (mean)"]
    assert (mark.get_marker(), mark.get_xdata().tolist()) == ("D", pytest.approx([210]))
    assert axes.get_xlabel() == "Time of a measured step (ms)"
    assert group_names(axes, horizontal=True) == ["single, 1 CPU process"]


def test_accuracy_is_a_line_per_run_over_training_time(tmp_path: Path) -> None:
    rows = [row | {"devices": n, "strategy": "ddp-ds"} for n in (1, 2) for row in two_repeats(test_accuracy=0.9)]
    epochs = [
        {"run": f"run{i}", "epoch": epoch, "test_accuracy": accuracy, "epoch_time_s": 60.0}
        for i in range(4)
        for epoch, accuracy in ((2, 0.98), (1, 0.5))
    ]
    figure, _ = draw("accuracy", gathered(tmp_path, measured("vision", *rows), epochs=epochs))
    [axes] = closed(figure).axes
    lines = [
        line for line in axes.get_lines() if len(line.get_xdata()) == 2 and not line.get_label().startswith("target")
    ]
    assert len(lines) == 4
    assert list(zip(*lines[0].get_data(), strict=True)) == [pytest.approx((1, 50)), pytest.approx((2, 98))]
    assert axes.get_xlabel() == "Training time, without evaluation (min)"
    assert axes.get_ylabel() == "Test accuracy (%)"
    assert legend(figure) == [["1 CPU process", "2 CPU processes", "target: 98%"]]


@pytest.mark.parametrize(
    ("workload", "of", "measure", "value"),
    [("vision", "image", "energy_per_sample_j", 0.2), ("llm", "token", "energy_per_token_j", 0.002)],
)
def test_energy_is_per_image_or_token_in_joules(workload: str, of: str, measure: str, value: float) -> None:
    rows = [{"device": "cuda", "devices": n, measure: value * n} for n in (1, 2)]
    if workload == "vision":
        rows = [row | {"strategy": "ddp-ds"} for row in rows]
    figure, _ = energy(measured(workload, *rows))
    [axes] = closed(figure).axes
    assert axes.get_ylabel() == f"Energy per {of} (mJ)"
    assert axes.containers[0].lines[0].get_ydata().tolist() == pytest.approx([1000 * value, 2000 * value])


def test_exposed_communication_is_apart_from_backward_where_a_trace_tells_it_and_only_gradients_are_reduced() -> None:
    parts = {"iteration_time_s": 0.1, "forward_s": 0.03, "backward_s": 0.06, "other_s": 0.01, "device": "cuda"}
    rows = [parts | {"strategy": name, "devices": 2} for name in ("ddp-ds", "fsdp")]
    measures = measured("vision", *rows).assign(exposed_communication_share=0.2)
    figure, data = steps.step_breakdown(measures)
    [axes] = closed(figure).axes
    drawn = lengths(axes)
    # A fifth of 100 ms of the first; the second also gathers weights in the forward phase.
    assert drawn["exposed communication"] == pytest.approx([20, 0])
    assert drawn["backward"] == pytest.approx([40, 60])
    assert sum(each[0] for each in drawn.values()) == pytest.approx(100)
    assert data["backward_s"].tolist() == pytest.approx([0.06, 0.06])


def test_an_overhead_whose_interval_includes_zero_is_hollow() -> None:
    rows = [
        {"strategy": "ddp-ds", "devices": n, "repeat": i, "profiler_overhead": value}
        for n, values in ((1, (0.15, 0.16, 0.14)), (2, (0.1, 1 / 1.1 - 1, 0.0)), (4, (0.3,)))
        for i, value in enumerate(values, start=1)
    ]
    figure, _ = profiler_overhead(measured("vision", *rows))
    [axes] = closed(figure).axes
    clear, none, one = (each.lines[0] for each in axes.containers)
    assert [mark.get_xdata().tolist() for mark in (clear, none, one)] == [
        pytest.approx([x], abs=0.01) for x in (15, 0, 30)
    ]
    marks = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert [list(mark.get_ydata()) for mark in marks if mark.get_markerfacecolor() == "white"] == [[1]]
    assert [list(mark.get_ydata()) for mark in marks if mark.get_fillstyle() == "bottom"] == [[2]]
    assert legend(figure) == [["single repeat", "hollow: inconclusive", "half-filled: one repeat, cannot tell"]]
    assert axes.get_xlabel() == "Profiling overhead (%)"
