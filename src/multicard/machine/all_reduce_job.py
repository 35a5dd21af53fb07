"""All-reduces between ranks of torchrun: `python -m multicard.machine.all_reduce_job DEVICE BYTES,… LIMIT_S SECONDS`.

Each rank reports the stages that it reaches, and for each size how long an all-reduce took on the slowest rank.
`LIMIT_S` seconds after the process group was made, a rank that has not exited is ended, even if it hangs in a C
function, or while it destroys the process group.
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

# Number of blocks of all-reduces that are timed for each size. The median of so many values has an exact interval.
BLOCKS = 7
FLOAT32_BYTES = 4


def main(device: str, sizes: Sequence[int], limit_s: float, seconds: float) -> None:
    """Connect the ranks and check a sum; then, for each size, time all-reduces for `seconds` and check their sums."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # NCCL does not connect the GPUs here, but in the first collective: "connected" is reported after that.
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
    """Report the stage that this rank has reached to the process that started the job."""
    print_fact(rank=int(os.environ["RANK"]), stage=stage, **facts)


def measure(buffer: torch.Tensor, seconds: float) -> list[float]:
    """Return the seconds of an all-reduce of `buffer` on the slowest rank: a mean for each of `BLOCKS` blocks.

    All blocks together take about `seconds`; more if so many all-reduces take longer.
    """
    # The first all-reduce of a size is not timed, because it may connect ranks, and allocate memory.
    elapsed_s(buffer, 1)
    single_s = slowest(elapsed_s(buffer, 1), buffer.device)
    repeats = max(1, int(seconds / BLOCKS / single_s))
    return [slowest(elapsed_s(buffer, repeats), buffer.device) / repeats for _ in range(BLOCKS)]


def elapsed_s(buffer: torch.Tensor, repeats: int) -> float:
    """Return the seconds that this rank takes for `repeats` all-reduces, one after another."""
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
    """Return the largest value of all ranks."""
    shared = torch.tensor([value], device=device, dtype=torch.float32)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.item()


def check_sum(buffer: torch.Tensor) -> None:
    """Fill the buffer with the rank's number, from 1 to n, sum it over all ranks, and check the sums.

    Each must be n (n + 1) / 2, which float32 represents exactly. Raises `ArithmeticError` if a sum is wrong.
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
