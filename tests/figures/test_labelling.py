"""Labels of points."""

from itertools import combinations

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from figures.measured import closed
from multicard.figures.labelling import label_points


def boxes(points: list[tuple[float, float, str]]) -> tuple[list[Text], list[Bbox], Bbox]:
    """Label synthetic points: the labels, what these cover, and the area of the plot, in pixels."""
    figure, axes = plt.subplots(figsize=(4, 3))
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o")
    axes.set(xlim=(0, 10), ylim=(0, 10))
    label_points(axes, points, [(x, y, x, y) for x, y, _ in points])
    texts = [text for text in axes.texts if text.get_text()]
    area = axes.bbox
    found = [text.get_window_extent() for text in texts]
    closed(figure)
    return texts, found, area


def test_a_lone_point_has_its_name_close_above() -> None:
    [text], [box], _ = boxes([(5, 5, "chats")])
    assert text.get_text() == "chats"
    point = text.axes.transData.transform((5, 5))
    assert (box.x0 + box.x1) / 2 == pytest.approx(point[0], abs=1)
    assert 0 < box.y0 - point[1] < 12


@pytest.mark.parametrize("step", [0.0, 0.2])
def test_names_of_neighbours_do_not_cover_each_other(step: float) -> None:
    texts, found, _ = boxes([(5 + i * step, 5 + i * step, f"data set {i}") for i in range(6)])
    assert len(texts) == 6
    assert not any(one.overlaps(other) for one, other in combinations(found, 2))


def test_points_that_cover_each_other_share_a_label_if_there_is_a_limit() -> None:
    figure, axes = plt.subplots(figsize=(4, 3))
    axes.set(xlim=(0, 10), ylim=(0, 10))
    points = [(5, 5, "2"), (5.01, 5, "4"), (5, 5, "4"), (8, 8, "2")]
    label_points(axes, points, [], most=1)
    assert not axes.texts
    label_points(axes, points, [], most=2)
    closed(figure)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["2, 4", "2"]


def test_names_stay_inside_the_plot() -> None:
    _, found, area = boxes([(0, 0, "a long name"), (10, 10, "another name"), (10, 0, "a third one"), (0, 10, "x")])
    for box in found:
        assert area.x0 <= box.x0
        assert box.x1 <= area.x1
        assert area.y0 <= box.y0
        assert box.y1 <= area.y1
