"""Points and bars of a figure that say their numbers where a reader points."""

from pathlib import Path

import pytest

from factories import Row, make_results, tuning_runs, vision_runs
from multicard.figures.draw import draw, save
from multicard.figures.marks import Mark, id_of_bar, marks_in
from multicard.report.hover import pointed_marks


def marks_of(folder: Path, name: str, rows: list[Row]) -> list[Mark]:
    """Return the marks of a figure of these runs."""
    save(*draw(name, make_results(folder, rows)), folder / name)
    return list(marks_in((folder / f"{name}.svg").read_text(encoding="utf-8")))


def drawn(folder: Path, name: str) -> str:
    """Return the SVG of a figure of runs on one GPU with 100 and 121 images per second, and on two with 200."""
    rows = vision_runs(100.0, (1.0, 1.21)) + vision_runs(200.0, (1.0,), devices=2)
    save(*draw(name, make_results(folder, rows)), folder / name)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def test_an_svg_holds_the_numbers_of_its_marks_where_they_are(tmp_path: Path) -> None:
    marks = [mark for mark in marks_in(drawn(tmp_path, "iteration_time")) if mark.column == "throughput_samples_per_s"]
    assert [(mark.name, mark.repeats) for mark in marks] == [("ddp-ds, 1 GPU", 2), ("ddp-ds, 2 GPUs", 1)]
    # The geometric mean of 100 and 121 is 110. A single repeat has no interval.
    assert [mark.value for mark in marks] == pytest.approx([110.0, 200.0])
    assert marks[0].low is not None and marks[0].low < 110 and marks[1].low is None
    # The right panel has the throughput; more of it is higher, and more devices are further right.
    assert 0.5 < marks[0].left < marks[1].left < 1
    assert 0 < marks[1].top < marks[0].top < 1


def test_marks_of_all_series_and_panels_are_where_their_values_are(tmp_path: Path) -> None:
    speeds = {("ddp", 1): 100.0, ("ddp", 2): 150.0, ("ddp-ds", 1): 90.0, ("ddp-ds", 2): 200.0}
    rows = [row for (name, n), speed in speeds.items() for row in vision_runs(speed, strategy=name, devices=n)]
    marks = marks_of(tmp_path, "iteration_time", rows)
    right = {mark.name: mark for mark in marks if mark.column == "throughput_samples_per_s"}
    speed_by_name = {f"{name}, {n} GPU{'s' * (n > 1)}": speed for (name, n), speed in speeds.items()}
    assert right.keys() == speed_by_name.keys()
    # Their axis is linear: equal differences of values are equal distances.
    heights = {name: -mark.top for name, mark in right.items()}
    per_image = (heights["ddp, 2 GPUs"] - heights["ddp, 1 GPU"]) / 50
    for name, speed in speed_by_name.items():
        assert heights[name] - heights["ddp, 1 GPU"] == pytest.approx(per_image * (speed - 100), abs=1e-4)


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    assert drawn(tmp_path / "one", "speedup") == drawn(tmp_path / "other", "speedup")


def test_bars_are_as_long_as_their_values_and_read_row_by_row(tmp_path: Path) -> None:
    rows = tuning_runs(0.1, (1.0, 1.21), technique="lora") + tuning_runs(0.3, (1.0,), technique="full")
    lora, full = [mark for mark in marks_of(tmp_path, "techniques", rows) if mark.column == "iteration_time_s"]
    assert (lora.name, full.name) == ("LoRA, 1 GPU", "Full fine-tuning, 1 GPU")
    assert (lora.repeats, full.repeats) == (2, 1)
    # The geometric mean of 0.1 and 0.121 s. A single repeat has no interval.
    assert (lora.value, full.value) == pytest.approx((0.11, 0.3))
    assert lora.low is not None and lora.low < 0.11 and full.low is None
    # Bars begin at zero on a linear axis.
    assert full.width / lora.width == pytest.approx(0.3 / 0.11, rel=1e-3)
    assert lora.left == pytest.approx(full.left) and lora.top < full.top


