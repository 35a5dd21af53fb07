"""Two captures compared, against differences worked out by hand."""

from pathlib import Path

import pytest

from multicard.analysis.trace_comparison import compare_captures
from multicard.trace.files import open_trace
from multicard.trace.tables import ActivityTables, activity_tables
from synthetic import kineto_trace, nsys_export


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)])


def by_name(rows: list[dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows}


def test_a_capture_compared_with_itself_shows_no_difference(tmp_path: Path) -> None:
    same = tables(kineto_trace(tmp_path / "t.json"))
    found, basis = compare_captures(same, same)
    assert basis == "per step"
    assert {(row["difference_s"], row["ratio"]) for row in found} == {(0, 1)}


def test_differences_are_per_step_and_the_largest_comes_first(tmp_path: Path) -> None:
    a = tables(kineto_trace(tmp_path / "a.json"))
    document = (tmp_path / "a.json").read_text()
    # The kernel at 6-11 ms lasts 5 ms longer: 2.5 ms per step, of 8 / 2 = 4 ms before.
    slower = document.replace('"ts": 6000, "dur": 5000', '"ts": 6000, "dur": 10000')
    assert slower != document
    (tmp_path / "b.json").write_text(slower)
    found, _ = compare_captures(a, tables(tmp_path / "b.json"))
    first = found[0]
    assert (first["table"], first["name"]) == ("kernel_classes", "matrix_multiply")
    assert (first["a_s"], first["b_s"]) == (pytest.approx(0.004), pytest.approx(0.0065))
    assert (first["difference_s"], first["ratio"]) == (pytest.approx(0.0025), pytest.approx(1.625))
    assert {row["difference_s"] for row in found[1:]} == {0}


def test_what_only_one_capture_has_is_empty_in_the_other(tmp_path: Path) -> None:
    a = tables(kineto_trace(tmp_path / "a.json"))
    renamed = (tmp_path / "a.json").read_text().replace("cudaLaunchKernel_v7000", "cuLaunchKernelEx")
    (tmp_path / "b.json").write_text(renamed)
    found = by_name(compare_captures(a, tables(tmp_path / "b.json"))[0])
    assert [found["cudaLaunchKernel_v7000"][c] for c in ("b_s", "difference_s", "ratio")] == [None, None, None]
    assert found["cuLaunchKernelEx"]["b_s"] == pytest.approx(0.009 / 2)


def test_captures_without_steps_are_compared_as_a_whole(tmp_path: Path) -> None:
    a = tables(kineto_trace(tmp_path / "a.json"))
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text().replace('"step"', '"other"'))
    found, basis = compare_captures(a, tables(tmp_path / "b.json"))
    assert basis == "whole capture"
    kernels = by_name(found)["matrix_multiply"]
    assert kernels["a_s"] == kernels["b_s"] == pytest.approx(0.008)


def test_nothing_in_common_gives_no_rows(tmp_path: Path) -> None:
    without = tables(nsys_export(tmp_path / "a.sqlite", cuda=False))
    del without.rows["phases"]
    assert compare_captures(without, without)[0] == []
