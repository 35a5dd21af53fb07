"""What one setting gains over another, as its figures show it; all measures are synthetic."""

from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from figures.measured import closed, group_names, heading, legend, measured
from multicard.analysis.comparison.comparisons import ORDER, gains
from multicard.experiment.workload import WORKLOADS
from multicard.figures.gains import gain, precision
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


def marks(axes: Axes, look: str) -> list[Line2D]:
    """Points that are hollow or half-filled."""
    found = [line for line in axes.get_lines() if len(line.get_xdata())]
    if look == "hollow":
        return [line for line in found if line.get_markerfacecolor() == "white"]
    return [line for line in found if line.get_fillstyle() == "bottom"]


CLEAR = {
    (False, 1): [1.2, 1.21], (True, 1): [1.0, 1.01],
    (False, 2): [1.0, 1.1], (True, 2): [1.02, 1.08],
}  # fmt: skip


def test_the_gain_is_in_speed_over_the_same_number_of_devices_and_hollow_where_it_is_inconclusive() -> None:
    figure, data = gain(pinned(CLEAR), "pin_memory")
    assert data["devices"].tolist() == [1, 2]
    ratios = [(1.2 / 1.0) * (1.21 / 1.01), (1.0 / 1.02) * (1.1 / 1.08)]
    assert data["gain"].tolist() == pytest.approx([ratio**0.5 - 1 for ratio in ratios])
    assert data["verdict"].tolist() == ["more", "none"]
    assert data["repeats"].tolist() == [2, 2]
    [axes] = closed(figure).axes
    assert heading(axes) == "Pinned over pageable memory"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("Speed gain (%)", "CPU processes")
    assert [tuple(line.get_xdata()) for line in marks(axes, "hollow")] == [(2,)]
    assert legend(figure) == [["single repeat", "hollow: inconclusive"]]


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
    assert verdict((1.19, 1.2, 1.21), 29, 0.01) == "more"


def test_long_whiskers_of_two_repeats_leave_the_points_readable() -> None:
    times = {(False, devices): [1.0, 2.0] for devices in (1, 2)} | {(True, devices): [1.0, 1.0] for devices in (1, 2)}
    figure, data = gain(pinned(times), "pin_memory")
    [axes] = closed(figure).axes
    low, high = axes.get_ylim()
    # 41% with an interval by the scatter of both numbers of devices.
    assert data["gain_high"].iloc[0] > 2
    assert low < -50 and 80 < high < 120
    assert axes.containers[0].lines[2][0].get_clip_on()


def test_one_repeat_has_a_gain_without_interval_or_verdict() -> None:
    figure, data = gain(pinned({key: times[:1] for key, times in CLEAR.items()}), "pin_memory")
    assert data["gain"].tolist() == pytest.approx([0.2, 1.0 / 1.02 - 1])
    assert data[["gain_low", "gain_high"]].isna().all(axis=None)
    assert data["verdict"].tolist() == ["unknown", "unknown"]
    [half] = marks(closed(figure).axes[0], "half")
    assert (list(half.get_xdata()), half.get_markerfacecoloralt()) == ([1, 2], "white")
    assert legend(figure) == [["half-filled: one repeat, cannot tell"]]
    # Beside one that is known.
    [axes] = closed(gain(pinned(CLEAR | {(True, 2): [1.02]}), "pin_memory")[0]).axes
    assert [list(each.get_xdata()) for each in marks(axes, "half")] == [[2]]
    assert marks(axes, "hollow") == []


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
    [axes] = closed(figure).axes
    assert heading(axes) == "DALI over DataLoader"
    assert group_names(axes, horizontal=True) == ["NCHW", "NHWC"]  # a row each: all ran on one device
    assert legend(figure) == [["half-filled: one repeat, cannot tell"]]
    # Switches are compared as the presets that bring them.
    rows = [{"preset": name, "devices": 1, "iteration_time_s": s} for name, s in (("paper", 1.0), ("tuned", 0.5))]
    assert gains(measured("vision", *rows), "preset")["gain"].tolist() == pytest.approx([1.0])


def test_precisions_have_a_panel_each_and_the_test_accuracy_a_panel_too() -> None:
    times = {("fp16", 1): [0.2], ("fp64", 1): [1.0], ("fp32", 1): [0.5]}
    panels = closed(gain(measured("vision", *runs(times, "precision", test_accuracy=0.98)), "precision")[0]).axes
    assert [heading(axes) for axes in panels] == ["fp32 over fp64", "fp16 over fp64", "Test accuracy"]
    assert panels[2].get_ylabel() == "After the last epoch (%)"
    assert [text.get_text() for text in panels[2].get_xticklabels()] == ["fp64", "fp32", "fp16"]
    assert panels[2].get_lines()[0].get_ydata().tolist() == pytest.approx([98] * 3)
    # One scale for what is compared.
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_where_nothing_can_be_compared_it_says_why() -> None:
    measures = pinned(CLEAR)
    untimed = measures.copy()
    untimed.loc[untimed["pin_memory"], "iteration_time_s"] = None
    with pytest.raises(NothingToShow, match="differ in pin memory alone, but not both have recorded step times"):
        gain(untimed, "pin_memory")
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
    figure, data = gain(measures, "profiler")
    assert data[["base", "value", "verdict"]].to_numpy().tolist() == [["none", "nsys", "less"]]
    assert data["gain"].tolist() == pytest.approx([(1.0 / 1.1 * 1.02 / 1.11 * 0.99 / 1.1) ** (1 / 3) - 1])
    assert heading(closed(figure).axes[0]) == "nsys over no profiler"
    # Where the machine has no profiler, both ran without.
    with pytest.raises(NothingToShow, match="all completed runs used the same profiler: none"):
        gain(measures.assign(profiler_used="none"), "profiler")


def test_values_are_compared_in_the_order_of_what_they_cost_and_each_has_its_place() -> None:
    assert ORDER["precision"] == ("fp64", "fp32", "bf16", "fp16")
    assert {name: values[0] for name, values in ORDER.items()} == {
        "precision": "fp64", "pin_memory": False, "loader": "torch", "layout": "nchw", "binding": "none",
        "preset": "paper", "profiler": "none",
    }  # fmt: skip
    allowed = WORKLOADS["vision"].parameters.model_json_schema()["properties"]
    assert {name: set(values) for name, values in ORDER.items()} == {
        name: set(allowed[name].get("enum", (False, True))) for name in ORDER
    }


def test_precisions_alone_need_no_name_in_the_legend() -> None:
    times = {("fp32", 1): [1.0, 1.02], ("fp16", 1): [0.5, 0.51]}
    rows = runs(times, "precision", test_accuracy=0.9)
    figure, data = precision(measured("vision", *rows))
    left, right = closed(figure).axes
    assert legend(figure) == [["single repeat"]]
    assert group_names(left, horizontal=False) == group_names(right, horizontal=False) == ["fp32", "fp16"]
    assert data["iteration_time_s"].tolist() == pytest.approx([1.02**0.5, 0.255**0.5])
