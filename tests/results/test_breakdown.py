"""The parts of a step and of a device's time: by hand, and of simulated ranks that wait for each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from captures import KernelTimes, Process, make_trace
from multicard.answers.bottlenecks.bottlenecks import NAMES
from multicard.core.layout import PHASES
from multicard.results.breakdown import StepPart, complete_breakdowns, parts_of
from multicard.results.device_time import device_time, overall
from multicard.results.phase_parts import parts_of_phases
from multicard.results.windows import Window
from multicard.trace.files import open_trace
from multicard.trace.idle import CAUSES
from multicard.trace.tables import activity_tables
from synthetic import nsys_export


def steps(pitches: Any, rank: int = 0, **seconds: Any) -> pd.DataFrame:
    """Steps of one rank that begin so far apart, in which phases take so long."""
    pitches = np.asarray(pitches, dtype=float)
    starts = np.concatenate([[0.0], np.cumsum(pitches)[:-1]])
    rows = {"rank": rank, "epoch": 1, "step": range(1, len(pitches) + 1), "start_s": starts, "duration_s": pitches}
    phases = dict.fromkeys((f"{phase}_s" for phase in (*PHASES, "evaluation")), np.nan)
    return pd.DataFrame(rows | phases | {f"{name}_s": values for name, values in seconds.items()})


def parts(*ranks: pd.DataFrame, devices: int = 1) -> dict[str, float]:
    return parts_of_phases(Window(pd.concat(ranks)), devices).shares


def test_every_part_is_a_kind_of_bottleneck() -> None:
    assert {*StepPart} < {*NAMES}


def test_parts_are_shares_of_the_time_from_step_to_step() -> None:
    # 10 ms between steps of 90 ms, and half of the steps wait 40 ms more for data.
    waits = np.array([0.0, 0.04] * 5)
    run = steps(0.1 + waits, data=waits, transfer=0.01, forward=0.03, backward=0.05)
    run["duration_s"] -= 0.01
    run.loc[run.index[-1], "duration_s"] += 0.01  # nothing is known of what follows the last one
    shares = {"compute": 0.8, "memory operations": 0.1, "data loading": 0.2, "other": 0.1, "stalls": 0.0}
    assert parts(run) == pytest.approx({name: share / 1.2 for name, share in shares.items()})
    # Without a wait for data all ranks count.
    ranks = [steps([0.1] * 10, rank, forward=0.03, backward=back) for rank, back in enumerate((0.07, 0.03))]
    assert parts(*ranks, devices=2)["compute or communication"] == pytest.approx(0.8)
    assert parts_of_phases(Window(steps([0.1] * 10)), 1) == ({}, None)


@pytest.mark.parametrize("where", ["between", "inside"])
def test_a_periodic_stall_is_named_with_its_steps(where: str) -> None:
    # Half a second in every fiftieth of steps of 13.8 ms: 2 s of 4.76 s.
    stall = np.zeros(200)
    stall[[24, 74, 124, 174]] = 0.5
    scatter = np.random.default_rng(1).normal(1.0, 0.02, 200)
    forward = 0.0038 * scatter + (stall if where == "inside" else 0.0)
    run = steps(0.0138 * scatter + stall, forward=forward, backward=0.01 * scatter)
    found = parts_of_phases(Window(run), 1)
    assert found.shares["stalls"] == pytest.approx(2.0 / 4.76, abs=0.005)
    assert found.stalled_steps == "4 of 200: 25, 75, 125, 175"
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_stall_is_what_a_step_takes_beyond_the_median_of_the_others() -> None:
    # Of the nine usual steps five take 10 ms, so the tenth stalls for 990 ms of 5 * 10 + 4 * 14 + 1000.
    forward = np.array([0.010] * 5 + [0.014] * 4 + [1.0])
    assert parts(steps(forward, forward=forward))["stalls"] == pytest.approx(0.990 / 1.106)


def test_bursts_of_the_loader_evaluation_and_steps_that_merely_vary_are_no_stalls() -> None:
    waits, tests = np.zeros(64), np.zeros(64)
    waits[::8], tests[31] = 0.4, 3.0
    found = parts(steps(0.05 + waits + tests, data=waits, evaluation=tests, forward=0.02, backward=0.03))
    total = 64 * 0.05 + 8 * 0.4 + 3.0
    assert found["stalls"] == 0
    assert (found["data loading"], found["evaluation"]) == pytest.approx((3.2 / total, 3.0 / total))
    for sigma in (0.02, 0.6):
        scatter = np.random.default_rng(2).lognormal(0.0, sigma, 500)
        assert parts(steps(0.02 * scatter, forward=0.008 * scatter, backward=0.012 * scatter))["stalls"] < 0.01


def test_steps_with_larger_batches_are_no_stalls() -> None:
    # One of five batches is seven times as long as the others, on both of two ranks.
    work = np.where(np.arange(40) % 5 == 3, 7.0, 1.0)
    larger = [steps(0.018 * work, rank, forward=0.006 * work, backward=0.012 * work) for rank in range(2)]
    assert parts(*larger, devices=2)["stalls"] == 0
    # If rank 0 alone is stalled for as long in its forward pass, rank 1 waits in its backward pass.
    stall = 0.018 * (work - 1.0)
    stalled = [
        steps(0.018 + stall, 0, forward=0.006 + stall, backward=0.012),
        steps(0.018 + stall, 1, forward=0.006, backward=0.012 + stall),
    ]
    assert parts(*stalled, devices=2)["stalls"] == pytest.approx(8 * 0.108 / (40 * 0.018 + 8 * 0.108))


def test_without_the_wait_that_ranks_share_a_job_is_as_fast_as_the_share_says() -> None:
    # Either rank's loader may be late; the other one waits in its backward pass, for which no phase is to blame.
    waits = np.random.default_rng(3).exponential(0.1, (2, 400))
    longest, computing = waits.max(axis=0), 0.05
    ranks = [
        steps(longest + computing, rank, data=own, forward=0.02, backward=0.03 + longest - own)
        for rank, own in enumerate(waits)
    ]
    share = parts(*ranks, devices=2)["data loading"]
    speedup = (longest + computing).mean() / computing
    assert 1 / (1 - share) == pytest.approx(speedup)
    of_means = 1 / (1 - waits.mean() / (longest + computing).mean())
    assert of_means < 0.6 * speedup
    assert Window(pd.concat(ranks)).data_share == pytest.approx(share)


def test_an_evaluation_by_one_rank_is_none_of_the_others_stalls() -> None:
    # The first rank evaluates for 3 s in the 20th step. The second, whose loader is slower, waits for it in backward.
    evaluating = np.zeros(64)
    evaluating[19] = 3.0
    total = 64 * 0.0502 + 3.0
    first = steps(0.0502 + evaluating, data=0.0001, evaluation=evaluating, forward=0.02, backward=0.0301)
    second = steps(0.0502 + evaluating, 1, data=0.0002, forward=0.02, backward=0.03 + evaluating)
    found = parts(first, second, devices=2)
    assert found["stalls"] == 0
    assert found["evaluation"] == pytest.approx(3.0 / total)


def _row(known: dict[str, float], **measures: Any) -> dict[str, Any]:
    row = {"run": "r", "outcome": "completed", "workload": "vision", "device": "cuda", "devices": 1}
    return row | {StepPart(part).column: share for part, share in known.items()} | measures


# Of the profiled steps of two GPUs.
TRACE = {
    "compute": 0.3, "compute and communication": 0.1, "exposed communication": 0.1, "exposed memory operations": 0.0,
    "idle (launching)": 0.3, "idle (queued)": 0.1, "idle (unknown)": 0.1, "waiting_in_collectives": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "known", "bound"),
    [
        ({}, {}, "compute"),
        ({"compute": 0.1}, {}, "launch overhead"),
        ({"compute": 0.0, "exposed memory operations": 0.7}, {}, "memory operations"),
        ({"compute": 0.0, "CUDA graphs": 0.7}, {}, "CUDA graphs"),
        ({"compute": 0.0, "idle (allocating)": 0.7}, {}, "memory allocation"),
        ({"compute": 0.0, "idle (loading code)": 0.7}, {}, "loading code"),
        ({"compute": 0.0, "idle (synchronizing)": 0.7}, {}, "synchronization"),
        ({"compute": 0.0, "idle (queued)": 0.7}, {}, "queued on the GPU"),
        ({"compute": 0.0, "idle (within a graph)": 0.7}, {}, "idle within graphs"),
        ({"compute": 0.0, "idle (unknown)": 0.7}, {}, "other"),
        ({"idle (launching)": 0.05, "idle (host in no call)": 0.8}, {}, "host without GPU calls"),
        ({"compute": 0.0, "idle (data loading)": 0.7}, {}, "data loading"),
        ({"compute": 0.0, "exposed communication": 0.5, "waiting_in_collectives": 0.4}, {}, "waiting for other ranks"),
        ({}, {"stalls": 0.6}, "stalls"),
        ({}, {"data loading": 0.5}, "data loading"),
    ],
)
def test_the_bound_is_the_largest_part(trace: dict[str, float], known: dict[str, float], bound: str) -> None:
    [row] = complete_breakdowns(
        [_row({"compute or communication": 1.0} | known)], pd.DataFrame([TRACE | trace], index=["r"])
    )
    assert row["bound"] == bound
    assert sum(parts_of(row).values()) == pytest.approx(1.0)
    assert row["compute_or_communication_share"] is None  # a trace tells them apart


def test_the_wait_of_a_rank_without_data_is_not_communication() -> None:
    # Of two GPUs in turn one waits 0.7 of a step for data, and the other inside a collective for it: 0.35 on average.
    trace = {"compute": 0.3, "idle (launching)": 0.35, "exposed communication": 0.35, "waiting_in_collectives": 0.35}
    profiled = {"profiled_data_s": 0.35, "trace_iteration_time_s": 1.0}
    profiled |= {"profiled_data_share": 0.7, "profiled_iteration_time_s": 1.0}
    row = _row({"data loading": 0.7, "compute or communication": 0.3}, devices=2, **profiled)
    [found] = complete_breakdowns([row], pd.DataFrame([trace], index=["r"]))
    shares = {part: share for part, share in parts_of(found).items() if share > 1e-9}
    assert shares == pytest.approx({"data loading": 0.7, "compute": 0.3})


def test_a_run_without_phases_or_a_trace_has_no_bound() -> None:
    [row] = complete_breakdowns([_row({}, outcome="failed")], pd.DataFrame())
    assert row["bound"] is None and parts_of(row) == {}


def test_parts_of_a_device_s_time_add_up_to_its_span(tmp_path: Path) -> None:
    rows = activity_tables([open_trace(nsys_export(tmp_path / "t.sqlite"))], only=["timeline"]).rows["timeline"]
    timeline = pd.DataFrame(rows)
    parts = device_time(timeline)
    assert len(parts) == 3
    assert parts.sum(axis=1).tolist() == pytest.approx(timeline["span_s"].tolist())
    assert parts.min().min() >= 0
    # Idle time of unknown cause counts as other; without kernels no part is known.
    unknown = timeline.assign(**dict.fromkeys(f"{cause}_s" for cause in CAUSES))
    assert device_time(unknown)["idle (unknown)"].tolist() == pytest.approx(timeline["idle_s"].tolist())
    columns = [name for name in timeline if name.endswith("_s") and name not in ("span_s", "memory_s")]
    assert device_time(timeline.assign(**dict.fromkeys(columns))).isna().all(axis=None)


def test_idle_time_of_a_host_that_is_busy_elsewhere_is_a_part_of_its_own(tmp_path: Path) -> None:
    # Two steps of 10 ms, 5 ms of each computing, 20 ms apart; the first is launched at once and the second late.
    work: list[KernelTimes] = [(0.0, 0.0, 5.0, "gemm"), (31.0, 32.0, 37.0, "gemm")]
    path = make_trace(tmp_path / "t.sqlite", Process([(0.0, 10.0), (30.0, 40.0)], work))
    timeline = activity_tables([open_trace(path)], ["timeline"], scope="steps").table("timeline").to_pandas()
    parts = device_time(overall(timeline)).iloc[0] * 1e3
    # Idle at 5-32 ms: the host makes no call between the steps, and is in them at 5-10 and 30-31.1, when the launching
    # call of 0.1 ms returns. From then to 32 ms the kernel is queued. Nothing follows 37 ms.
    assert parts["idle (host in no call)"] == pytest.approx(20)
    assert parts["idle (launching)"] == pytest.approx(5 + 1.1 + 3)
    assert parts["idle (queued)"] == pytest.approx(0.9)
    assert parts.sum() == pytest.approx(40)