def test_parts_of_a_bar_follow_each_other(tmp_path: Path) -> None:
    times = {"iteration_time_s": 0.2, "forward_s": 0.05, "backward_s": 0.1}
    marks = marks_of(tmp_path, "step_breakdown", vision_runs(100.0, (1.0,), **times))
    assert [mark.column for mark in marks] == ["forward_s", "backward_s", "other_s"]
    assert [mark.value for mark in marks] == pytest.approx([0.05, 0.1, 0.05])
    ends = [mark.left + mark.width for mark in marks]
    assert ends[:2] == pytest.approx([mark.left for mark in marks[1:]], abs=1e-4)
    assert marks[1].width == pytest.approx(2 * marks[0].width, rel=1e-3)
    assert all(mark.is_bar for mark in marks)


def test_marks_of_whole_trainings_have_their_settings(tmp_path: Path) -> None:
    rows = vision_runs(100.0) + vision_runs(180.0, devices=2) + vision_runs(90.0, devices=2, num_workers=2)
    marks = marks_of(tmp_path, "tradeoff", [row | {"scaling": "strong"} for row in rows])
    names = ["0 workers, 1 GPU", "0 workers, 2 GPUs", "2 workers, 2 GPUs"]
    assert sorted(mark.name for mark in marks) == sorted(names)
    # A million images; the time is upwards, and the hours of all devices are to the right.
    by_name = {mark.name: mark for mark in marks}
    one, two, slow = (by_name[name] for name in names)
    assert one.value == pytest.approx(1e6 / 100, rel=1e-3)
    assert two.top > one.top > slow.top
    assert one.left < two.left < slow.left


def test_a_mark_says_its_configuration_value_interval_and_repeats_in_a_unit_that_suits_all() -> None:
    marks = [
        Mark(0.1, 0.2, "iteration_time_s", "ddp, 1 GPU", 3, 0.1, 0.09, 0.11),
        Mark(0.3, 0.4, "iteration_time_s", "ddp, 2 GPUs", 1, 0.0605, None, None),
        Mark(0.5, 0.6, "speedup", "ddp, 2 GPUs", 3, 1.653, 1.6, 1.7),
        Mark(0.5, 0.6, "compute_share", "ddp, 2 GPUs", 3, 0.62, None, None, 0.2, 0.1),
        # Equal memory in all repeats is no interval.
        Mark(0.5, 0.6, "peak_memory_bytes", "LoRA, 1 GPU", 2, 4e9, 4e9, 4e9, 0.2, 0.1),
    ]
    assert [mark.text for mark in pointed_marks(marks)] == [
        "ddp, 1 GPU: iteration time 100 ms (95% CI 90 to 110, n=3)",
        "ddp, 2 GPUs: iteration time 60.5 ms (n=1)",
        "ddp, 2 GPUs: speed-up 1.65 (95% CI 1.60 to 1.70, n=3)",
        "ddp, 2 GPUs: compute share 62.0% (n=3)",
        "LoRA, 1 GPU: peak memory 4.00 GB (n=2)",
    ]


def test_marks_without_numbers_have_no_texts() -> None:
    group = '<svg viewBox="0 0 10 10"><g id="marks-{}"><g clip-path="a"><use x="1" y="1"/></g></g></svg>'
    one = b'["speedup", [["ddp, 2 GPUs", 3, 1.7, 1.6, 1.8]]]'.hex()
    assert list(marks_in(group.format(one))) == [Mark(0.1, 0.1, "speedup", "ddp, 2 GPUs", 3, 1.7, 1.6, 1.8)]
    none_for_two = b'["speedup", []]'.hex()
    assert list(marks_in(group.format(none_for_two))) == []
    assert list(marks_in(group.format(b"[".hex()))) == []
    assert list(marks_in("<svg><g/></svg>")) == []


def test_a_bar_is_where_its_path_is_and_its_name_has_its_dollars() -> None:
    path = "M 2 4 \nL 6 4 \nL 6 5 \nL 2 5 \nz"
    id_of_mark = id_of_bar("data_s", r"cost of \$1", 3, 0.5)
    bar = f'<g id="{id_of_mark}">\n <path d="{path}" style="fill: #0173b2"/>\n</g>'
    [mark] = marks_in(f'<svg viewBox="0 0 10 10">{bar}<g id="bar-5b"><path d="M 1 1"/></g></svg>')
    assert (mark.left, mark.top, mark.width, mark.height) == pytest.approx((0.2, 0.4, 0.4, 0.1))
    assert (mark.name, mark.low) == ("cost of $1", None)
