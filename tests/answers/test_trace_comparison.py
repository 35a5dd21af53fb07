"""Two captures compared, against differences worked out by hand."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

from adopted_traces import trace
from captures import KernelTimes, Process, make_trace
from multicard import read_trace
from multicard.answers.comparison.trace_comparison import SPAN, STEP_TIME, compare_captures
from multicard.cli._compare_traces import compare_traces
from multicard.results.step_periods import StepTime, long_steps, ratio_of_step_times, step_time
from multicard.trace.files import open_trace
from multicard.trace.tables import STEPS, ActivityTables, activity_tables
from synthetic import PID, kineto_trace, nsys_export


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)], scope=STEPS)


def compared(a: ActivityTables, b: ActivityTables) -> tuple[list[dict], str]:
    differences, basis = compare_captures(a, b)
    return [asdict(difference) for difference in differences], basis


def by_name(rows: list[dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows}


def test_what_is_equal_or_in_one_capture_only(tmp_path: Path) -> None:
    same = tables(kineto_trace(tmp_path / "a.json"))
    found, basis = compared(same, same)
    assert basis == "per step"
    assert {(row["difference_s"], row["ratio"]) for row in found} == {(0, 1)}
    document = (tmp_path / "a.json").read_text()
    # What only one has is empty in the other.
    (tmp_path / "b.json").write_text(document.replace("cudaLaunchKernel_v7000", "cuLaunchKernelEx"))
    found = by_name(compared(same, tables(tmp_path / "b.json"))[0])
    assert [found["cudaLaunchKernel"][c] for c in ("b_s", "difference_s", "ratio")] == [None, None, None]
    assert found["cuLaunchKernelEx"]["b_s"] == pytest.approx(0.009 / 2)
    # Captures without steps are compared as a whole.
    (tmp_path / "c.json").write_text(document.replace('"step"', '"other"'))
    found, basis = compared(same, tables(tmp_path / "c.json"))
    assert basis == "whole capture"
    kernels = by_name(found)["matrix_multiply"]
    assert kernels["a_s"] == kernels["b_s"] == pytest.approx(0.008)
    without = tables(nsys_export(tmp_path / "a.sqlite", cuda=False))
    del without.rows["phases"]
    assert compared(without, without)[0] == []


def test_differences_are_per_step_and_the_largest_comes_first(tmp_path: Path) -> None:
    a = tables(kineto_trace(tmp_path / "a.json"))
    document = (tmp_path / "a.json").read_text()
    # The kernel at 6-11 ms lasts 5 ms longer: 2.5 ms per step, of 8 / 2 = 4 ms before.
    slower = document.replace('"ts": 6000, "dur": 5000', '"ts": 6000, "dur": 10000')
    assert slower != document
    (tmp_path / "b.json").write_text(slower)
    found, _ = compared(a, tables(tmp_path / "b.json"))
    # From the first step's start to the second one's, the device is busy at 0-5 and 6-11 ms, then at 6-16 ms.
    period, busy, idle, first, *others = found
    assert (period["name"], period["ratio"]) == (STEP_TIME, 1)
    assert [(row["name"], row["difference_s"]) for row in (busy, idle)] == [
        ("busy", pytest.approx(0.005)), ("idle_between_calls", pytest.approx(-0.005)),
    ]  # fmt: skip
    assert (first["table"], first["name"]) == ("kernel_classes", "matrix_multiply")
    assert (first["a_s"], first["b_s"]) == (pytest.approx(0.004), pytest.approx(0.0065))
    assert (first["difference_s"], first["ratio"]) == (pytest.approx(0.0025), pytest.approx(1.625))
    assert {row["difference_s"] for row in others} == {0}


def periods_of(path: Path) -> tuple[float, ...]:
    """Seconds from the start of each step to the start of the next."""
    time = step_time(tables(path))
    return () if time is None else time.periods_s


def training(path: Path, pitch: float, device: bool = True) -> Path:
    """Four steps of 10 ms, one each `pitch`; a kernel that is launched 1 ms into it runs from 2 to 9 ms."""
    begins = [pitch * number for number in range(4)]
    kernels = [(begin + 1, begin + 2, begin + 9, "gemm") for begin in begins] if device else []
    return make_trace(path, Process([(begin, begin + 10) for begin in begins], kernels))


def test_the_wait_between_steps_comes_first_when_it_is_what_changed(tmp_path: Path) -> None:
    starved, fed = (tables(training(tmp_path / f"{pitch}.json", pitch)) for pitch in (50.0, 12.0))
    rows, basis = compared(starved, fed)
    assert basis == "per step"
    # From start to start 50 and 12 ms, of which the device computes for 7; the steps last 10 ms in both.
    period, idle, *others = rows
    assert (period["table"], period["name"]) == ("steps", STEP_TIME)
    assert (period["a_s"], period["b_s"], period["ratio"]) == pytest.approx((0.050, 0.012, 0.24))
    assert (idle["table"], idle["name"]) == ("timeline", "idle_host_elsewhere")
    assert (idle["a_s"], idle["b_s"]) == pytest.approx((0.040, 0.002))
    assert [row["difference_s"] for row in others] == pytest.approx([0] * len(others))
    assert {row["name"] for row in others} >= {"busy", "step", "matrix_multiply", "cudaLaunchKernel"}
    assert by_name(rows)["busy"]["a_s"] == pytest.approx(0.007)


def test_the_period_is_that_of_the_host_on_cpus_and_of_the_device_where_the_host_runs_ahead(tmp_path: Path) -> None:
    a, b = (tables(training(tmp_path / f"{pitch}.json", pitch, device=False)) for pitch in (50.0, 12.0))
    [first, *_] = compared(a, b)[0]
    assert (first["name"], first["a_s"], first["b_s"]) == (STEP_TIME, pytest.approx(0.050), pytest.approx(0.012))
    # Steps of 2 ms on the host; kernels of 8 ms, one after another.
    steps = [(2.0 * n, 2.0 * n + 2) for n in range(4)]
    kernels = [(2.0 * n + 0.5, 8.0 * n + 1, 8.0 * n + 9, "gemm") for n in range(4)]
    path = make_trace(tmp_path / "ahead.json", Process(steps, kernels))
    # The steps begin at 0, 9, 17 and 25 ms.
    assert periods_of(path) == pytest.approx([0.009, 0.008, 0.008])
    # One step has no period: it takes as long as it lasts, and there is no interval.
    path = make_trace(tmp_path / "one.json", Process([(0, 10)], [(1, 2, 9, "gemm")]))
    assert periods_of(path) == ()
    time = step_time(tables(path))
    assert (time.count, time.mean_s, time.median_s, time.periods_s) == (1, pytest.approx(0.010), time.mean_s, ())
    found = by_name(compared(tables(path), tables(training(tmp_path / "u.json", 12.0)))[0])
    assert [found[STEP_TIME][name] for name in ("a_s", "b_s", "low")] == pytest.approx([0.010, 0.012, None])
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
    return make_trace(path, Process([(start, end - 0.01) for start, end in pairwise(begins)], work))


def test_one_slow_step_is_named_and_leaves_the_comparison_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # b takes 1% more in all steps but for one of a, which takes 69.6 ms: by the means b is faster.
    a, b = job(tmp_path / "a.json", 12.0, {30: 69.6}, 8, 1), job(tmp_path / "b.json", 12.12, {}, 5, 2)
    [period, *others] = compared(tables(a), tables(b))[0]
    assert period["name"] == STEP_TIME
    periods = [np.array(periods_of(path)) for path in (a, b)]
    assert [period["a_s"], period["b_s"]] == [pytest.approx(own.mean()) for own in periods]
    assert period["b_s"] < period["a_s"]
    assert period["low"] < 1 < period["high"]
    counts = {row["name"]: (row["a_calls"], row["b_calls"]) for row in others if row["table"] == "collectives"}
    assert counts == {"all_reduce": (8, 5)}
    assert compare_traces(a, b) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "inconclusive" in said
    assert "far longer than the others in a: step 31 (69.6 ms)" in said
    assert "NCCL calls per step: 8 → 5" in said


def bursts(path: Path, pitches: list[float]) -> Path:
    """Steps of 7 ms, of which a kernel runs for 6, each so many milliseconds after the one before."""
    begins = [0.0, *accumulate(pitches)]
    work = [(begin + 0.5, begin + 1, begin + 7, "gemm") for begin in begins]
    return make_trace(path, Process([(begin, begin + 7) for begin in begins], work))


def test_steps_that_come_in_bursts_take_what_the_job_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 42 times from start to start: 82 ms each, or 8, 8 and 230 ms in turn. Both jobs need 3444 ms for 42 steps.
    even, uneven = bursts(tmp_path / "a.json", [82.0] * 42), bursts(tmp_path / "b.json", [8.0, 8.0, 230.0] * 14)
    rows = by_name(compared(tables(even), tables(uneven))[0])
    time = rows[STEP_TIME]
    assert (time["a_s"], time["b_s"], time["ratio"]) == pytest.approx((0.082, 0.082, 1.0))
    assert 0.8 < time["low"] < 1 < time["high"] < 1.2
    assert (rows["busy"]["a_s"], rows["busy"]["b_s"]) == pytest.approx((0.006, 0.006))
    found = step_time(tables(uneven))
    assert (found.count, found.median_s, found.quartiles_s) == (43, pytest.approx(0.008), pytest.approx((0.008, 0.230)))
    assert found.is_skewed
    assert not step_time(tables(even)).is_skewed
    # Every third step is long: that is how the job is, and no outlier.
    assert long_steps(found) == []
    assert compare_traces(even, uneven) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step time: 82.0 ms in a (43 steps), 82.0 ms in b (43 steps): inconclusive: 0.0% (95% CI" in said
    assert "b is 1.00 times as fast as a" in said
    assert "steps of b are unequal: median 8.00 ms, quartiles 8.00 ms and 230 ms" in said


def test_long_steps_are_rare_and_without_a_pattern() -> None:
    usual = [10.0 + 0.01 * (number % 7) for number in range(60)]

    def with_long(*at: int) -> list[int]:
        return long_steps(of_periods([50.0 if number in at else each for number, each in enumerate(usual)]))

    assert with_long() == []
    assert with_long(4) == [5]
    assert with_long(4, 9, 30) == [5, 10, 31]
    assert with_long(9, 29, 49) == []  # every 20th step
    assert with_long(1, 2, 3, 4, 5, 7, 9) == []  # 7 of 60


def of_periods(periods: Sequence[float]) -> StepTime:
    low, median, high = np.quantile(periods, [0.25, 0.5, 0.75])
    return StepTime(float(np.mean(periods)), len(periods) + 1, median, (low, high), tuple(periods))


def independent(chance: np.random.Generator, count: int) -> np.ndarray:
    return np.exp(0.3 * chance.standard_normal(count) - 0.3**2 / 2)


def correlated(correlation: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Neighbours have this correlation; the first period is as any other."""

    def periods(chance: np.random.Generator, count: int) -> np.ndarray:
        noise = chance.standard_normal(count)
        for number in range(1, count):
            noise[number] = correlation * noise[number - 1] + (1 - correlation**2) ** 0.5 * noise[number]
        return np.exp(0.1 * noise - 0.1**2 / 2)

    return periods


