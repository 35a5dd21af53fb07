"""Two captures compared, against differences worked out by hand."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from multicard.analysis.comparison.trace_comparison import PERIOD, compare_captures
from multicard.analysis.runs.step_periods import ratio_of_medians, step_periods
from multicard.cli.compare import compare_traces
from multicard.trace.files import open_trace
from multicard.trace.tables import STEPS, ActivityTables, activity_tables
from synthetic import PID, kineto_trace, nsys_export, training_trace


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)], scope=STEPS)


def by_name(rows: list[dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows}


def test_what_is_equal_or_in_one_capture_only(tmp_path: Path) -> None:
    same = tables(kineto_trace(tmp_path / "a.json"))
    found, basis = compare_captures(same, same)
    assert basis == "per step"
    assert {(row["difference_s"], row["ratio"]) for row in found} == {(0, 1)}
    document = (tmp_path / "a.json").read_text()
    # What only one has is empty in the other.
    (tmp_path / "b.json").write_text(document.replace("cudaLaunchKernel_v7000", "cuLaunchKernelEx"))
    found = by_name(compare_captures(same, tables(tmp_path / "b.json"))[0])
    assert [found["cudaLaunchKernel"][c] for c in ("b_s", "difference_s", "ratio")] == [None, None, None]
    assert found["cuLaunchKernelEx"]["b_s"] == pytest.approx(0.009 / 2)
    # Captures without steps are compared as a whole.
    (tmp_path / "c.json").write_text(document.replace('"step"', '"other"'))
    found, basis = compare_captures(same, tables(tmp_path / "c.json"))
    assert basis == "whole capture"
    kernels = by_name(found)["matrix_multiply"]
    assert kernels["a_s"] == kernels["b_s"] == pytest.approx(0.008)
    without = tables(nsys_export(tmp_path / "a.sqlite", cuda=False))
    del without.rows["phases"]
    assert compare_captures(without, without)[0] == []


def test_differences_are_per_step_and_the_largest_comes_first(tmp_path: Path) -> None:
    a = tables(kineto_trace(tmp_path / "a.json"))
    document = (tmp_path / "a.json").read_text()
    # The kernel at 6-11 ms lasts 5 ms longer: 2.5 ms per step, of 8 / 2 = 4 ms before.
    slower = document.replace('"ts": 6000, "dur": 5000', '"ts": 6000, "dur": 10000')
    assert slower != document
    (tmp_path / "b.json").write_text(slower)
    found, _ = compare_captures(a, tables(tmp_path / "b.json"))
    # From the first step's start to the second one's, the device is busy at 0-5 and 6-11 ms, then at 6-16 ms.
    period, busy, idle, first, *others = found
    assert (period["name"], period["ratio"]) == (PERIOD, 1)
    assert [(row["name"], row["difference_s"]) for row in (busy, idle)] == [
        ("busy", pytest.approx(0.005)), ("idle_other", pytest.approx(-0.005)),
    ]  # fmt: skip
    assert (first["table"], first["name"]) == ("kernel_classes", "matrix_multiply")
    assert (first["a_s"], first["b_s"]) == (pytest.approx(0.004), pytest.approx(0.0065))
    assert (first["difference_s"], first["ratio"]) == (pytest.approx(0.0025), pytest.approx(1.625))
    assert {row["difference_s"] for row in others} == {0}


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
    period, idle, *others = rows
    assert (period["table"], period["name"]) == ("steps", PERIOD)
    assert (period["a_s"], period["b_s"], period["ratio"]) == pytest.approx((0.050, 0.012, 0.24))
    assert (idle["table"], idle["name"]) == ("timeline", "idle_host_elsewhere")
    assert (idle["a_s"], idle["b_s"]) == pytest.approx((0.040, 0.002))
    assert [row["difference_s"] for row in others] == pytest.approx([0] * len(others))
    assert {row["name"] for row in others} >= {"busy", "step", "matrix_multiply", "cudaLaunchKernel"}
    assert by_name(rows)["busy"]["a_s"] == pytest.approx(0.007)


def test_the_period_is_that_of_the_host_on_cpus_and_of_the_device_where_the_host_runs_ahead(tmp_path: Path) -> None:
    a, b = (tables(training(tmp_path / f"{pitch}.json", pitch, device=False)) for pitch in (50.0, 12.0))
    [first, *_] = compare_captures(a, b)[0]
    assert (first["name"], first["a_s"], first["b_s"]) == (PERIOD, pytest.approx(0.050), pytest.approx(0.012))
    # Steps of 2 ms on the host; kernels of 8 ms, one after another.
    steps = [(2.0 * n, 2.0 * n + 2) for n in range(4)]
    kernels = [(2.0 * n + 0.5, 8.0 * n + 1, 8.0 * n + 9, "gemm") for n in range(4)]
    path = training_trace(tmp_path / "ahead.json", {PID: steps}, {PID: kernels})
    # The steps begin at 0, 9, 17 and 25 ms.
    assert step_periods(tables(path)).tolist() == pytest.approx([0.009, 0.008, 0.008])
    # One step has no period.
    path = training_trace(tmp_path / "one.json", {PID: [(0, 10)]}, {PID: [(1, 2, 9, "gemm")]})
    assert len(step_periods(tables(path))) == 0
    found = by_name(compare_captures(tables(path), tables(training(tmp_path / "u.json", 12.0)))[0])
    assert PERIOD not in found
    assert (found["busy"]["a_s"], found["busy"]["b_s"]) == pytest.approx((0.007, 0.007))


MANY = 58
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def job(path: Path, period: float, slow: dict[int, float], messages: int, seed: int) -> Path:
    """58 steps about as long as `period`, in ms, but for some; with so many all-reduces of 1 ms in all but the last."""
    chance = np.random.default_rng(seed)
    lengths = [slow.get(n, period + chance.normal(0, 0.1)) for n in range(MANY)]
    begins = np.concatenate(([0.0], np.cumsum(lengths))).tolist()
    work = [
        (begin + 1.2 * k, begin + 1.2 * k + 0.1, begin + 1.2 * k + 1.1, ALL_REDUCE)
        for begin in begins[:-1] for k in range(messages)
    ]  # fmt: skip
    return training_trace(path, {PID: [(start, end - 0.01) for start, end in pairwise(begins)]}, {PID: work})


def test_one_slow_step_does_not_turn_a_comparison_around(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # b takes 1% more in all steps but for one of a, which takes 69.6 ms: by the means b would be faster.
    a, b = job(tmp_path / "a.json", 12.0, {30: 69.6}, 8, 1), job(tmp_path / "b.json", 12.12, {}, 5, 2)
    [period, *others] = compare_captures(tables(a), tables(b))[0]
    assert period["name"] == PERIOD
    periods = [step_periods(tables(path)) for path in (a, b)]
    assert periods[0].mean() > periods[1].mean()
    assert [period["a_s"], period["b_s"]] == [pytest.approx(np.median(own)) for own in periods]
    assert 1 < period["low"] < 1.01 < period["high"] < 1.02
    counts = {row["name"]: (row["a_calls"], row["b_calls"]) for row in others if row["table"] == "collectives"}
    assert counts == {"all_reduce": (8, 5)}
    compare_traces(a, b)
    said = " ".join(capsys.readouterr().out.split())
    assert "outlying in a: step 31 (69.6 ms)" in said
    assert "NCCL calls per step: 8 → 5" in said


@pytest.mark.slow
@pytest.mark.parametrize("common", [0.0, 0.5])
def test_the_interval_of_a_ratio_of_medians_has_its_coverage(common: float) -> None:
    """Steps with outliers, whose deviations have a part in common with the step before."""
    chance, covered, runs = np.random.default_rng(5), 0, 300

    def periods(median: float) -> np.ndarray:
        noise = chance.normal(0, 1, MANY)
        for n in range(1, MANY):
            noise[n] = common * noise[n - 1] + (1 - common**2) ** 0.5 * noise[n]
        slow = np.where(chance.random(MANY) < 0.03, 5.0, 1.0)
        return median * np.exp(0.02 * noise) * slow

    for _ in range(runs):
        found = ratio_of_medians(periods(1.1), periods(1.0))
        covered += found.low <= 1.1 <= found.high
    assert 0.91 <= covered / runs <= 0.99


def test_a_host_that_waits_longer_comes_after_what_the_device_does(tmp_path: Path) -> None:
    first = training(tmp_path / "a.json", 50.0)
    document = json.loads(first.read_text())
    waits = [e for e in document["traceEvents"] if e["cat"] == "cuda_runtime"]
    for wait, lasts in ((4000, "a"), (8000, "b")):
        more = [e | {"name": "cudaDeviceSynchronize", "ts": e["ts"] + 500, "dur": wait, "args": {}} for e in waits]
        (tmp_path / f"{lasts}.json").write_text(json.dumps(document | {"traceEvents": document["traceEvents"] + more}))
    rows = compare_captures(*(tables(tmp_path / f"{side}.json") for side in "ab"))[0]
    assert (rows[-1]["name"], rows[-1]["difference_s"]) == ("cudaDeviceSynchronize", pytest.approx(0.004))
