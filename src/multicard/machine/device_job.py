"""Rates of one device alone: `python -m multicard.machine.device_job DEVICE SECONDS`.

It tells what the machine is, then a row for each measurement: what it is of, the `operations` of one call, counted by
hand, and the seconds of a call for each block of calls. On a GPU it is the first that CUDA shows; of a CPU
with one thread and with as many as there are usable CPUs.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils.benchmark import Timer

from multicard.core.facts import tell
from multicard.core.system import usable_cpus
from multicard.record.environment import hardware, host, versions
from multicard.record.visible import identities
from multicard.workloads.vision.precision import allow_tf32, choose_fp32

DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip
SMALLEST, LARGEST = 256, 16384  # edge of the square matrices

FEWEST = 4  # blocks of calls
SPREAD = 0.05  # interquartile range over median, below which they agree
LONGEST = 4  # times as long as asked for, after which a call that stays unsteady is left
TRIED = 3


def main(kind: str, seconds: float) -> None:
    """Measure everything, for about `seconds` each."""
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    tell(machine={"host": host(), "hardware": hardware(), "versions": versions()})
    began = time.monotonic()
    for threads in [1] if kind == "cuda" else sorted({1, usable_cpus()}):
        for precision in precisions(device):
            rows = matmul(device, precision, seconds, threads)
            measured(f"matmul {precision}", rows, precision=precision, threads=threads)
    tell(rank={"gpus": identities([device]), "windows": [[began, time.monotonic()]]})
    tell(done=True)


def measured(what: str, rows: Iterator[dict[str, Any]], **of: Any) -> None:
    """Tell the rows of one kind of measurement, or why there are none: the others go on."""
    try:
        for row in rows:
            tell(row=of | row)
    except RuntimeError as error:  # out of memory, or a type that the device cannot multiply
        tell(problem=f"{what}: {' '.join(str(error).split())[:300]}")


def precisions(device: torch.device) -> list[str]:
    """Those that the device has; TF32 is the fp32 of tensor cores."""
    if device.type != "cuda":
        return ["fp64", "fp32", "bf16", "fp16"]
    lacking = set() if torch.cuda.is_bf16_supported(including_emulation=False) else {"bf16"}
    lacking |= set() if torch.cuda.is_tf32_supported() else {"tf32"}
    return [name for name in DTYPES if name not in lacking]


def matmul(device: torch.device, precision: str, seconds: float, threads: int) -> Iterator[dict[str, Any]]:
    """Multiply two square matrices of the edge, of powers of two, that is fastest.

    The edge doubles until a call would take more than a quarter of `seconds`, or three matrices of the free memory.
    Values are random: a GPU takes less power for zeros, and clocks higher.
    """
    dtype = DTYPES[precision]
    rates: dict[int, float] = {}
    edge = SMALLEST
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    with fp32_as(precision):
        while True:
            call = product(device, dtype, edge)
            took = least_s(call, threads)
            if 8 * took > seconds / 4:  # as where something else had the CPUs
                took = min(took, least_s(call, threads))
            rates[edge] = matmul_operations(edge) / took
            edge *= 2
            if edge > LARGEST or 8 * took > seconds / 4 or 3 * edge**2 * dtype.itemsize > free / 4:
                break
        edge = max(rates, key=rates.__getitem__)
        times = repeats_s(product(device, dtype, edge), seconds, threads)
    yield {"measure": "matmul", "edge": edge, "operations": matmul_operations(edge), "times_s": times}


def matmul_operations(edge: int) -> int:
    """2 m n k: a multiplication and an addition for each of k terms of each of m n sums."""
    return 2 * edge**3


def product(device: torch.device, dtype: torch.dtype, edge: int) -> Callable[[], torch.Tensor]:
    """A call that multiplies two matrices."""
    a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    out = torch.empty(edge, edge, device=device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


@contextmanager
def fp32_as(precision: str) -> Iterator[None]:
    """Let a GPU multiply fp32 as TF32, or forbid it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    choose_fp32("on" if precision == "tf32" else "off")
    try:
        yield
    finally:
        allow_tf32(*before)


def repeats_s(call: Callable[[], Any], seconds: float, threads: int = 1) -> list[float]:
    """Seconds of a call, by PyTorch's timer, which waits for the GPU: the mean of each of `FEWEST` blocks or more.

    As many as take `seconds`; more until they agree (`SPREAD`), up to `LONGEST` times as long: torch.utils.benchmark's
    `adaptive_autorange`. Calls before them, from which it finds the length of a block, are dropped.
    """
    timer = _timer(call, threads)
    found = timer.adaptive_autorange(SPREAD, min_run_time=seconds, max_run_time=LONGEST * seconds)
    times = found.times
    while len(times) < FEWEST:  # of a call that takes longer than was asked for
        times += timer.timeit(found.number_per_run).times
    return times


def least_s(call: Callable[[], Any], threads: int = 1) -> float:
    """Seconds of the fastest of a few calls: a rough time that hardly depends on what else runs."""
    timer = _timer(call, threads)
    return min(timer.timeit(1).median for _ in range(TRIED))


def _timer(call: Callable[[], Any], threads: int) -> Timer:
    return Timer("call()", globals={"call": call}, num_threads=threads)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