def bimodal(chance: np.random.Generator, count: int) -> np.ndarray:
    """Of all periods 45% are longer by 20%, in any order."""
    modes = np.where(chance.random(count) < 0.45, 1.2, 1.0) / (1 + 0.2 * 0.45)
    return modes * np.exp(0.02 * chance.standard_normal(count) - 0.02**2 / 2)


def in_bursts(of: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """One in so many steps is 29 times as long as the others, and a capture begins anywhere in a burst."""

    def periods(chance: np.random.Generator, count: int) -> np.ndarray:
        burst = np.append(np.ones(of - 1), 29.0)
        place = (np.arange(count) + chance.integers(of)) % of
        return (burst / burst.mean())[place] * np.exp(0.05 * chance.standard_normal(count) - 0.05**2 / 2)

    return periods


def coverage(world: Callable[[np.random.Generator, int], np.ndarray], count: int) -> float:
    """Share of the intervals of 1000 ratios that contain the true one; the mean of each world is 1."""
    chance, covered, runs = np.random.default_rng(5), 0, 1000
    for _ in range(runs):
        found = ratio_of_step_times(of_periods(1.1 * world(chance, count)), of_periods(world(chance, count)))
        covered += found.low <= 1.1 <= found.high
    return covered / runs


WORLDS = {
    "independent": independent, "correlated by 0.6": correlated(0.6), "correlated by 0.9": correlated(0.9),
    "bimodal": bimodal, "3": in_bursts(3), "5": in_bursts(5),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 19, 40, 58, 200])
