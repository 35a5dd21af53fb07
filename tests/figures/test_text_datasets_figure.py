"""What a data set changes, as its figure shows it."""

from typing import Any

import pytest
from matplotlib.colors import to_rgb

from figures.measured import closed, group_names, heading, legend, lengths, measured, words
from multicard.figures.llm import text_datasets


def run(dataset: str, seconds: float = 0.1, tokens: float = 100, devices: int = 1, **more: Any) -> dict[str, Any]:
    """Synthetic run with so many tokens per step, of all ranks together, four samples to a rank, nothing padded."""
    known = {"iteration_time_s": seconds, "tokens_per_step": tokens, "tokens_per_sample": tokens / devices / 4}
    return {"dataset": dataset, "devices": devices, "padding_share": 0.0, "cut_share": 0.0, **known, **more}


def drawn(*rows: dict[str, Any]) -> tuple:
    """Draw the runs: the figure and its panels."""
    figure = closed(text_datasets(measured("llm", *rows))[0])
    return figure, *figure.axes


def points(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """Points of each series."""
    series = [each for each in axes.containers if hasattr(each, "lines")]
    return {each.get_label(): list(zip(*each.lines[0].get_data(), strict=True)) for each in series}


def test_times_and_lengths_are_side_by_side_the_first_set_above_and_each_set_is_a_point() -> None:
    figure, time, length, both = drawn(run("chats", 0.1, 120), run("articles", 0.4, 800))
    assert (heading(time), time.get_xlabel()) == ("Iteration time", "Time per step (ms)")
    assert (heading(length), length.get_xlabel()) == ("Sample length", "Mean tokens per sample")
    assert (both.get_xlabel(), both.get_ylabel()) == ("Tokens per step and rank", "Time per step (ms)")
    assert group_names(time, horizontal=True) == ["chats", "articles"]
    assert list(time.get_yticks()) == list(length.get_yticks())
    assert time.yaxis_inverted() and length.yaxis_inverted()
    assert lengths(time) == {"1 CPU process": pytest.approx([100, 400])}
    assert list(lengths(length).values()) == [pytest.approx([30, 200])]
    assert points(both) == {"1 CPU process": [pytest.approx((120, 100)), pytest.approx((800, 400))]}
    assert words(both) == ["chats", "articles"]
    # So that proportional times lie on a line through the corner.
    assert both.get_xlim()[0] == both.get_ylim()[0] == 0
    assert legend(figure) == [["1 CPU process"]]  # of padding it does not speak


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"padding_share": 0.123, "cut_share": 0.21}, ["12% padding\n21% truncated"]),
        ({"padding_share": 0.5}, ["50% padding"]),
        ({"cut_share": 0.002}, ["<1% truncated"]),
    ],
)
def test_padding_and_truncation_follow_the_length(shares: dict[str, float], said: list[str]) -> None:
    assert words(drawn(run("chats", **shares), run("articles"))[2]) == said


def test_padding_that_differs_among_the_runs_of_a_set_is_a_range() -> None:
    rows = [run(name, packed=packed, padding_share=0.3 * (not packed)) for name in "ab" for packed in (True, False)]
    figure, _, length, _ = drawn(*rows)
    assert words(length) == ["0–30% padding"] * 2
    assert legend(figure) == [["packed", "not packed", "with padding"]]


def test_points_of_a_set_stand_in_a_column_with_one_name() -> None:
    rows = [run("chats", 0.1, 120), run("chats", 0.2, 240, 2), run("articles", 0.4, 800), run("articles", 0.5, 1600, 2)]
    figure, time, length, both = drawn(*rows)
    assert points(both) == {
        "1 CPU process": [pytest.approx((120, 100)), pytest.approx((800, 400))],
        "2 CPU processes": [pytest.approx((120, 200)), pytest.approx((800, 500))],
    }
    assert words(both) == ["chats", "articles"]
    assert legend(figure) == [["1 CPU process", "2 CPU processes"]]
    assert list(lengths(time)) == ["1 CPU process", "2 CPU processes"]
    # The length belongs to the set.
    assert list(lengths(length).values()) == [pytest.approx([30, 200])]


def test_a_line_leads_to_where_padding_would_move_a_point() -> None:
    figure, _, _, both = drawn(run("chats", 0.1, 120, padding_share=0.25), run("articles", 0.4, 800))
    [ends] = [line for line in both.get_lines() if line.get_label() == "with padding"]
    # A quarter of 160 positions is padding.
    assert list(zip(*ends.get_data(), strict=True)) == [pytest.approx((160, 100))]
    assert legend(figure) == [["1 CPU process", "with padding"]]


def test_a_set_of_which_runs_failed_stays_on_the_axis_and_its_length_is_known_from_one_that_completed() -> None:
    _, time, length, both = drawn(run("chats"), {"dataset": "articles", "outcome": "out_of_memory"})
    assert group_names(time, horizontal=True) == ["chats", "articles"]
    assert words(time) == words(length) == ["out of memory"]
    assert words(both) == ["chats"]
    rows = [{"dataset": "chats", "devices": 1, "outcome": "failed"}, run("chats", 0.2, 240, 2), run("articles")]
    _, time, length, _ = drawn(*rows)
    assert (words(time), words(length)) == (["failed"], [])
    assert list(lengths(length).values()) == [pytest.approx([30, 25])]


def test_a_series_has_one_colour_in_all_panels_also_when_another_is_lost() -> None:
    rows = [{"dataset": name, "devices": 1, "outcome": "failed"} for name in ("chats", "articles")]
    _, time, _, both = drawn(*rows, run("chats", devices=2), run("articles", devices=2))
    [bars] = [each for each in time.containers if each.get_label() == "2 CPU processes" and hasattr(each, "patches")]
    [marks] = [each for each in both.containers if each.get_label() == "2 CPU processes"]
    assert to_rgb(bars[0].get_facecolor()) == pytest.approx(to_rgb(marks.lines[0].get_color()))


def test_lengths_that_differ_by_tokenizer_have_a_bar_each_and_unknown_ones_are_said_to_be_so() -> None:
    by_model = [run(name, tokens=n, model=model) for name in "ab" for model, n in (("x", 80), ("y", 120))]
    assert lengths(drawn(*by_model)[2]) == {"x": pytest.approx([20, 20]), "y": pytest.approx([30, 30])}
    _, _, length, both = drawn(*(run(name, tokens_per_sample=None, tokens_per_step=None) for name in ("a", "b")))
    assert (words(length), words(both)) == (["not recorded"] * 2, [])
