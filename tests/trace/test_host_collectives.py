"""Collectives that the host carries out, as PyTorch's profiler records those of gloo."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multicard import read_trace

BASE = 1_767_189_312_000_000_000

# Two ranks reduce 30 times; rank 1 sleeps 5 ms before each. Each writes its trace and when it called all_reduce.
SCRIPT = """
import json, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
values = torch.ones(1000)
for _ in range(3):
    dist.all_reduce(values)
calls = []
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(30):
        if rank == 1:
            time.sleep(0.005)
        calls.append(time.perf_counter())
        dist.all_reduce(values)
profiler.export_chrome_trace(str(folder / "traces" / f"rank{rank}.json"))
(folder / f"calls{rank}").write_text(json.dumps(calls))
dist.destroy_process_group()
"""


def gloo_rank(path: Path, rank: int, work: list[tuple[str, float, float]]) -> Path:
    """Write a trace of collectives on the host: name, start and duration in microseconds; two threads take turns."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": 100 + rank, "tid": 1 + i % 2, "ts": ts, "dur": dur}
        for i, (name, ts, dur) in enumerate(work)
    ]
    document: dict[str, Any] = {"traceEvents": events, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": BASE}
    path.write_text(json.dumps(document))
    return path


def test_ranks_that_wait_in_gloo_are_told(tmp_path: Path) -> None:
    # Rank 1 joins 5 ms after rank 0; both take 1 ms more, and rank 0 ends 0.4 ms later since its host is busy.
    for rank, join, duration in ((0, 0, 6_400), (1, 5_000, 1_000)):
        work = [(kind, 20_000.0 * k + join, duration) for k, kind in enumerate(["gloo:all_reduce", "gloo:barrier"] * 4)]
        work.append(("nccl:all_reduce", 500_000.0 + join, 10))  # which only launches
        gloo_rank(tmp_path / f"rank{rank}.json", rank, work)
    trace = read_trace([tmp_path / "rank0.json", tmp_path / "rank1.json"], tables=["stragglers"])
    assert [
        (
            row["rank"],
            row["collective"],
            row["calls"],
            row["times_last"],
            row["median_wait_s"],
            row["by"],
            row["device"],
        )
        for row in trace.rows("stragglers")
    ] == [
        (0, "all_reduce", 4, 0, 0.005, "clock", None),
        (1, "all_reduce", 4, 4, 0.0, "clock", None),
        (0, "barrier", 4, 0, 0.005, "clock", None),
        (1, "barrier", 4, 4, 0.0, "clock", None),
    ]


@pytest.mark.slow
def test_a_rank_that_sleeps_before_each_all_reduce_is_named_with_its_sleep(tmp_path: Path) -> None:
    """The truth is that of the script's own stopwatch: a busy machine makes a rank later than its sleep."""
    script = tmp_path / "late.py"
    script.write_text(SCRIPT)
    (tmp_path / "traces").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    first, second = (json.loads((tmp_path / f"calls{rank}").read_text()) for rank in (0, 1))
    late = statistics.median(later - earlier for earlier, later in zip(first, second, strict=True))
    assert late > 0.0045  # it did sleep

    trace = read_trace(tmp_path / "traces", tables=["stragglers"])
    early, last = trace.rows("stragglers")
    assert (early["rank"], early["collective"], early["calls"]) == (0, "all_reduce", 30)
    assert (last["rank"], last["collective"], last["calls"]) == (1, "all_reduce", 30)
    assert last["times_last"] > 15
    # From the call on it takes another thread to join; its delay is a part of a millisecond on both ranks.
    assert early["median_wait_s"] == pytest.approx(late, abs=0.002)