@pytest.mark.parametrize("world", WORLDS)
def test_the_interval_of_a_ratio_of_step_times_has_its_coverage(world: str, count: int) -> None:
    """Of bursts it may cover more: their ends are uneven."""
    covered = coverage(WORLDS[world], count)
    assert covered >= 0.93
    if world in ("independent", "correlated by 0.6", "bimodal"):
        assert covered <= 0.99


@pytest.mark.parametrize("world", ["independent", "correlated by 0.9", "bimodal"])
def test_the_interval_of_a_short_capture_has_its_coverage(world: str) -> None:
    assert coverage(WORLDS[world], 12) >= 0.93


def test_fewer_than_twelve_periods_have_no_interval() -> None:
    few, enough = ([1.0 + 0.01 * (number % 3) for number in range(count)] for count in (11, 12))
    assert ratio_of_step_times(of_periods(few), of_periods(enough)).low is None
    assert ratio_of_step_times(of_periods(enough), of_periods(enough)).low is not None


def test_too_few_steps_for_an_interval_are_said_with_how_many_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_traces(training(tmp_path / "a.json", 12.0), training(tmp_path / "b.json", 15.0))
    said = " ".join(capsys.readouterr().out.split())
    assert "+25.0%, too few steps for an interval: capture 13 or more" in said


