"""All-reduces between ranks of torchrun: `python -m multicard.machine.all_reduce_job DEVICE BYTES,… LIMIT_S SECONDS`.

Each rank tells the stages that it reaches, and for each size how long an all-reduce took on the slowest rank. From the
first connection on, whatever hangs is ended after `LIMIT_S`, in any call of C as well, and in the end of the process
group.
"""

import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from multicard.core.facts import tell

BLOCKS = 7  # of all-reduces of a size: the median of as many has an exact interval


def main(device: str, sizes: Sequence[int], limit_s: float, seconds: float) -> None:
    """Connect the ranks, check a sum, then time all-reduces of each size for some `seconds`, and check its sums."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")  # NCCL connects GPUs in the first collective
    faulthandler.dump_traceback_later(limit_s, exit=True)
    report("started")
    check_sum(torch.empty(1, device=device))
    report("connected")
    for size in sizes:
        buffer = torch.zeros(size // 4, device=device)  # of float32
        elapsed_s(buffer, 1)  # the first of a size may connect, and allocate
        once = slowest(elapsed_s(buffer, 1), device)
        repeats = max(1, int(seconds / BLOCKS / once))
        times = [slowest(elapsed_s(buffer, repeats), device) / repeats for _ in range(BLOCKS)]
        check_sum(buffer)
        report("measured", bytes=4 * buffer.numel(), times_s=times)
    report("done")
    dist.destroy_process_group()


def report(stage: str, **facts: Any) -> None:
    """Tell the process that started this how far this rank is."""
    tell(rank=int(os.environ["RANK"]), stage=stage, **facts)


def elapsed_s(buffer: torch.Tensor, repeats: int) -> float:
    """Time of that many all-reduces, of which those on a GPU wait for each other."""
    wait = torch.cuda.synchronize if buffer.is_cuda else (lambda: None)
    dist.barrier()
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(buffer)
    wait()
    return time.perf_counter() - started


def slowest(value: float, device: str) -> float:
    """The largest of all ranks' values."""
    shared = torch.tensor([value], device=device, dtype=torch.float32)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.item()


def check_sum(buffer: torch.Tensor) -> None:
    """Sum the ranks' numbers 1…n: float32 holds n (n + 1) / 2 exactly."""
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
