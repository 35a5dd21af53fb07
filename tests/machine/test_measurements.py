"""What a measurement of a machine counts, and all-reduces between devices of a node: what ranks tell, and a hang."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from multicard.launch.supervise import Ended
from multicard.machine import device_job, processes
from multicard.machine.all_reduce import Exchange, exchange
from multicard.machine.all_reduce_job import check_sum
from multicard.machine.device_job import matmul, matmul_operations, measured
from multicard.machine.facts import MARK, parse_line

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

    def fake(*arguments: Any, **_: Any) -> Ended:
        for line in lines:
            arguments[4](line)
        return Ended(0, False, 1.0)

    monkeypatch.setattr(processes, "run", fake)
    return exchange("cpu", ranks, [4], 5.0)


def test_the_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md: algbw * 2 (n - 1) / n.
    ended = Exchange(4, times_s={4: [1.0], 8000: [0.002, 0.001, 0.0005]})
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


CPU = torch.device("cpu")


def test_operations_of_a_product_are_those_that_pytorch_counts() -> None:
    a, b = (torch.empty(96, 96, device="meta") for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        a @ b
    assert matmul_operations(96) == counter.get_total_flops() == 2 * 96 * 96 * 96


def test_the_edge_with_the_highest_rate_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    # Seconds of edges 256, 512, 1024: 10, 40 and 20 GFLOP/s. The next would take more than a quarter of the time asked.
    seconds = {256: 2 * 256**3 / 10e9, 512: 2 * 512**3 / 40e9, 1024: 2 * 1024**3 / 20e9}
    monkeypatch.setattr(device_job, "product", lambda device, dtype, edge: edge)
    monkeypatch.setattr(device_job, "least_s", lambda edge, threads: seconds[edge])
    monkeypatch.setattr(device_job, "repeats_s", lambda edge, *_: calls.append(edge) or [seconds[edge]])
    [row] = matmul(CPU, "fp32", 4 * 8 * seconds[1024] * 0.99, 1)
    assert (row["edge"], row["operations"], row["times_s"], calls) == (512, 2 * 512**3, [seconds[512]], [512])


def test_what_a_device_cannot_do_is_told_and_the_rest_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Iterator[dict[str, Any]]:
        yield {"measure": "matmul"}
        raise RuntimeError("CUDA out of memory.\nTried to allocate 1 GiB")

    measured("matmul fp64", fails(), precision="fp64")
    facts = [fact for line in capsys.readouterr().out.splitlines() for fact in parse_line(line).facts]
    assert facts == [
        {"row": {"precision": "fp64", "measure": "matmul"}},
        {"problem": "matmul fp64: CUDA out of memory. Tried to allocate 1 GiB"},
    ]


def test_a_repeat_is_the_mean_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def call() -> None:
        clock[0] += 0.25

    monkeypatch.setattr(device_job, "Timer", partial(Timer, timer=lambda: clock[0]))
    assert device_job.repeats_s(call, 1.0) == pytest.approx([0.25] * 4)
    # Of a call that takes longer than four times what was asked for there are as many.
    assert device_job.repeats_s(call, 0.01) == pytest.approx([0.25] * device_job.FEWEST)
    assert device_job.least_s(call) == pytest.approx(0.25)
