"""An all-reduce between the ranks of torchrun: `python -m multicard.doctor.all_reduce_job DEVICE BYTES LIMIT_S`.

Each rank prints the stages that it reaches, and the time of one all-reduce on the slowest rank. From the first
connection on, whatever hangs is ended after `LIMIT_S`, in any call of C as well, and in the end of the process group.
"""

import faulthandler
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from multicard.doctor.probe import MARK

MOST, LONG_ENOUGH_S = 20, 1.0  # all-reduces that are timed: as many as fit into that time, but one at least


def main(device: str, size: int, limit_s: float) -> None:
    """Connect the ranks, check a sum, time all-reduces of `size` bytes, check again."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")  # NCCL connects GPUs in the first collective
    faulthandler.dump_traceback_later(limit_s, exit=True)
    report("started")
    check_sum(torch.empty(1, device=device))
    report("connected")
    buffer = torch.zeros(size // 4, device=device)  # of float32
    once = slowest(seconds(buffer, 1), device)
    repeats = max(1, min(MOST, int(LONG_ENOUGH_S / once)))
    took = slowest(seconds(buffer, repeats), device) / repeats
    check_sum(buffer)
    report("done", time_s=took, bytes=4 * buffer.numel(), repeats=repeats)
    dist.destroy_process_group()


def report(stage: str, **facts: Any) -> None:
    """Print a line for the process that started this, in one piece: all ranks write to one pipe, unbuffered."""
    sys.stdout.write(MARK + json.dumps({"rank": int(os.environ["RANK"]), "stage": stage, **facts}) + "\n")
    sys.stdout.flush()


def seconds(buffer: torch.Tensor, repeats: int) -> float:
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
        main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    except Exception as error:
        report("failed", error=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
        raise
