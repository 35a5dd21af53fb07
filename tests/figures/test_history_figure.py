"""A measure over versions as the figure shows it; all numbers are synthetic."""

from typing import Any

import pytest

from figures.measured import closed, heading, legend, words
from multicard.analysis.comparison.changes import OUTCOME, REGRESSION, WITHIN, Change
from multicard.analysis.comparison.results import Point
from multicard.analysis.statistics import Interval
from multicard.figures.history import draw_history


def over_versions(configuration: str, **parameters: Any) -> list[Point]:
    """One configuration that stays as fast in two versions."""
    common = {"workload": "vision", "strategy": "ddp", "device": "cuda", "devices": 4} | parameters
    return [
        Point(configuration, common, version, Interval(1.0, 0.9, 1.1, 2), "iteration_time_s", ["completed"])
        for version in range(2)
    ]


def test_long_titles_stay_over_their_panels_and_are_told_apart_to_the_last_word() -> None:
    points = [
        point
        for index in range(4)
        for point in over_versions(
            f"run{index}", precision="bf16" if index % 2 else "fp32", batch_size=64 * (index + 1),
            scaling="weak" if index % 2 else "strong", layout="nhwc" if index % 2 else "nchw",
        )
    ]  # fmt: skip
    figure = closed(draw_history(points, [], ["1.0", "1.1"], 0.03, synthetic=False)[0])
    figure.draw_without_rendering()
    panels = sorted(figure.axes, key=lambda axes: axes.get_position().x0)
    for axes in panels:
        title = axes.title if axes.title.get_text() else axes._left_title
        assert title.get_text().replace("\n", " ").endswith("4 GPUs")
        # A title may reach a little into the gap beside its panel, which is narrower than a label of the next one.
        assert title.get_window_extent().x1 <= min(axes.bbox.x1 + 10, figure.bbox.x1)


def test_ids_of_several_workloads_are_wrapped_as_well() -> None:
    identity = "vision-" + "strategy-ddp-" * 6
    points = over_versions(identity) + over_versions("other", workload="llm", technique="lora")
    points += over_versions("third", workload="llm", technique="full")
    figure = closed(draw_history(points, [], ["1.0", "1.1"], 0.03, synthetic=False)[0])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "\n" in max(titles, key=len)
    assert max(len(line) for title in titles for line in title.split("\n")) <= 26


def changed(configuration: str, verdict: str, versions: tuple[int, int], measure: str = "iteration_time") -> Change:
    """A change between two versions, by 10% where it is a regression."""
    by = Interval(0.1 if verdict == REGRESSION else 0.0, None, None, 2)
    return Change(configuration, measure, 1.0, 1.1, by, (2, 2), verdict, versions=versions)


def test_of_many_configurations_those_that_became_worse_have_panels() -> None:
    names = [f"run{index:02}" for index in range(30)]
    points = [point for index, name in enumerate(names) for point in over_versions(name, batch_size=8 * (index + 1))]
    figure, data = draw_history(points, [changed("run29", REGRESSION, (0, 1))], ["1.0", "1.1"], 0.03, synthetic=True)
    panels = [heading(axes) for axes in closed(figure).axes]
    assert len(panels) == 24 and panels[-1] == "batch 240, 4 GPUs" and "batch 192, 4 GPUs" not in panels
    said = " ".join(text.get_text() for text in figure.texts)
    assert "6 configurations without a panel" in said and "Synthetic" in said
    assert set(data["configuration"]) == set(names) and data["synthetic"].all()


def test_steps_creeps_and_failures_are_marked_apart() -> None:
    # Slower at once in the third version; in the fourth only than the first; in the fifth the runs fail.
    points = [
        *over_versions("a"),
        *(
            Point("a", {}, version, Interval(value, value, value, 2), "iteration_time_s", ["completed"])
            for version, value in ((2, 1.1), (3, 1.12))
        ),
        Point("a", {}, 4, Interval(None, None, None, 0), None, ["out_of_memory", "out_of_memory"]),
    ]
    changes = [
        changed("a", REGRESSION, (1, 2)), changed("a", REGRESSION, (0, 2)), changed("a", WITHIN, (2, 3)),
        changed("a", REGRESSION, (0, 3)), changed("a", REGRESSION, (3, 4), OUTCOME),
    ]  # fmt: skip
    figure, data = draw_history(points, changes, ["1", "2", "3", "4", "5"], 0.03, synthetic=False)
    [axes] = closed(figure).axes
    marked = {
        line.get_label(): [x for x, y in zip(*line.get_data(), strict=True) if y == y] for line in axes.get_lines()
    }
    assert marked["worse than the version before"] == [2] and marked["worse than the first version only"] == [3]
    assert "out of memory" in words(axes)
    assert len(legend(figure)[0]) == 4
    assert data["since_previous_verdict"].tolist()[2:] == [REGRESSION, WITHIN, REGRESSION]
    assert data["since_first"].tolist()[3] == pytest.approx(0.1)


def test_without_a_tolerance_there_is_no_band_and_no_panel_is_empty() -> None:
    points = [point for size in range(1, 6) for point in over_versions(f"run{size}", batch_size=size)]
    figure = closed(draw_history(points, [], ["1.0", "1.1"], None, synthetic=False)[0])
    assert len(figure.axes) == 5
    assert legend(figure) == [["mean of repeats, 95% CI"]]
