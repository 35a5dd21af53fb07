"""Steps that nobody marked for multicard: in synthetic traces whose iterations are known, and in real ones."""

import gzip
import json
import os
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from adopted_traces import GEMM, UPDATE, Kernels, trace
from changed_traces import Rows, change_events
from multicard import read_trace
from multicard.trace.files import open_trace
from multicard.trace.find_steps import find_steps, with_steps
from multicard.trace.tables import STEPS, activity_tables
from synthetic import PID

REAL = Path(os.environ.get("MULTICARD_TRACES", "none"), "kineto/hta_nccl_allreduce_broadcast.json.gz")

LENGTHS = [10.0, 12.0, 10.0, 15.0, 10.0]  # of iterations, in milliseconds
BEGINS = [0.0, *accumulate(LENGTHS)]


def found_in(*paths: Path, stated: str | None = None) -> tuple[str | None, dict[int, list[float]]]:
    """What tells the steps, and their durations on the device in milliseconds, by process."""
    traces = [open_trace(path) for path in paths]
    found = find_steps(traces, stated)
    rows = activity_tables(with_steps(traces, found.steps), ["timeline"], scope=STEPS).rows["timeline"]
    durations: dict[int, list[float]] = {}
    for row in rows:
        if row["scope"] == "step":
            assert row["extent"] == "device"
            durations.setdefault(row["process"], []).append(row["span_s"] * 1e3)
    return found.source, durations


def close(durations: list[float]) -> Any:
    return pytest.approx(durations, abs=1e-3)


@pytest.mark.parametrize("name", ["t.json", "t.sqlite"])
def test_a_step_ends_with_the_last_kernel_of_its_optimizer(name: str, tmp_path: Path) -> None:
    source, durations = found_in(trace(tmp_path / name, LENGTHS))
    # From one iteration's update to the next one's: each begins when the one before has its length behind it.
    assert source == "kernels of an optimizer"
    assert durations == {PID: close(LENGTHS[:-1])}


def test_processes_have_steps_of_their_own(tmp_path: Path) -> None:
    other = [9.0, 9.0, 20.0, 9.0]
    _, durations = found_in(trace(tmp_path / "t.sqlite", LENGTHS, other))
    assert durations == {PID: close(LENGTHS[:-1]), PID + 1: close(other[:-1])}
    # One that shows no steps leaves all without.
    one = trace(tmp_path / "one.json", LENGTHS, ranges=ranges("step"))
    assert found_in(one, trace(tmp_path / "other.json", LENGTHS, kernels=[(1, GEMM)])) == (None, {})


def test_without_launches_a_step_ends_as_the_device_ends_the_update(tmp_path: Path) -> None:
    traces = [open_trace(trace(tmp_path / "t.json", LENGTHS, calls=False))]
    [steps] = find_steps(traces).steps.values()
    assert ((steps.ends - steps.starts) / 1e6).tolist() == close(LENGTHS[:-1])


ZEROED_FIRST: Kernels = ((0.5, UPDATE), (1, GEMM), (2, GEMM), (3, UPDATE), (4, UPDATE))
ACCUMULATED: Kernels = (*((1 + 0.5 * at, GEMM) for at in range(8)), (6, UPDATE), (7, UPDATE))


@pytest.mark.parametrize("kernels", [ZEROED_FIRST, ACCUMULATED])
def test_zeroed_gradients_and_accumulated_batches_make_no_steps(kernels: Kernels, tmp_path: Path) -> None:
    # Where gradients are zeroed first, that of the first iteration is the first boundary; after the last none follows.
    _, durations = found_in(trace(tmp_path / "t.json", LENGTHS, kernels=kernels))
    assert durations == {PID: close(LENGTHS[:-1])}


FORWARD: Kernels = [(0.1 * at, GEMM) for at in range(20)]
BACKWARD: Kernels = [(2.0 + 0.1 * at, (GEMM, UPDATE)[at % 2]) for at in range(40)]


@pytest.mark.parametrize("kernels", [[*FORWARD, *BACKWARD], [(1, GEMM), (2, GEMM)]], ids=["every layer", "none"])
def test_no_update_or_one_after_every_layer_tells_no_steps(kernels: Kernels, tmp_path: Path) -> None:
    assert found_in(trace(tmp_path / "t.json", LENGTHS, kernels=kernels)) == (None, {})


def test_updates_of_different_sizes_tell_no_steps(tmp_path: Path) -> None:
    def edit(events: Rows) -> None:
        updates = [each for each in events if each["cat"] == "kernel" and each["name"] == UPDATE]
        for each in (updates[1], updates[2], updates[5]):
            each["name"] = "another_kernel"

    assert found_in(change_events(trace(tmp_path / "t.json", LENGTHS), edit)) == (None, {})


