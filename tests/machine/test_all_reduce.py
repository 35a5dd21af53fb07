"""All-reduces between devices of a node: what their ranks tell, and a hang of two processes over gloo here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from multicard.core.facts import MARK
from multicard.launch.supervise import Ended
from multicard.machine import processes
from multicard.machine.all_reduce import Exchange, exchange
from multicard.machine.all_reduce_job import check_sum

PATIENT_S = 1200.0  # on a busy machine two processes take long to import PyTorch
# Put before a rank's own program by Python itself. A rank that nothing ends goes on before PATIENT_S is over.
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


def fact(rank: int, stage: str, **more: Any) -> str:
    return MARK + json.dumps({"rank": rank, "stage": stage, **more})


def exchanged(monkeypatch: pytest.MonkeyPatch, ranks: int, *lines: str) -> Exchange:
    """What is made of these lines of a job."""

    def fake(*arguments: Any) -> Ended:
        for line in lines:
            arguments[4](line)
        return Ended(0, False, 1.0)

    monkeypatch.setattr(processes, "run", fake)
    return exchange("cpu", ranks, [4], 5.0)


def test_the_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md: algbw * 2 (n - 1) / n.
    ended = Exchange(4, sizes={4: [1.0], 8000: [0.002, 0.001, 0.0005]})
    assert ended.bus_bandwidth_bytes_per_s == pytest.approx(8000 / 0.001 * 2 * 3 / 4)
    assert "12.0 MB/s bus bandwidth: 8.00 kB between 4 ranks in 1.00 ms" in ended.words()


@pytest.mark.parametrize(
    ("failed_first", "problem"),
    [
        (True, "rank 1: RuntimeError: link down"),
        (False, "no end within 5 s: of 3 ranks 0 started, 2 connected, 0 measured"),
    ],
)
def test_what_came_first_is_told_a_failure_whose_process_does_not_end_or_a_hang_that_others_fail_of(
    monkeypatch: pytest.MonkeyPatch, failed_first: bool, problem: str
) -> None:
    connected = [fact(rank, "connected") for rank in (0, 1)]
    ends = [fact(1, "failed", error="RuntimeError: link down"), "Timeout (0:00:05)!"]  # by faulthandler, in each rank
    found = exchanged(monkeypatch, 3, *connected, *(ends if failed_first else ends[::-1]))
    assert found.problem == problem


def test_a_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda buffer: buffer.fill_(1 + 2 + 3))
    check_sum(torch.empty(8))
    monkeypatch.setattr(dist, "all_reduce", lambda buffer: buffer.fill_(6)[-1:].fill_(7))
    with pytest.raises(ArithmeticError, match=r"^1 of 8 sums are wrong"):
        check_sum(torch.empty(8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "limit_s", "says"),
    [
        (HANGS, 3.0, "no end within 3 s: of 2 ranks 2 started, 0 connected, 0 measured"),
        (SUMS_WRONGLY, PATIENT_S, "ArithmeticError: 1 of 262144 sums are wrong"),
    ],
)
def test_a_hang_and_a_wrong_sum_are_told_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float, says: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ended = exchange("cpu", 2, [1 << 20], limit_s, start_s=PATIENT_S, seconds=0.05)
    assert ended.problem.endswith(says)
