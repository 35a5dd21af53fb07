"""Two captures compared, against differences worked out by hand."""

from pathlib import Path

import pytest

from multicard.analysis.trace_comparison import PITCH, compare_captures, step_pitch
from multicard.cli.compare import compare_traces
from multicard.trace.files import open_trace
from multicard.trace.tables import STEPS, ActivityTables, activity_tables
from synthetic import PID, kineto_trace, nsys_export, training_trace


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)], scope=STEPS)


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
    # From the first step's start to the second one's, the device is busy at 0-5 and 6-11 ms, then at 6-16 ms.
    busy, idle, first, *others = found
    assert [(row["name"], row["difference_s"]) for row in (busy, idle)] == [
        ("busy", pytest.approx(0.005)), ("idle_other", pytest.approx(-0.005)),
    ]  # fmt: skip
    assert (first["table"], first["name"]) == ("kernel_classes", "matrix_multiply")
    assert (first["a_s"], first["b_s"]) == (pytest.approx(0.004), pytest.approx(0.0065))
    assert (first["difference_s"], first["ratio"]) == (pytest.approx(0.0025), pytest.approx(1.625))
    assert {row["difference_s"] for row in others} == {0}


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


def training(path: Path, pitch: float, device: bool = True) -> Path:
    """Four steps of 10 ms, one each `pitch`; a kernel that is launched 1 ms into it runs from 2 to 9 ms."""
    begins = [pitch * number for number in range(4)]
    kernels = [(begin + 1, begin + 2, begin + 9, "gemm") for begin in begins] if device else []
    return training_trace(path, {PID: [(begin, begin + 10) for begin in begins]}, {PID: kernels})


def test_the_wait_between_steps_comes_first_when_it_is_what_changed(tmp_path: Path) -> None:
    starved, fed = (tables(training(tmp_path / f"{pitch}.json", pitch)) for pitch in (50.0, 12.0))
    rows, basis = compare_captures(starved, fed)
    assert basis == "per step"
    # From start to start 50 and 12 ms, of which the device computes for 7; the steps last 10 ms in both.
    pitch, idle, *others = rows
    assert (pitch["table"], pitch["name"]) == ("steps", PITCH)
    assert (pitch["a_s"], pitch["b_s"], pitch["ratio"]) == pytest.approx((0.050, 0.012, 0.24))
    assert (idle["table"], idle["name"]) == ("timeline", "idle_host_elsewhere")
    assert (idle["a_s"], idle["b_s"]) == pytest.approx((0.040, 0.002))
    assert [row["difference_s"] for row in others] == pytest.approx([0] * len(others))
    assert {row["name"] for row in others} >= {"busy", "step", "matrix_multiply", "cudaLaunchKernel"}
    assert by_name(rows)["busy"]["a_s"] == pytest.approx(0.007)


def test_the_comparison_says_how_many_times_as_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_traces(training(tmp_path / "a.json", 60.0), training(tmp_path / "b.json", 12.0))
    said = " ".join(capsys.readouterr().out.split())
    assert "from the start of a step to the start of the next: 60.0 ms in a, 12.0 ms in b; b is 5.00 times as" in said


def test_on_cpus_the_pitch_is_that_of_the_host(tmp_path: Path) -> None:
    a, b = (tables(training(tmp_path / f"{pitch}.json", pitch, device=False)) for pitch in (50.0, 12.0))
    [first, *_] = compare_captures(a, b)[0]
    assert (first["name"], first["a_s"], first["b_s"]) == (PITCH, pytest.approx(0.050), pytest.approx(0.012))


def test_where_the_host_runs_ahead_the_pitch_is_that_of_the_device(tmp_path: Path) -> None:
    # Steps of 2 ms on the host; kernels of 8 ms, one after another.
    steps = [(2.0 * n, 2.0 * n + 2) for n in range(4)]
    kernels = [(2.0 * n + 0.5, 8.0 * n + 1, 8.0 * n + 9, "gemm") for n in range(4)]
    path = training_trace(tmp_path / "t.json", {PID: steps}, {PID: kernels})
    # The steps begin at 0, 9, 17 and 25 ms.
    assert step_pitch(tables(path)) == pytest.approx(0.025 / 3)


def test_one_step_has_no_pitch(tmp_path: Path) -> None:
    path = training_trace(tmp_path / "t.json", {PID: [(0, 10)]}, {PID: [(1, 2, 9, "gemm")]})
    assert step_pitch(tables(path)) is None
    found = by_name(compare_captures(tables(path), tables(training(tmp_path / "u.json", 12.0)))[0])
    assert PITCH not in found
    assert (found["busy"]["a_s"], found["busy"]["b_s"]) == pytest.approx((0.007, 0.007))
