"""What one setting gains over another, as its figures show it; all measures are synthetic."""

from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes

from figures.measured import drawn, group_names, heading, legend, measured
from multicard.answers.comparison.comparisons import ORDER, gains
from multicard.programs import PROGRAMS
from multicard.results.results import Results


def runs(times: dict[tuple[Any, int], list[float]], parameter: str, **more: Any) -> list[dict[str, Any]]:
    """Runs with these step times, by value of the parameter and number of devices, one per repeat."""
    return [
        {"strategy": "ddp-ds", parameter: value, "devices": devices, "repeat": i, "iteration_time_s": seconds, **more}
        for (value, devices), every in times.items()
        for i, seconds in enumerate(every, start=1)
    ]


def pinned(times: dict[tuple[Any, int], list[float]], **more: Any) -> pd.DataFrame:
    return measured("vision", *runs(times, "pin_memory", **more))


def hollow(axes: Axes) -> list[list[float]]:
    """Devices of the hollow marks."""
    found = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    return [list(line.get_xdata()) for line in found]


CLEAR = {
    (False, 1): [1.2, 1.21], (True, 1): [1.0, 1.01],
    (False, 2): [1.0, 1.1], (True, 2): [1.02, 1.08],
}  # fmt: skip


def test_one_difference_among_thirty_needs_more_than_one_alone() -> None:
    # Ratios 1.15, 1.2 and 1.25: t of their logarithms is 7.6, p 1.7% alone; among others that scatter by 10% it is not
    # significant. Where all scatter by 1%, a fifth is.
    def verdict(ratios: tuple[float, ...], others: int, scatter: float = 0.1) -> str:
        times = {(False, 1): list(ratios), (True, 1): [1.0, 1.0, 1.0]}
        for devices in range(2, others + 2):
            times |= {(False, devices): [1.0, 1 + scatter, 1 + 2 * scatter]}
            times |= {(True, devices): [1 + scatter, 1 + 2 * scatter, 1.0]}
        return gains(Results(pinned(times)), "pin_memory")["verdict"].iloc[0]

    assert [verdict((1.15, 1.2, 1.25), others) for others in (0, 29)] == ["more", "none"]
    assert verdict((1.19, 1.2, 1.21), 29, 0.01) == "more"


def test_each_value_that_may_be_compared_has_its_place() -> None:
    allowed = PROGRAMS["vision"].parameters.model_json_schema()["properties"]
    assert {name: set(values) for name, values in ORDER.items()} == {
        name: set(allowed[name].get("enum", (False, True))) for name in ORDER
    }


def test_the_gain_is_in_speed_over_the_same_number_of_devices_and_hollow_where_it_is_not_significant() -> None:
    figure, data = drawn("gain_pin_memory", pinned(CLEAR))
    assert data["devices"].tolist() == [1, 2]
    ratios = [(1.2 / 1.0) * (1.21 / 1.01), (1.0 / 1.02) * (1.1 / 1.08)]
    assert data["gain"].tolist() == pytest.approx([ratio**0.5 - 1 for ratio in ratios])
    assert data["verdict"].tolist() == ["more", "none"]
    assert data["repeats"].tolist() == [2, 2]
    [axes] = figure.axes
    assert heading(axes) == "Gain of pinned memory over pageable memory"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("Speed gain (%)", "CPU processes")
    assert hollow(axes) == [[2]]
    assert legend(figure) == [["single repeat", "hollow: not significant"]]


def test_long_whiskers_of_two_repeats_leave_the_points_readable() -> None:
    times = {(False, devices): [1.0, 2.0] for devices in (1, 2)} | {(True, devices): [1.0, 1.0] for devices in (1, 2)}
    figure, data = drawn("gain_pin_memory", pinned(times))
    low, high = figure.axes[0].get_ylim()
    # 41% with an interval by the scatter of both numbers of devices; single gains of 0 and 100%.
    assert data["gain_high"].iloc[0] > 2
    assert -110 < low < -50 and 100 < high < 220


