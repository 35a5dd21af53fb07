"""All-reduces between devices of a node: between two processes over gloo here, and what their ranks tell."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from multicard.core.facts import MARK
from multicard.launch.process import Ended
from multicard.limits import all_reduce
from multicard.limits.all_reduce import Exchange, exchange
from multicard.limits.timing import BLOCKS

PATIENT_S = 1200.0  # on a busy machine two processes take long to import PyTorch
# Put before a rank's own program by Python itself. A rank that nothing ends goes on before PATIENT_S is over, with a
# wrong sum.
HANGS = """
import os, time
if os.environ.get("RANK") == "1":
    import torch.distributed
    torch.distributed.all_reduce = lambda *a, **k: time.sleep(600)
"""
SUMS_WRONGLY = """
import os
if os.environ.get("RANK"):
    import torch.distributed
    summed = torch.distributed.all_reduce
    def wrongly(tensor, *a, **k):
        summed(tensor, *a, **k)
        tensor.view(-1)[-1] += 1 if tensor.numel() > 1 else 0
    torch.distributed.all_reduce = wrongly
"""


@pytest.mark.slow
def test_two_processes_exchange_and_the_bus_bandwidth_is_that_of_nccl_tests() -> None:
    ended = exchange("cpu", 2, [1 << 12, 1 << 20], PATIENT_S, start_s=PATIENT_S, seconds=0.05)
    assert (ended.problem, ended.hung) == (None, False)
    assert {size: len(times) for size, times in ended.sizes.items()} == {1 << 12: BLOCKS, 1 << 20: BLOCKS}
    # doc/PERFORMANCE.md of nccl-tests: algbw * 2 (n - 1) / n, which is algbw for two ranks.
    assert ended.bus_bandwidth_bytes_per_s == pytest.approx((1 << 20) / median(ended.sizes[1 << 20]))
    assert "bus bandwidth: 1.05 MB between 2 ranks in " in ended.words()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "limit_s", "hung", "says"),
    [
        (HANGS, 3.0, True, "all 2 ranks hang in the first all-reduce: no end within 3 s"),
        (SUMS_WRONGLY, PATIENT_S, False, "ArithmeticError: 1 of 262144 sums are wrong"),
    ],
)
def test_a_hang_and_a_wrong_sum_are_told_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float, hung: bool, says: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ended = exchange("cpu", 2, [1 << 20], limit_s, start_s=PATIENT_S, seconds=0.05)
    assert ended.hung == hung
    assert ended.problem.endswith(says)


def test_the_bus_bandwidth_of_four_ranks_is_one_and_a_half_of_bytes_over_time() -> None:
    assert Exchange(4, sizes={4: [1.0], 8000: [0.002, 0.001, 0.0005]}).bus_bandwidth_bytes_per_s == pytest.approx(12e6)


def test_lines_of_two_ranks_that_are_mixed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*arguments: Any) -> Ended:
        measured = {"stage": "measured", "bytes": 4, "times_s": [2.0, 3.0]}
        lines = [MARK + json.dumps({"rank": rank, **measured}) for rank in (0, 1)]
        done = [MARK + json.dumps({"rank": rank, "stage": "done"}) for rank in (0, 1)]
        for line in ("a warning", "".join(lines), f"{done[0]}{done[1]}", "", f'{MARK}{{"rank": 0, "sta'):
            arguments[4](line)
        return Ended(0, False, 1.0)

    monkeypatch.setattr(all_reduce, "run", fake)
    ended = exchange("cpu", 2, [4], 60.0)
    assert (ended.problem, ended.sizes) == (None, {4: [2.0, 3.0]})
    assert ended.stages == {"measured": {0, 1}, "done": {0, 1}}


@pytest.mark.parametrize(
    ("failed_first", "hung", "problem"),
    [(True, False, "rank 1: RuntimeError: link down"), (False, True, "2 of 3 ranks (not 2) connected, and then hang")],
)
def test_what_came_first_is_told_a_failure_whose_process_does_not_end_or_a_hang_that_others_fail_of(
    monkeypatch: pytest.MonkeyPatch, failed_first: bool, hung: bool, problem: str
) -> None:
    failed = MARK + json.dumps({"rank": 1, "stage": "failed", "error": "RuntimeError: link down"})
    ended = [failed, "Timeout (0:00:05)!"]  # as faulthandler writes it, in each rank
    connected = [MARK + json.dumps({"rank": rank, "stage": "connected"}) for rank in (0, 1)]

    def fake(*arguments: Any) -> Ended:
        for line in connected + (ended if failed_first else ended[::-1]):
            arguments[4](line)
        return Ended(1, False, 5.0)

    monkeypatch.setattr(all_reduce, "run", fake)
    found = exchange("cpu", 3, [4], 5.0)
    assert found.hung == hung
    assert found.problem.startswith(problem)


def test_ranks_that_did_not_come_as_far_are_named() -> None:
    assert all_reduce._hang(Exchange(4, {"started": {0, 1, 3}}), 60.0) == (
        "3 of 4 ranks (not 2) hang in the first all-reduce: no end within 60 s"
    )
    assert all_reduce._hang(Exchange(2), 60.0) == "none of 2 ranks started in time"
