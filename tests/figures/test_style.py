"""Units and legends that figures share."""

import matplotlib.pyplot as plt
import pytest

from figures.measured import closed, legend
from multicard.figures.style import legend_below, styled


def test_a_legend_has_one_entry_per_label_of_all_its_panels() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.bar([0], [1], label="one")
    right.plot([0], [1], label="one")
    right.plot([0], [1], label="two")
    legend_below(figure, left, right)
    assert legend(closed(figure)) == [["one", "two"]]


def test_long_labels_share_fewer_columns() -> None:
    def columns(label: str) -> int:
        figure, axes = plt.subplots()
        for index in range(5):
            axes.plot([0], [1], label=f"{label} {index}")
        legend_below(figure, axes)
        return closed(figure).legends[0]._ncols

    assert columns("a") == 5
    # Six would fit a row of four, but two rows of three are even.
    assert columns("a name of some") == 3
    assert columns("a name as long as a series of three parameters") == 1


def test_without_anything_to_name_there_is_no_legend() -> None:
    figure, axes = plt.subplots()
    legend_below(figure, axes)
    assert closed(figure).legends == []


@pytest.mark.parametrize("values", [(0, 5e6), (1e6, 1e6 + 1), (0, 3e-6)])
def test_no_factor_of_an_axis_is_where_the_title_is(values: tuple[float, float]) -> None:
    with styled():
        figure, axes = plt.subplots()
        axes.plot([0, 1], values)
        axes.set_title("Throughput")
        figure.draw_without_rendering()
        plt.close(figure)
    assert axes.yaxis.get_offset_text().get_text() == ""
