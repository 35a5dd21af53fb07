"""Marks of a figure that say their numbers where a reader points."""

from pathlib import Path

import pytest

from factories import make_results, vision_runs
from multicard.figures.draw import draw, save
from multicard.figures.marks import Mark, marks_in
from multicard.report.hover import pointed_marks


def drawn(folder: Path, name: str) -> str:
    """Return the SVG of a figure of runs on one GPU with 100 and 121 images per second, and on two with 200."""
    rows = vision_runs(100.0, (1.0, 1.21)) + vision_runs(200.0, (1.0,), devices=2)
    save(*draw(name, make_results(folder, rows)), folder / name)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def test_an_svg_holds_the_numbers_of_its_marks_where_they_are(tmp_path: Path) -> None:
    marks = [mark for mark in marks_in(drawn(tmp_path, "iteration_time")) if mark.column == "throughput_samples_per_s"]
    assert [(mark.devices, mark.repeats) for mark in marks] == [(1, 2), (2, 1)]
    # The geometric mean of 100 and 121 is 110. A single repeat has no interval.
    assert [mark.value for mark in marks] == pytest.approx([110.0, 200.0])
    assert marks[0].low is not None and marks[0].low < 110 and marks[1].low is None
    # The right panel has the throughput; more of it is higher, and more devices are further right.
    assert 0.5 < marks[0].left < marks[1].left < 1
    assert 0 < marks[1].top < marks[0].top < 1


def test_marks_of_all_series_and_panels_are_where_their_values_are(tmp_path: Path) -> None:
    speeds = {("ddp", 1): 100.0, ("ddp", 2): 150.0, ("ddp-ds", 1): 90.0, ("ddp-ds", 2): 200.0}
    rows = [row for (name, n), speed in speeds.items() for row in vision_runs(speed, strategy=name, devices=n)]
    save(*draw("iteration_time", make_results(tmp_path, rows)), tmp_path / "figure")
    marks = list(marks_in((tmp_path / "figure.svg").read_text(encoding="utf-8")))
    right = {(mark.series, mark.devices): mark for mark in marks if mark.column == "throughput_samples_per_s"}
    assert right.keys() == speeds.keys()
    # Their axis is linear: equal differences of values are equal distances.
    heights = {key: -mark.top for key, mark in right.items()}
    per_image = (heights["ddp", 2] - heights["ddp", 1]) / 50
    for key, speed in speeds.items():
        assert heights[key] - heights["ddp", 1] == pytest.approx(per_image * (speed - 100), abs=1e-4)


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    assert drawn(tmp_path / "one", "speedup") == drawn(tmp_path / "other", "speedup")


def test_a_mark_says_its_series_value_interval_and_repeats_in_a_unit_that_suits_all() -> None:
    marks = [
        Mark(0.1, 0.2, "iteration_time_s", "ddp", 1, 3, 0.1, 0.09, 0.11),
        Mark(0.3, 0.4, "iteration_time_s", "ddp", 2, 1, 0.0605, None, None),
        Mark(0.5, 0.6, "speedup", "ddp", 2, 3, 1.653, 1.6, 1.7),
    ]
    assert [mark.text for mark in pointed_marks(marks)] == [
        "ddp, 1 device: iteration time (ms) 100 [90, 110], n=3",
        "ddp, 2 devices: iteration time (ms) 60.5, n=1",
        "ddp, 2 devices: speed-up 1.65 [1.60, 1.70], n=3",
    ]


def test_marks_without_numbers_have_no_texts() -> None:
    group = '<svg viewBox="0 0 10 10"><g id="marks-{}"><g clip-path="a"><use x="1" y="1"/></g></g></svg>'
    one = b'["speedup", [["ddp", 2, 3, 1.7, 1.6, 1.8]]]'.hex()
    assert list(marks_in(group.format(one))) == [Mark(0.1, 0.1, "speedup", "ddp", 2, 3, 1.7, 1.6, 1.8)]
    none_for_two = b'["speedup", []]'.hex()
    assert list(marks_in(group.format(none_for_two))) == []
    assert list(marks_in(group.format(b"[".hex()))) == []
    assert list(marks_in("<svg><g/></svg>")) == []
