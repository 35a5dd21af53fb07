"""Synthetic traces of training without marks of multicard's, whose steps are known."""

import json
from collections.abc import Sequence
from itertools import accumulate, zip_longest
from pathlib import Path

from captures import MARKER, KernelTimes, Lanes, Process, make_trace
from synthetic import PID

GEMM = "ampere_sgemm_128x64_nn"
UPDATE = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
LANES: Lanes = {ALL_REDUCE: (20, MARKER + 1)}  # a stream of its own, launched by the thread of the backward pass
LAG = 3.0  # milliseconds that the device runs behind the host

Kernels = Sequence[tuple[float, str]]  # of an iteration: milliseconds from its beginning to the launch, and the name
SIMPLE: Kernels = ((1.0, GEMM), (2.0, GEMM), (3.0, ALL_REDUCE), (4.0, UPDATE), (4.5, UPDATE))


def work(lengths: Sequence[float], kernels: Kernels = SIMPLE, begin: float = 0.0) -> list[KernelTimes]:
    """Iterations of these lengths in milliseconds; each kernel starts `LAG` after its launch and lasts 0.4 ms."""
    begins = list(accumulate(lengths, initial=begin))[: len(lengths)]
    times = [(begin + at, name) for begin in begins for at, name in kernels]
    return [(call, call + LAG, call + LAG + 0.4, name) for call, name in times]


def trace(
    path: Path,
    *lengths: Sequence[float],
    kernels: Kernels = SIMPLE,
    calls: bool = True,
    ranges: Sequence[tuple[float, float, str]] = (),
    begins: Sequence[float] = (),
) -> Path:
    """Write a trace of one process per list of lengths: `.sqlite`, or `.json` of one.

    `ranges` (start, end in milliseconds, name) are annotations, in `.json` only; `begins` are the milliseconds at which
    the processes begin, by default all at 0.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    processes = [
        Process(kernels=work(each, kernels, begin)) for each, begin in zip_longest(lengths, begins, fillvalue=0.0)
    ]
    make_trace(path, *processes, calls=calls, lanes=LANES)
    if ranges:
        document = json.loads(path.read_text())
        shape = {"ph": "X", "cat": "user_annotation", "pid": PID, "tid": MARKER}
        document["traceEvents"] += [
            shape | {"name": name, "ts": start * 1e3, "dur": (end - start) * 1e3} for start, end, name in ranges
        ]
        path.write_text(json.dumps(document))
    return path
