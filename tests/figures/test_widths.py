"""Figures have the widths of journals, and in both their text can be read; all numbers are synthetic."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from figures.measured import adopted, closed, measured, pictures, scripts, texts
from multicard.config.figures import FIGURES, WidthName
from multicard.figures.draw import draw, save
from multicard.figures.meanings import fills_of
from multicard.figures.steps import PHASE_FILLS, STEP_PART_FILLS
from multicard.figures.style import styled
from multicard.figures.timeline import GPU_FILLS
from multicard.results.results import Results

# Text must be this large in print.
LEAST_POINTS = 7
INCHES: dict[WidthName, float] = {"column": 3.3, "page": 7.0}


def shown_texts(figure: Figure) -> list[Text]:
    """All texts that are visible: Matplotlib keeps labels of ticks outside the axis."""
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks() + axis.get_minor_ticks()
        if not axis.get_view_interval().min() <= tick.get_loc() <= axis.get_view_interval().max()
        for label in (tick.label1, tick.label2)
    }
    every = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in every if text not in hidden]


def laid_out(name: str, width: WidthName, results: Results) -> Figure:
    """A figure whose parts have their places."""
    figure, _ = draw(name, results, width)
    with styled(width):
        figure.draw_without_rendering()
    return closed(figure)


def overlapping(texts: list[Text]) -> list[tuple[str, str]]:
    """Pairs of texts of which one lies on the other by more than a pixel."""
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in texts]
    return [(one, other) for (one, box), (other, rival) in combinations(boxes, 2) if box.overlaps(rival)]


@pytest.mark.parametrize(("width", "inches"), INCHES.items())
def test_files_are_as_wide_as_a_column_or_a_page(width: WidthName, inches: float, tmp_path: Path) -> None:
    figure, data = draw("speedup", Results(pictures()), width)
    save(figure, data, tmp_path / "speedup")
    [box] = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+) ", (tmp_path / "speedup.pdf").read_bytes())
    assert float(box) == pytest.approx(72 * inches)  # points
    svg = (tmp_path / "speedup.svg").read_text()
    assert float(re.search(r'width="([0-9.]+)pt"', svg)[1]) == pytest.approx(72 * inches)
    assert imread(tmp_path / "speedup.png").shape[1] == pytest.approx(300 * inches, abs=1)  # dots


@pytest.mark.slow
@pytest.mark.parametrize("width", INCHES)
@pytest.mark.parametrize("name", FIGURES)
def test_text_can_be_read_in_print_and_none_is_cut_or_lies_on_another(name: str, width: WidthName) -> None:
    for workload, table in (("vision", pictures), ("llm", texts), ("script", scripts), ("script", adopted)):
        if workload not in FIGURES[name].workloads:
            continue
        figure = laid_out(name, width, Results(table()))
        texts_of_figure = shown_texts(figure)
        assert min(text.get_fontsize() for text in texts_of_figure) >= LEAST_POINTS
        frame = figure.bbox.padded(1)
        outside = [text.get_text() for text in texts_of_figure if not _contains(frame, text.get_window_extent())]
        assert outside == []
        assert overlapping(texts_of_figure) == []


def test_text_has_the_same_sizes_in_both_widths() -> None:
    sizes = []
    for width in INCHES:
        figure = laid_out("speedup", width, Results(pictures()))
        sizes.append({text.get_fontsize() for text in shown_texts(figure)})
    assert sizes[0] == sizes[1]


def _contains(frame: Bbox, box: Bbox) -> bool:
    return frame.x0 <= box.x0 and frame.y0 <= box.y0 and box.x1 <= frame.x1 and box.y1 <= frame.y1


@pytest.mark.parametrize(
    ("name", "columns", "scales"),
    [
        ("step_breakdown", [["forward_s", "backward_s", "other_s"]], [1000]),
        ("techniques", [["iteration_time_s"], ["peak_memory_bytes"]], [1000, 1e-6]),
        ("memory", [["peak_memory_bytes"]], [1e-6]),
    ],
)
def test_the_number_at_a_bar_is_that_of_the_csv(name: str, columns: list[list[str]], scales: list[float]) -> None:
    """In milliseconds and megabytes, to three digits; the order of bars is that of their series."""
    figure, data = draw(name, Results(texts()), "column")
    for axes, parts, scale in zip(closed(figure).axes, columns, scales, strict=True):
        # An interval follows its number.
        numbers = sorted(float(text.get_text().split()[0]) for text in axes.texts)
        assert numbers == pytest.approx(sorted(scale * data[parts].sum(axis=1)), rel=5e-3)


def test_parts_of_a_whole_have_their_share_in_the_bar() -> None:
    shares = {"compute_share": 0.62, "exposed_communication_share": 0.27, "launch_overhead_share": 0.11}
    rows = measured("llm", {"device": "cuda", "technique": "lora", **shares})
    for width, written in (("column", ["62", "27"]), ("page", ["62", "27", "11"])):
        figure, _ = draw("utilization", Results(rows), width)
        assert [text.get_text() for text in closed(figure).axes[0].texts] == written


def test_a_meaning_has_one_colour_in_all_figures_and_no_other_part_has_it() -> None:
    same = {
        "compute": (GPU_FILLS["compute"], STEP_PART_FILLS["compute"], PHASE_FILLS["backward"]),
        "communication": (
            GPU_FILLS["exposed communication"], STEP_PART_FILLS["exposed communication"],
            fills_of(["elementwise", "communication"], "other")["communication"],
        ),
        "loading": (GPU_FILLS["idle (data loading)"], STEP_PART_FILLS["data loading"], PHASE_FILLS["data"]),
        "launching": (
            GPU_FILLS["idle (launching)"], STEP_PART_FILLS["launch overhead"],
            fills_of(["cudaLaunchKernel"], "other")["cudaLaunchKernel"],
        ),
        "memory": (
            GPU_FILLS["exposed memory operations"], STEP_PART_FILLS["memory operations"], PHASE_FILLS["transfer"],
            fills_of(["cudaMemcpyAsync"], "other")["cudaMemcpyAsync"],
        ),
    }  # fmt: skip
    for fills in same.values():
        assert len({fill.colour for fill in fills}) == 1
    assert len({fill.colour for fill in GPU_FILLS.values()}) == len(GPU_FILLS)
    # What has no meaning of its own takes no colour of one.
    many = fills_of([f"part {n}" for n in range(9)], "other")
    with_a_meaning = {fill.colour for fill in (*GPU_FILLS.values(), *PHASE_FILLS.values(), *STEP_PART_FILLS.values())}
    assert not {fill.colour for fill in many.values()} & with_a_meaning
    assert len({fill.colour for fill in many.values()}) == 9