def ranges(name: str) -> list[tuple[float, float, str]]:
    """A range around the launches of each iteration."""
    return [(begin + 0.5, begin + 5, name.replace("{}", str(n))) for n, begin in enumerate(BEGINS[:-1])]


@pytest.mark.parametrize(
    ("name", "told_by"),
    [
        ("ProfilerStep#{}", "ranges of steps, such as ProfilerStep#N"),
        ("Iteration {}", "ranges of steps, such as ProfilerStep#N"),
        ("training_step", "the ranges 'training_step'"),
        ("train_batch_{}", "the ranges 'train_batch'"),
        ("TRAIN_STEP {}", "the ranges 'TRAIN_STEP'"),
        ("step[DECODE bs={}]", "the ranges 'step[…]'"),
        ("execute_3{}_context_0(sq0)_generation_3{}(sq3)", "the ranges 'execute…'"),
    ],
)
def test_ranges_of_steps_come_before_kernels(name: str, told_by: str, tmp_path: Path) -> None:
    source, durations = found_in(trace(tmp_path / "t.json", LENGTHS, ranges=ranges(name)))
    assert source == told_by
    # Begun by the host at 0.5 ms, when the device has nothing to do; ended by it with the second update, at 4.9 + lag.
    assert durations == {PID: close([7.4] * len(LENGTHS))}


@pytest.mark.parametrize("since_us", [0.0, 1.7e15], ids=["since the start", "since 1970"])
def test_steps_that_touch_are_all_counted(since_us: float, tmp_path: Path) -> None:
    """A time since 1970 in microseconds leaves 250 ns to a double, so a step may seem to begin in the one before."""
    lengths = [10.0001 + 0.00013 * number for number in range(40)]
    begins = [0.0, *accumulate(lengths)]
    touching = [(begin, end, f"ProfilerStep#{n}") for n, (begin, end) in enumerate(pairwise(begins))]
    path = trace(tmp_path / "t.json", lengths, ranges=touching)
    change_events(path, lambda events: [each.update(ts=each["ts"] + since_us) for each in events])
    [steps] = find_steps([open_trace(path)]).steps.values()
    assert len(steps.starts) == len(lengths)
    assert (steps.starts[1:] >= steps.ends[:-1]).all()
    assert ((steps.ends - steps.starts) / 1e6).tolist() == pytest.approx(lengths, abs=1e-3)


WARM_UP = [(BEGINS[0], BEGINS[3], "Warmup")]


@pytest.mark.parametrize(
    ("marks", "count"), [(ranges("training_step"), 2), ([], 1)], ids=["ranges", "kernels of an optimizer"]
)
def test_steps_within_warm_up_do_not_count(marks: list[tuple[float, float, str]], count: int, tmp_path: Path) -> None:
    # Three of five iterations warm up. Kernels tell the steps between five updates, the last of which is after these.
    path = trace(tmp_path / "t.json", LENGTHS, ranges=[*marks, *WARM_UP])
    found = find_steps([open_trace(path)])
    assert [len(steps.starts) for steps in found.steps.values()] == [count]
    assert found.notices == ()


@pytest.mark.parametrize("name", ["Warm-up Step {}", "warmup_iter {}", "Training Warm-Up"])
def test_a_capture_of_nothing_but_warm_up_has_no_steps_and_says_so(name: str, tmp_path: Path) -> None:
    marks = [(begin, end, name.replace("{}", str(n))) for n, (begin, end) in enumerate(pairwise(BEGINS))]
    path = trace(tmp_path / "t.json", LENGTHS, ranges=marks)
    found = find_steps([open_trace(path)])
    assert (found.source, found.steps) == (None, {})
    said = "4 steps by kernels of an optimizer not counted: the program's own ranges say that it warmed up then"
    assert found.notices == (said,)
    assert read_trace(path, scope="steps", find_steps=True).notices == (said,)
    # Whoever names the range wants it.
    if "{}" in name:
        assert len(find_steps([open_trace(path)], name.replace("{}", "7")).steps[0, PID].starts) == len(LENGTHS)


def test_updates_that_were_launched_before_the_capture_tell_no_steps(tmp_path: Path) -> None:
    """The device lags 40 ms behind the host, so that it works on what it had to do for a while."""
    path = trace(tmp_path / "t.json", [10.0] * 12)

    def lag(events: Rows) -> None:
        for event in events:
            event["ts"] += 40_000 if event["cat"] == "kernel" else 0

    change_events(path, lag)
    change_events(path, lambda rows: rows.__setitem__(slice(None), [row for row in rows if not is_before(row, 40_000)]))
    # Of 12 updates the last 8 have calls: 7 steps.
    found = find_steps([open_trace(path)])
    assert found.source == "kernels of an optimizer"
    assert [len(steps.starts) for steps in found.steps.values()] == [7]


