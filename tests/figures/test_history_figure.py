"""A measure over versions as the figure shows it; all numbers are synthetic."""

from typing import Any

from figures.measured import closed
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
