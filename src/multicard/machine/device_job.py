"""Rates of one device alone: `python -m multicard.machine.device_job DEVICE SECONDS`.

It reports the machine, then a row for each measurement: what is measured, the `operations` of one call, counted by
hand, and the seconds of a call for each block of calls. On a GPU it is the first that CUDA shows; of a CPU with one
thread and with as many as there are usable CPUs.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils.benchmark import Timer

from multicard.core.system import usable_cpus
from multicard.machine.facts import print_fact
from multicard.record.environment import hardware, host, versions
from multicard.record.visible import identities
from multicard.workloads.vision.precision import allow_tf32, choose_fp32

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
# Edges of the square matrices.
SMALLEST, LARGEST = 256, 16384
# The search for the fastest edge ends once as many calls would take a quarter of the time of the measurement, and a
# matrix takes no more than a quarter of the free memory.
CALLS_PER_EDGE = 8
MATRICES = 3
LARGEST_PART = 1 / 4

# At least as many blocks of calls are timed, until interquartile range over median falls below the spread, and for at
# most `LONGEST` times the seconds that were asked for.
FEWEST = 4
SPREAD = 0.05
LONGEST = 4
# Calls of which the fastest is the rough time.
ROUGH_CALLS = 3


def main(device_type: str, seconds: float) -> None:
    """Measure everything, for about `seconds` each."""
    is_gpu = device_type == "cuda"
    device = torch.device(device_type, 0) if is_gpu else torch.device(device_type)
    print_fact(machine={"host": host(), "hardware": hardware(), "versions": versions()})
    started = time.monotonic()
    for threads in [1] if is_gpu else sorted({1, usable_cpus()}):
        for precision in precisions(device):
            rows = matmul(device, precision, seconds, threads)
            measured(f"matmul {precision}", rows, precision=precision, threads=threads)
    print_fact(rank={"gpus": identities([device]), "windows": [[started, time.monotonic()]]})
    print_fact(done=True)


def measured(name: str, rows: Iterator[dict[str, Any]], **columns: Any) -> None:
    """Report the rows of one measurement, each with `columns`, or why there are none, and let the others go on."""
    try:
        for row in rows:
            print_fact(row=columns | row)
    except RuntimeError as error:
        # The device has too little memory, or cannot multiply numbers of the type.
        print_fact(problem=f"{name}: {' '.join(str(error).split())[:300]}")


def precisions(device: torch.device) -> list[str]:
    """Return the precisions that a device has; TF32 is the fp32 of tensor cores."""
    if device.type != "cuda":
        return ["fp64", "fp32", "bf16", "fp16"]
    lacking = set()
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        lacking.add("bf16")
    if not torch.cuda.is_tf32_supported():
        lacking.add("tf32")
    return [name for name in DTYPES if name not in lacking]


def matmul(device: torch.device, precision: str, seconds: float, threads: int) -> Iterator[dict[str, Any]]:
    """Yield the row of a multiplication of two square matrices of the edge, a power of two, that is fastest.

    Values are random: a GPU takes less power for zeros, and clocks higher.
    """
    dtype = DTYPES[precision]
    with fp32_as(precision):
        edge = _fastest_edge(device, dtype, seconds, threads)
        times = repeats_s(product(device, dtype, edge), seconds, threads)
    yield {"measure": "matmul", "edge": edge, "operations": matmul_operations(edge), "times_s": times}


def _fastest_edge(device: torch.device, dtype: torch.dtype, seconds: float, threads: int) -> int:
    """Return the edge with the highest rate.

    The edge doubles until calls would take more than a quarter of `seconds`, or matrices that of the free memory.
    """
    is_gpu = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] if is_gpu else psutil.virtual_memory().available
    longest_call_s = LARGEST_PART * seconds / CALLS_PER_EDGE
    rates: dict[int, float] = {}
    edge = SMALLEST
    while edge <= LARGEST:
        call = product(device, dtype, edge)
        call_s = least_s(call, threads)
        if call_s > longest_call_s:
            # Something else may have had the CPUs meanwhile.
            call_s = min(call_s, least_s(call, threads))
        rates[edge] = matmul_operations(edge) / call_s
        edge *= 2
        if call_s > longest_call_s or MATRICES * edge**2 * dtype.itemsize > LARGEST_PART * free_bytes:
            break
    return max(rates, key=rates.__getitem__)


def matmul_operations(edge: int) -> int:
    """Return 2 m n k for m = n = k: a multiplication and an addition for each of k terms of each of m n sums."""
    return 2 * edge**3


def product(device: torch.device, dtype: torch.dtype, edge: int) -> Callable[[], torch.Tensor]:
    """Return a call that multiplies two matrices."""
    a = torch.randn(edge, edge, device=device).to(dtype)
    b = torch.randn(edge, edge, device=device).to(dtype)
    out = torch.empty(edge, edge, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def fp32_as(precision: str) -> Iterator[None]:
    """Let a GPU multiply fp32 as TF32 for the precision "tf32", and forbid it for any other, during the block."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    choose_fp32("on" if precision == "tf32" else "off")
    try:
        yield
    finally:
        allow_tf32(*before)


def repeats_s(call: Callable[[], Any], seconds: float, threads: int = 1) -> list[float]:
    """Return the seconds of a call: the mean of each of `FEWEST` blocks of calls or more.

    PyTorch's timer waits for the GPU. There are as many blocks as take `seconds`, more until they agree (`SPREAD`), up
    to `LONGEST` times as long: torch.utils.benchmark's `adaptive_autorange`. The calls before them, from which it finds
    the length of a block, are dropped.
    """
    timer = _timer(call, threads)
    measurement = timer.adaptive_autorange(SPREAD, min_run_time=seconds, max_run_time=LONGEST * seconds)
    times = measurement.times
    # A call may take longer than was asked for.
    while len(times) < FEWEST:
        times += timer.timeit(measurement.number_per_run).times
    return times


def least_s(call: Callable[[], Any], threads: int = 1) -> float:
    """Return the seconds of the fastest of a few calls: a rough time that hardly depends on what else runs."""
    timer = _timer(call, threads)
    return min(timer.timeit(1).median for _ in range(ROUGH_CALLS))


def _timer(call: Callable[[], Any], threads: int) -> Timer:
    return Timer("call()", globals={"call": call}, num_threads=threads)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
