"""Names of series and rows, legends, and units, which figures share."""

from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from figures.measured import closed, legend
from multicard.answers.comparison.comparisons import varied
from multicard.figures.bars import height_of, name_rows
from multicard.figures.series import labels, setting_label
from multicard.figures.style import legend_below, styled
from multicard.programs import PROGRAMS


def named(*changes: dict[str, Any], workload: str = "vision") -> list[str]:
    rows = pd.DataFrame([PROGRAMS[workload].parameters(**change).model_dump() for change in changes])
    return labels(rows, varied(rows, besides=("devices", "repeat")))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{"pin_memory": True}, {"pin_memory": False}], ["pinned memory", "pageable memory"]),
        ([{"image_size": 100, "precision": "fp64"}, {"image_size": 200}], ["100 px, fp64", "200 px, fp32"]),
        # What a preset brings is not named again.
        (
            [{}, {"preset": "tuned"}, {"preset": "tuned", "layout": "nchw"}],
            ["NCHW, paper settings", "NHWC, tuned settings", "NCHW, tuned settings"],
        ),
    ],
)
def test_series_are_named_by_what_varies_in_words(changes: list[dict[str, Any]], names: list[str]) -> None:
    assert named(*changes) == names


def test_series_of_language_models_are_named_in_words() -> None:
    for name, values, expected in (
        ("packed", (True, False), ["packed", "not packed"]),
        ("gradient_accumulation_steps", (1, 4), ["1 batch per step", "4 batches per step"]),
        ("dataset", ("articles", "chats"), ["articles", "chats"]),
    ):
        assert named(*({name: value} for value in values), workload="llm") == expected
    # What only one technique has is not named of others.
    kinds = [{"technique": name} for name in ("lora", "qlora", "dpo", "full", "qat")]
    kinds.append({"technique": "qat", "qat_of": "weights"})
    expected = ["LoRA", "QLoRA", "DPO", "full fine-tuning", "QAT of adapters", "QAT of weights"]
    assert named(*kinds, workload="llm") == expected
    rows = pd.DataFrame([PROGRAMS["llm"].parameters(**kind).model_dump() for kind in kinds])
    assert labels(rows, ["qat_of"]) == expected  # a technique to which nothing named applies has its own name


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (32, "x 32"), (32.0, "x 32"), (1e-05, "x 1e-05"), ("bf16", "x bf16"), (True, "x"), (False, "no x"),
        ("$a$", r"x \$a\$"), ("two\nlines", "x two lines"), ("a" * 70, "x " + "a" * 57 + "…"),
    ],
)  # fmt: skip
def test_own_values_are_shown_as_they_are_and_never_as_formulas(value: Any, label: str) -> None:
    assert setting_label("args.x", value) == label


def test_what_a_table_lacks_is_a_full_epoch_or_a_parameter_of_another_script_which_names_no_series() -> None:
    rows = pd.DataFrame({"workload": "vision", "strategy": "ddp", "steps_per_epoch": [100.0, float("nan")]})
    assert labels(rows, ["steps_per_epoch"]) == ["100 steps per epoch", "full epochs"]
    rows = pd.DataFrame({"launcher": "auto", "command": ["a.py", "b.py"], "args.lr": [0.1, None], "args.n": [None, 2]})
    assert labels(rows, ["command", "args.lr", "args.n"]) == ["a.py, lr 0.1", "b.py, n 2"]


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