def named(path: Path, gpu: str, calls: str = "cuda") -> Path:
    """The same trace on another GPU, whose calls have this prefix."""
    document = json.loads(path.read_text().replace("cudaLaunchKernel", f"{calls}LaunchKernel"))
    path.write_text(json.dumps(document | {"deviceProperties": [{"id": 0, "name": gpu}]}))
    return path


def test_gpus_that_differ_are_said_first_and_calls_of_both_vendors_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = named(training(tmp_path / "a.json", 50.0), "NVIDIA H100 80GB HBM3")
    b = named(training(tmp_path / "b.json", 12.0), "AMD Instinct MI300X", "hip")
    found = read_trace(a, scope="steps").compare(read_trace(b, scope="steps"))
    assert found.attrs["gpus"] == {"a": ["NVIDIA H100 80GB HBM3"], "b": ["AMD Instinct MI300X"]}
    [calls] = found[found["table"] == "cuda_api"].to_dict("records")
    assert (calls["name"], calls["a_calls"], calls["b_calls"]) == ("cuda/hipLaunchKernel", 1, 1)
    compare_traces(a, b)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "GPUs differ: NVIDIA H100 80GB HBM3 in a, AMD Instinct MI300X in b"
    assert read_trace(a).compare(read_trace(a)).attrs["gpus"] == {}


def test_without_steps_on_one_side_both_whole_captures_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # KernelTimes of 100 ms before two steps, which the other trace does not mark; in that one the steps come in 200 ms.
    before: list[KernelTimes] = [(0.0, 0.1, 100.1, "gemm")]
    steps = [(begin + 1, begin + 2, begin + 9, "gemm") for begin in (110.0, 120.0)]
    a = make_trace(tmp_path / "a.json", Process([(110, 120), (120, 130)], [*before, *steps]))
    later = [(begin + 1, begin + 2, begin + 9, "gemm") for begin in (210.0, 220.0)]
    b = make_trace(tmp_path / "b.json", Process(kernels=[*before, *later]))
    found = read_trace(a, scope="steps").compare(read_trace(b, scope="steps"))
    assert found.attrs["basis"] == "whole capture"
    rows = by_name(found.to_dict("records"))
    # From 0.1 ms to the last step's end, 130 ms, and to the last kernel's, 229 ms.
    assert [rows[SPAN][name] for name in ("a_s", "b_s")] == pytest.approx([0.1299, 0.2289])
    assert found.iloc[0]["name"] == SPAN
    assert [rows["busy"][name] for name in ("a_s", "b_s")] == pytest.approx([0.114, 0.114])
    assert [rows["cudaLaunchKernel"][name] for name in ("a_calls", "b_calls")] == [3, 3]
    assert compare_traces(a, b) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step time: cannot tell, since no steps were found in b" in said
    assert "span of a GPU: 130 ms in a, 229 ms in b (busy 114 ms and 114 ms): b is 0.57 times as fast as a" in said
    assert "if both do the same work" in said


def test_notices_say_of_which_side_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adopted = trace(tmp_path / "a.json", [10.0] * 6)
    compare_traces(adopted, training(tmp_path / "b.json", 12.0))
    assert "a: steps from kernels of an optimizer" in capsys.readouterr().out.splitlines()


def test_traces_with_nothing_in_common_cannot_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, category in (("a", "kernel"), ("b", "cuda_runtime")):
        event = {"ph": "X", "cat": category, "name": "x", "pid": PID, "ts": 1, "dur": 1, "args": {"device": 0}}
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps({"traceEvents": [event]}))
    assert compare_traces(*paths) == 2
    assert capsys.readouterr().out.startswith("cannot tell")


def test_a_host_that_waits_longer_comes_after_what_the_device_does(tmp_path: Path) -> None:
    first = training(tmp_path / "a.json", 50.0)
    document = json.loads(first.read_text())
    waits = [e for e in document["traceEvents"] if e["cat"] == "cuda_runtime"]
    for wait, lasts in ((4000, "a"), (8000, "b")):
        more = [e | {"name": "cudaDeviceSynchronize", "ts": e["ts"] + 500, "dur": wait, "args": {}} for e in waits]
        (tmp_path / f"{lasts}.json").write_text(json.dumps(document | {"traceEvents": document["traceEvents"] + more}))
    rows = compared(*(tables(tmp_path / f"{side}.json") for side in "ab"))[0]
    assert (rows[-1]["name"], rows[-1]["difference_s"]) == ("cudaDeviceSynchronize", pytest.approx(0.004))
