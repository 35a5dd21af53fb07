"""All-reduces between ranks of torchrun: `python -m multicard.machine.all_reduce_job DEVICE BYTES,… LIMIT_S SECONDS`.

Each rank reports the stages that it reaches, and for each size how long an all-reduce took on the slowest rank. From
the first connection on, whatever hangs is ended after `LIMIT_S`, in any call of C as well, and in the end of the
process group.
"""

import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from multicard.machine.facts import print_fact

# Blocks of all-reduces of each size: the median of as many values has an exact interval.
BLOCKS = 7
FLOAT32_BYTES = 4


def main(device: str, sizes: Sequence[int], limit_s: float, seconds: float) -> None:
    """Connect the ranks, check a sum, then time all-reduces of each size for some `seconds`, and check its sums."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # NCCL connects GPUs in the first collective only.
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    faulthandler.dump_traceback_later(limit_s, exit=True)
    report("started")
    check_sum(torch.empty(1, device=device))
    report("connected")
    for size in sizes:
        buffer = torch.zeros(size // FLOAT32_BYTES, device=device)
        times_s = measure(buffer, seconds)
        check_sum(buffer)
        report("measured", bytes=FLOAT32_BYTES * buffer.numel(), times_s=times_s)
    report("done")
    dist.destroy_process_group()


def report(stage: str, **facts: Any) -> None:
    """Report to the process that started this one which stage this rank has reached."""
    print_fact(rank=int(os.environ["RANK"]), stage=stage, **facts)


def measure(buffer: torch.Tensor, seconds: float) -> list[float]:
    """Return the seconds of an all-reduce of a buffer on the slowest rank: the mean of each of `BLOCKS` blocks."""
    # The first all-reduce of a size may connect ranks, and allocate memory.
    elapsed_s(buffer, 1)
    single_s = slowest(elapsed_s(buffer, 1), buffer.device)
    repeats = max(1, int(seconds / BLOCKS / single_s))
    return [slowest(elapsed_s(buffer, repeats), buffer.device) / repeats for _ in range(BLOCKS)]


def elapsed_s(buffer: torch.Tensor, repeats: int) -> float:
    """Return the seconds of some all-reduces, one after another."""
    dist.barrier()
    _wait_for_device(buffer)
    started = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(buffer)
    _wait_for_device(buffer)
    return time.perf_counter() - started


def _wait_for_device(buffer: torch.Tensor) -> None:
    if buffer.is_cuda:
        torch.cuda.synchronize()


def slowest(value: float, device: torch.device) -> float:
    """Return the largest of all ranks' values."""
    shared = torch.tensor([value], device=device, dtype=torch.float32)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.item()


def check_sum(buffer: torch.Tensor) -> None:
    """Sum the ranks' numbers 1…n in each element, and compare with n (n + 1) / 2, which float32 holds exactly.

    Raises `ArithmeticError` if a sum is wrong.
    """
    ranks = dist.get_world_size()
    buffer.fill_(dist.get_rank() + 1)
    dist.all_reduce(buffer)
    wrong = int((buffer != ranks * (ranks + 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{wrong} of {buffer.numel()} sums are wrong")


if __name__ == "__main__":
    try:
        main(sys.argv[1], [int(size) for size in sys.argv[2].split(",")], float(sys.argv[3]), float(sys.argv[4]))
    except Exception as error:
        report("failed", error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
        raise
