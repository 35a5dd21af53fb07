"""Measure matrix multiplications on one device: `python -m multicard.machine.device_job DEVICE SECONDS`.

It reports the machine, then a row for each precision: the `operations` of one call, which follow from the size, and the
seconds of a call for each block of calls. With DEVICE cuda it measures the first GPU that CUDA shows. With cpu it
measures each precision twice: with one thread, and with as many threads as there are usable CPUs.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psutil
import torch
from torch.utils.benchmark import Timer

from multicard.core.system import usable_cpus
from multicard.core.values import JsonObject
from multicard.machine.facts import print_fact
from multicard.observe.record.environment import hardware, host, versions
from multicard.observe.record.visible import identities
from multicard.programs.tf32 import allow_tf32, choose_fp32

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
# The smallest and the largest edge of the square matrices: their number of rows, and of columns.
SMALLEST, LARGEST = 256, 16384
# The search for the fastest edge ends before an edge whose matrices (`MATRICES` of them) would take more than
# `LARGEST_PART` of the free memory. It also ends after an edge at which `CALLS_PER_EDGE` calls would take more than
# `LARGEST_PART` of the seconds of a measurement.
CALLS_PER_EDGE = 8
MATRICES = 3
LARGEST_PART = 1 / 4

# Blocks of calls are timed until there are at least `FEWEST`, and their interquartile range divided by their median is
# below `SPREAD`; but the time is at most about `LONGEST` times the seconds that were asked for.
FEWEST = 4
SPREAD = 0.05
LONGEST = 4
# The rough time of a call is that of the fastest of so many calls.
ROUGH_CALLS = 3


def main(device_type: str, seconds: float) -> None:
    """Measure each precision for about `seconds`, on a CPU with each number of threads."""
    is_gpu = device_type == "cuda"
    device = torch.device(device_type, 0) if is_gpu else torch.device(device_type)
    print_fact(machine={"host": asdict(host()), "hardware": asdict(hardware()), "versions": versions()})
    started = time.monotonic()
    for threads in [1] if is_gpu else sorted({1, usable_cpus()}):
        for precision in precisions(device):
            rows = matmul(device, precision, seconds, threads)
            measured(f"matmul {precision}", rows, precision=precision, threads=threads)
    print_fact(rank={"gpus": identities([device]), "windows": [[started, time.monotonic()]]})
    print_fact(done=True)


def measured(name: str, rows: Iterator[JsonObject], **columns: Any) -> None:
    """Report the rows of one measurement, each with `columns`; or report the problem, if the device cannot do it.

    Such a problem raises no error, so that other measurements follow.
    """
    try:
        for row in rows:
            print_fact(row=columns | row)
    except RuntimeError as error:
        # The device has too little memory, or cannot multiply matrices of this type.
        print_fact(problem=f"{name}: {' '.join(str(error).split())[:300]}")


def precisions(device: torch.device) -> list[str]:
    """Return the precisions to measure on a device.

    A GPU without support for bf16 or TF32 leaves these out. TF32 is the fp32 of tensor cores, which no CPU has.
    """
    if device.type != "cuda":
        return ["fp64", "fp32", "bf16", "fp16"]
    lacking = set()
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        lacking.add("bf16")
    if not torch.cuda.is_tf32_supported():
        lacking.add("tf32")
    return [name for name in DTYPES if name not in lacking]


def matmul(device: torch.device, precision: str, seconds: float, threads: int) -> Iterator[JsonObject]:
    """Yield one row: the times of a product of two square matrices, with the edge that gives the highest rate."""
    dtype = DTYPES[precision]
    with fp32_as(precision):
        edge = _fastest_edge(device, dtype, seconds, threads)
        times = repeats_s(product(device, dtype, edge), seconds, threads)
    yield {"measure": "matmul", "edge": edge, "operations": matmul_operations(edge), "times_s": times}


def _fastest_edge(device: torch.device, dtype: torch.dtype, seconds: float, threads: int) -> int:
    """Return the edge, 256 or a power of two above it, with the highest rate in operations per second.

    For where the search ends, see `CALLS_PER_EDGE`.
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
            # Another process may have used the CPUs meanwhile, so the calls are timed once more.
            call_s = min(call_s, least_s(call, threads))
        rates[edge] = matmul_operations(edge) / call_s
        edge *= 2
        if call_s > longest_call_s or MATRICES * edge**2 * dtype.itemsize > LARGEST_PART * free_bytes:
            break
    return max(rates, key=rates.__getitem__)


def matmul_operations(edge: int) -> int:
    """Return the floating-point operations of a multiplication of matrices: 2 · edge³.

    The result has edge² sums of edge terms. Each term costs a multiplication and an addition.
    """
    return 2 * edge**3


def product(device: torch.device, dtype: torch.dtype, edge: int) -> Callable[[], torch.Tensor]:
    """Return a function that multiplies two square matrices.

    Their values are random, because a GPU takes less power for zeros, and then runs at higher clocks.
    """
    a = torch.randn(edge, edge, device=device).to(dtype)
    b = torch.randn(edge, edge, device=device).to(dtype)
    out = torch.empty(edge, edge, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def fp32_as(precision: str) -> Iterator[None]:
    """While the block runs, allow a GPU to use TF32 for fp32 if `precision` is "tf32", and forbid it otherwise."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    choose_fp32("on" if precision == "tf32" else "off")
    try:
        yield
    finally:
        allow_tf32(*before)


def repeats_s(call: Callable[[], Any], seconds: float, threads: int = 1) -> list[float]:
    """Return the seconds of a call: a mean for each block of calls, of which there are at least `FEWEST`.

    torch.utils.benchmark's `adaptive_autorange` times blocks for `seconds`, and longer if they do not agree (`SPREAD`),
    up to `LONGEST` times as long. Its timer waits for the GPU. It first finds out how many calls make a block; the
    times of these calls are not returned.
    """
    timer = _timer(call, threads)
    measurement = timer.adaptive_autorange(SPREAD, min_run_time=seconds, max_run_time=LONGEST * seconds)
    times = measurement.times
    # If a single call takes very long, the time was over before there were enough blocks.
    while len(times) < FEWEST:
        times += timer.timeit(measurement.number_per_run).times
    return times


def least_s(call: Callable[[], Any], threads: int = 1) -> float:
    """Return the seconds of the fastest of a few calls: a rough time that other processes hardly change."""
    timer = _timer(call, threads)
    return min(timer.timeit(1).median for _ in range(ROUGH_CALLS))


def _timer(call: Callable[[], Any], threads: int) -> Timer:
    return Timer("call()", globals={"call": call}, num_threads=threads)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
