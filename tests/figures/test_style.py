"""Units and legends that figures share."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest

from figures.measured import closed, legend
from multicard.figures.bars import height_of, name_rows
from multicard.figures.style import legend_below, styled


def test_a_legend_has_one_entry_per_label_of_all_its_panels() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.bar([0], [1], label="one")
    right.plot([0], [1], label="one")
    right.plot([0], [1], label="two")
    legend_below(figure, left, right)
    assert legend(closed(figure)) == [["one", "two"]]
    figure, axes = plt.subplots()
    legend_below(figure, axes)
    assert closed(figure).legends == []


def test_a_figure_of_many_configurations_fits_on_a_page_and_its_names_do_not_touch() -> None:
    heights = []
    for count in (10, 60):
        figure, axes = plt.subplots(figsize=(7, 1 + height_of(count)))
        axes.barh(range(count), [1] * count)
        name_rows(axes, [f"configuration {index}" for index in range(count)])
        figure.canvas.draw()
        names = [text.get_window_extent() for text in axes.get_yticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(names))
        heights.append(closed(figure).get_figheight())
    assert heights[0] == pytest.approx(4.4)
    assert max(heights) <= 10  # of a page of 11 inches


@pytest.mark.parametrize("values", [(1e6, 1e6 + 1), (0, 3e-6)])
def test_no_factor_of_an_axis_is_where_the_title_is(values: tuple[float, float]) -> None:
    with styled():
        figure, axes = plt.subplots()
        axes.plot([0, 1], values)
        axes.set_title("Throughput")
        figure.draw_without_rendering()
        plt.close(figure)
    assert axes.yaxis.get_offset_text().get_text() == ""
