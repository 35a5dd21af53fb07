"""What one setting gains over another, as its figures show it; all measures are synthetic."""

from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from figures.measured import closed, heading, legend, measured
from multicard.analysis.comparisons import ORDER, gains
from multicard.figures.gains import gain
from multicard.figures.style import NothingToShow


def runs(times: dict[tuple[Any, int], list[float]], parameter: str, **more: Any) -> list[dict[str, Any]]:
    """Runs with these step times, by value of the parameter and number of devices, one per repeat."""
    return [
        {"strategy": "ddp-ds", parameter: value, "devices": devices, "repeat": i, "iteration_time_s": seconds, **more}
        for (value, devices), every in times.items()
        for i, seconds in enumerate(every, start=1)
    ]


def pinned(times: dict[tuple[Any, int], list[float]], **more: Any) -> pd.DataFrame:
    return measured("vision", *runs(times, "pin_memory", **more))


CLEAR = {
    (False, 1): [1.2, 1.21], (True, 1): [1.0, 1.01],
    (False, 2): [1.0, 1.1], (True, 2): [1.02, 1.08],
}  # fmt: skip


def test_the_gain_is_in_speed_over_the_same_number_of_devices() -> None:
    data = gains(pinned(CLEAR), "pin_memory")
    assert data["devices"].tolist() == [1, 2]
    ratios = [(1.2 / 1.0) * (1.21 / 1.01), (1.0 / 1.02) * (1.1 / 1.08)]
    assert data["gain"].tolist() == pytest.approx([ratio**0.5 - 1 for ratio in ratios])
    assert data["verdict"].tolist() == ["more", "none"]
    assert data["repeats"].tolist() == [2, 2]


def test_a_gain_inside_the_interval_is_drawn_hollow_and_worded_as_none() -> None:
    figure, _ = gain(pinned(CLEAR), "pin_memory")
    [axes] = closed(figure).axes
    assert heading(axes) == "Pinned over pageable memory"
    assert axes.get_ylabel() == "Speed gain (%)"
    assert axes.get_xlabel() == "CPU processes"
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [tuple(line.get_xdata()) for line in hollow] == [(1,)]
    assert legend(figure) == [["hollow: inconclusive"]]


def test_one_difference_among_thirty_needs_more_than_one_alone() -> None:
    # Ratios 1.15, 1.2 and 1.25: t of their logarithms is 7.6, p 1.7% alone; among others that scatter by 10% it is not
    # significant. Where all scatter by 1%, a fifth is.
    def verdict(ratios: tuple[float, ...], others: int, scatter: float = 0.1) -> str:
        times = {(False, 1): list(ratios), (True, 1): [1.0, 1.0, 1.0]}
        for devices in range(2, others + 2):
            times |= {(False, devices): [1.0, 1 + scatter, 1 + 2 * scatter]}
            times |= {(True, devices): [1 + scatter, 1 + 2 * scatter, 1.0]}
        return gains(pinned(times), "pin_memory")["verdict"].iloc[0]

    assert [verdict((1.15, 1.2, 1.25), others) for others in (0, 29)] == ["more", "none"]
    assert [verdict((1.19, 1.2, 1.21), others, 0.01) for others in (0, 29)] == ["more", "more"]


def test_long_whiskers_of_two_repeats_leave_the_points_readable() -> None:
    figure, data = gain(pinned({(False, 1): [1.0, 2.0], (True, 1): [1.0, 1.0]}), "pin_memory")
    [axes] = closed(figure).axes
    low, high = axes.get_ylim()
    # 41% with an interval of more than a factor of eighty to each side.
    assert data["gain_high"].iloc[0] > 80
    assert low < -50 and 80 < high < 120
    assert axes.containers[0].lines[2][0].get_clip_on()


def half_filled(axes: Axes) -> list[Line2D]:
    return [line for line in axes.get_lines() if line.get_fillstyle() == "bottom" and len(line.get_xdata())]


def test_one_repeat_has_a_gain_without_interval_or_verdict() -> None:
    measures = pinned({key: times[:1] for key, times in CLEAR.items()})
    data = gains(measures, "pin_memory")
    assert data["gain"].tolist() == pytest.approx([0.2, 1.0 / 1.02 - 1])
    assert data[["gain_low", "gain_high"]].isna().all(axis=None)
    assert data["verdict"].tolist() == ["unknown", "unknown"]
    figure, _ = gain(measures, "pin_memory")
    [marks] = half_filled(closed(figure).axes[0])
    assert list(marks.get_xdata()) == [0, 1]
    assert marks.get_markerfacecoloralt() == "white"
    assert legend(figure) == [["half-filled: one repeat, cannot tell"]]


def test_a_gain_that_is_known_is_drawn_full_beside_one_of_a_single_repeat() -> None:
    figure, _ = gain(pinned(CLEAR | {(True, 2): [1.02]}), "pin_memory")
    [axes] = closed(figure).axes
    assert [list(marks.get_xdata()) for marks in half_filled(axes)] == [[1]]
    assert legend(figure) == [["half-filled: one repeat, cannot tell"]]
    assert not [line for line in axes.get_lines() if line.get_markerfacecolor() == "white" and len(line.get_xdata())]