def test_one_repeat_has_a_gain_without_interval_or_verdict() -> None:
    figure, data = drawn("gain_pin_memory", pinned({key: times[:1] for key, times in CLEAR.items()}))
    assert data["gain"].tolist() == pytest.approx([0.2, 1.0 / 1.02 - 1])
    assert data[["gain_low", "gain_high"]].isna().all(axis=None)
    assert data["verdict"].tolist() == ["unknown", "unknown"]
    assert hollow(figure.axes[0]) == [] and legend(figure) == []


def test_what_else_varies_makes_series_and_only_equals_are_compared() -> None:
    rows = [
        {"loader": loader, "layout": layout, "devices": 1, "iteration_time_s": seconds}
        for loader, layout, seconds in (
            ("torch", "nchw", 1.0), ("torch", "nhwc", 0.5), ("dali", "nchw", 0.8), ("dali", "nhwc", 0.1),
        )
    ]  # fmt: skip
    figure, data = drawn("gain_loader", measured("vision", *rows))
    assert data["series"].tolist() == ["NCHW", "NHWC"]
    assert data["gain"].tolist() == pytest.approx([0.25, 4.0])
    [axes] = figure.axes
    assert heading(axes) == "Gain of DALI over DataLoader"
    assert group_names(axes) == ["NCHW", "NHWC"]  # a row each: all ran on one device
    # Switches are compared as the presets that bring them.
    rows = [{"preset": name, "devices": 1, "iteration_time_s": s} for name, s in (("paper", 1.0), ("tuned", 0.5))]
    assert gains(Results(measured("vision", *rows)), "preset")["gain"].tolist() == pytest.approx([1.0])


def test_each_compared_value_has_a_panel_and_all_have_one_scale() -> None:
    times = {("fp16", 1): [0.2], ("fp64", 1): [1.0], ("fp32", 1): [0.5]}
    panels = drawn("gain_precision", measured("vision", *runs(times, "precision")))[0].axes
    assert [heading(axes) for axes in panels] == ["Gain of fp32 over fp64", "Gain of fp16 over fp64"]
    assert group_names(panels[0]) == ["1 CPU process"]
    assert panels[0].get_xlim() == panels[1].get_xlim()


def test_where_nothing_can_be_compared_it_says_why() -> None:
    measures = pinned(CLEAR)
    nothing = "no two completed runs with step times differ in pin memory alone"
    untimed = measures.copy()
    untimed.loc[untimed["pin_memory"], "iteration_time_s"] = None
    assert drawn("gain_pin_memory", untimed)[1]["nothing_to_show"].tolist() == [nothing]
    measures["outcome"] = measures["outcome"].where(measures["pin_memory"], "failed")
    assert drawn("gain_pin_memory", measures)[1]["nothing_to_show"].tolist() == [nothing]


def test_a_run_under_the_profiler_that_was_used_is_compared_with_one_without() -> None:
    # Ratios of the repeats: 1.0/1.1, 1.02/1.11, 0.99/1.1; so a tenth slower.
    times = {("none", 1): [1.0, 1.02, 0.99], ("auto", 1): [1.1, 1.11, 1.1]}
    measures = measured("vision", *runs(times, "profiler"))
    measures["profiler_used"] = measures["profiler"].replace("auto", "nsys")
    figure, data = drawn("gain_profiler", measures)
    assert data[["base", "value", "verdict"]].to_numpy().tolist() == [["none", "nsys", "less"]]
    assert data["gain"].tolist() == pytest.approx([(1.0 / 1.1 * 1.02 / 1.11 * 0.99 / 1.1) ** (1 / 3) - 1])
    assert heading(figure.axes[0]) == "Gain of nsys over no profiler"


def test_an_overhead_whose_interval_includes_zero_is_hollow() -> None:
    rows = [
        {"strategy": "ddp-ds", "devices": n, "repeat": i, "profiler_overhead": value}
        for n, values in ((1, (0.15, 0.16, 0.14)), (2, (0.1, 1 / 1.1 - 1, 0.0)), (4, (0.3,)))
        for i, value in enumerate(values, start=1)
    ]
    figure, _ = drawn("profiler_overhead", measured("vision", *rows))
    [axes] = figure.axes
    [line] = axes.containers
    assert line.lines[0].get_ydata().tolist() == pytest.approx([15, 0, 30], abs=0.01)
    assert hollow(axes) == [[2]]
    assert axes.get_ylabel() == "Profiling overhead (%)"
