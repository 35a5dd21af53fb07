"""What a measurement counts: operations by hand, the edge that is fastest, and rows despite a fault."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from multicard.core.facts import told
from multicard.machine import device_job
from multicard.machine.device_job import matmul, matmul_operations, measured

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
    facts = [fact for line in capsys.readouterr().out.splitlines() for fact in told(line)[1]]
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