def test_runs_without_step_times_are_not_said_to_be_missing() -> None:
    measures = pinned(CLEAR)
    measures.loc[measures["pin_memory"], "iteration_time_s"] = None
    with pytest.raises(NothingToShow, match="differ in pin memory alone, but not both have recorded step times"):
        gain(measures, "pin_memory")


def test_what_else_varies_makes_series_and_only_equals_are_compared() -> None:
    rows = [
        {"loader": loader, "layout": layout, "devices": 1, "iteration_time_s": seconds}
        for loader, layout, seconds in (
            ("torch", "nchw", 1.0), ("torch", "nhwc", 0.5), ("dali", "nchw", 0.8), ("dali", "nhwc", 0.1),
        )
    ]  # fmt: skip
    figure, data = gain(measured("vision", *rows), "loader")
    assert data["series"].tolist() == ["NCHW", "NHWC"]
    assert data["gain"].tolist() == pytest.approx([0.25, 4.0])
    assert heading(closed(figure).axes[0]) == "DALI over DataLoader"
    assert legend(figure) == [["NCHW", "NHWC", "half-filled: one repeat, cannot tell"]]


def test_switches_are_compared_as_the_presets_that_bring_them() -> None:
    rows = [{"preset": name, "devices": 1, "iteration_time_s": s} for name, s in (("paper", 1.0), ("tuned", 0.5))]
    assert gains(measured("vision", *rows), "preset")["gain"].tolist() == pytest.approx([1.0])


def test_precisions_have_a_panel_each_and_the_test_accuracy_a_panel_too() -> None:
    times = {("fp16", 1): [0.2], ("fp64", 1): [1.0], ("fp32", 1): [0.5]}
    measures = measured("vision", *runs(times, "precision", test_accuracy=0.98))
    figure, _ = gain(measures, "precision")
    panels = closed(figure).axes
    assert [heading(axes) for axes in panels] == ["fp32 over fp64", "fp16 over fp64", "Test accuracy"]
    assert panels[2].get_ylabel() == "After the last epoch (%)"
    assert [text.get_text() for text in panels[2].get_xticklabels()] == ["fp64", "fp32", "fp16"]
    assert panels[2].get_lines()[0].get_ydata().tolist() == pytest.approx([98] * 3)
    # One scale for what is compared.
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_a_run_whose_counterpart_did_not_complete_is_not_compared() -> None:
    measures = pinned(CLEAR)
    measures.loc[(measures["devices"] == 1) & ~measures["pin_memory"], "outcome"] = "failed"
    assert gains(measures, "pin_memory")["devices"].tolist() == [2]
    measures["outcome"] = measures["outcome"].where(measures["pin_memory"], "failed")
    with pytest.raises(NothingToShow, match="no two completed runs differ in pin memory alone"):
        gain(measures, "pin_memory")


def test_a_run_under_the_profiler_that_was_used_is_compared_with_one_without() -> None:
    # Ratios of the repeats: 1.0/1.1, 1.02/1.11, 0.99/1.1; so a tenth slower.
    times = {("none", 1): [1.0, 1.02, 0.99], ("auto", 1): [1.1, 1.11, 1.1]}
    measures = measured("vision", *runs(times, "profiler"))
    measures["profiler_used"] = measures["profiler"].replace("auto", "nsys")
    data = gains(measures, "profiler")
    assert data[["base", "value", "verdict"]].to_numpy().tolist() == [["none", "nsys", "less"]]
    expected = (1.0 / 1.1 * 1.02 / 1.11 * 0.99 / 1.1) ** (1 / 3) - 1
    assert data["gain"].tolist() == pytest.approx([expected])
    figure, _ = gain(measures, "profiler")
    assert heading(closed(figure).axes[0]) == "nsys over no profiler"
    # Where the machine has no profiler, both ran without.
    with pytest.raises(NothingToShow, match="all completed runs used the same profiler: none"):
        gain(measures.assign(profiler_used="none"), "profiler")


def test_values_are_compared_in_the_order_of_what_they_cost() -> None:
    assert ORDER["precision"] == ("fp64", "fp32", "bf16", "fp16")
    firsts = {name: values[0] for name, values in ORDER.items()}
    assert firsts == {
        "precision": "fp64", "pin_memory": False, "loader": "torch", "layout": "nchw", "binding": "none",
        "preset": "paper", "profiler": "none",
    }  # fmt: skip


@pytest.mark.parametrize("parameter", ORDER)
def test_every_value_of_a_compared_parameter_has_its_place(parameter: str) -> None:
    from multicard.experiment.workload import WORKLOADS

    allowed = WORKLOADS["vision"].parameters.model_json_schema()["properties"][parameter]
    assert set(ORDER[parameter]) == set(allowed.get("enum", (False, True)))