def is_before(row: dict[str, Any], moment: float) -> bool:
    return row["cat"] == "cuda_runtime" and row["ts"] < moment


def test_other_names_count_only_if_they_repeat_and_not_inside_a_range_of_their_name(tmp_path: Path) -> None:
    source, _ = found_in(trace(tmp_path / "once.json", LENGTHS, ranges=ranges("batch")[:1]))
    assert source == "kernels of an optimizer"
    inner = [(begin + 1, begin + 2, "batch") for begin in BEGINS[:-1]]
    _, durations = found_in(trace(tmp_path / "t.json", LENGTHS, ranges=[*ranges("batch"), *inner]))
    assert durations == {PID: close([7.4] * len(LENGTHS))}


def test_a_stated_name_comes_before_all_others_and_nothing_instead_of_it(tmp_path: Path) -> None:
    both = trace(tmp_path / "t.json", LENGTHS, ranges=[*ranges("step"), *ranges("my loop {}")[1:]])
    source, durations = found_in(both, stated="my loop")
    assert source == "the ranges 'my loop'"
    assert durations == {PID: close([7.4] * (len(LENGTHS) - 1))}
    assert found_in(both, stated="your loop") == (None, {})


def test_pytorchs_annotations_of_optimizers_end_steps(tmp_path: Path) -> None:
    annotations = [(begin + 3.9, begin + 4.8, "Optimizer.step#Adam.step") for begin in BEGINS[:-1]]
    source, durations = found_in(trace(tmp_path / "t.json", LENGTHS, ranges=annotations))
    assert source == "PyTorch's annotations of Optimizer.step"
    assert durations == {PID: close(LENGTHS[:-1])}


def test_annotations_of_optimizers_that_take_turns_tell_no_steps(tmp_path: Path) -> None:
    kernels: Kernels = (*((0.5 + 0.25 * at, GEMM) for at in range(8)), (4, GEMM), (4.5, GEMM))
    ends = [(begin + at, begin + at + 0.2, "Optimizer.step#Adam.step") for begin in BEGINS[:-1] for at in (3, 5)]
    assert found_in(trace(tmp_path / "t.json", LENGTHS, kernels=kernels, ranges=ends)) == (None, {})


def without(recorded: dict[str, Any], path: Path, *names: str) -> Path:
    events = [e for e in recorded["traceEvents"] if not str(e.get("name", "")).startswith(names)]
    path.write_text(json.dumps(recorded | {"traceEvents": events}))
    return path


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason="set MULTICARD_TRACES to a folder of real traces (kineto/*.json.gz)")
def test_steps_of_a_real_trace_by_each_of_the_rules(tmp_path: Path) -> None:
    """The numbers are counted in its text."""
    recorded = json.loads(gzip.decompress(REAL.read_bytes()))
    source, durations = found_in(REAL)
    assert source == "ranges of steps, such as ProfilerStep#N"
    assert [len(each) for each in durations.values()] == [3]

    # Without them PyTorch's annotations of the optimizer tell one step less, by the host's clock from end to end.
    found = find_steps([open_trace(without(recorded, tmp_path / "bare.json", "ProfilerStep#"))])
    assert found.source == "PyTorch's annotations of Optimizer.step"
    marks = [e for e in recorded["traceEvents"] if e.get("cat") == "user_annotation"]
    moments = sorted(e["ts"] + e["dur"] for e in marks if e["name"].startswith("Optimizer.step#"))
    [steps] = found.steps.values()
    assert (steps.ends - steps.starts).tolist() == pytest.approx([(b - a) * 1e3 for a, b in pairwise(moments)], abs=2)

    # Without these too there are kernels of the optimizer: updates are those that lie close together, far from others.
    source, durations = found_in(without(recorded, tmp_path / "barer.json", "ProfilerStep#", "Optimizer."))
    assert source == "kernels of an optimizer"
    kernels = [e for e in recorded["traceEvents"] if e.get("cat") == "kernel" and "multi_tensor_apply" in e["name"]]
    times = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels)
    ends = [a[1] for a, b in pairwise([*times, (1e30, 1e30)]) if b[0] - a[1] > 5_000]
    [found_ms] = durations.values()
    pitches = [(b - a) / 1e3 for a, b in pairwise(ends)]
    assert len(pitches) >= len(found_ms) >= 2
    assert found_ms == pytest.approx(pitches[: len(found_ms)], rel=0.02)
