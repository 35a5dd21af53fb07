"""What `multicard analyze` answers: sums of a capture's tables, counted by hand."""

from typing import Any

import pytest

from multicard.analysis.bottlenecks.of_capture import answer
from multicard.trace.tables import ActivityTables

TIMES = (
    "span_s", "busy_s", "compute_s", "communication_s", "memory_s", "overlapped_s", "exposed_communication_s", "idle_s",
    "idle_host_bound_s", "idle_host_elsewhere_s", "idle_collective_s",
)  # fmt: skip


def line(device: int, scope: str, start_s: float | None, *times: float, step: int | None = None) -> dict[str, Any]:
    """A row of the table `timeline`."""
    place = {"report": "a", "rank": device, "process": 10 + device, "device": device}
    return place | dict(zip(TIMES, times, strict=True)) | {
        "scope": scope, "step": step, "start_s": start_s, "extent": "device",
    }  # fmt: skip


def kernel(device: int, name: str, seconds: float, calls: int) -> dict[str, Any]:
    """A row of the table `kernels`."""
    return {"device": device, "class": "matrix_multiply", "kernel": name, "total_s": seconds, "calls": calls}


def called(api: str, function: str, seconds: float) -> dict[str, Any]:
    """A row of the table `cuda_api`."""
    return {"report": "a", "process": 10, "api": api, "function": function, "total_s": seconds, "calls": 1}


def test_the_answer_says_where_a_step_goes() -> None:
    # Two GPUs, two steps of 100 ms: 70 ms of computing, 20 of communication of which 10 are hidden, 20 idle since the
    # host launches; on the second GPU 60 ms of computing, and 10 ms more idle.
    rows = []
    for device, compute, idle in ((0, 0.07, 0.02), (1, 0.06, 0.03)):
        of_step = (0.1, 0.1 - idle, compute, 0.02, 0.0, 0.01, 0.01, idle, idle, 0.0, 0.0)
        rows.append(line(device, "steps", 0.0, *(2 * each for each in of_step)))
        rows += [line(device, "step", at * 0.1, *of_step, step=at) for at in range(2)]
    found = answer(
        ActivityTables(
            {
                "timeline": rows,
                "kernels": [kernel(0, "gemm", 0.3, 8), kernel(1, "gemm", 0.1, 8), kernel(0, "other", 0.1, 2)],
                "collectives": [{"collective": "all_reduce", "total_s": 0.08, "calls": 4}],
                "memory_operations": [
                    {"operation": "host_to_device", "host_memory": "pinned", "total_s": 0.5, "calls": 2, "bytes": 4e9}
                ],
                "cuda_api": [called("runtime", "cudaFree", 2e-3), called("backtrace", "cudaFree", 9.0)],
            },
            {},
        )
    )
    assert found.sentence == (
        "2 GPUs, 2 steps of 100 ms: mostly compute (65% of the step); then launch overhead (25%, 25.0 ms)"
    )
    assert found.parts == [
        ("compute", "65.0 ms", "60% to 70%"),
        ("launch overhead", "25.0 ms", "20% to 30%"),
        ("exposed communication", "10.0 ms", "10%"),
    ]
    assert found.over == " in 2 steps"
    assert found.kernels == [
        ("200 ms", "80%", "8", "matrix multiply", "gemm"),
        ("50.0 ms", "20%", "1", "matrix multiply", "other"),
    ]
    assert found.lines == [
        "Collectives of a GPU in 2 steps: all-reduce 40.0 ms in 2 calls",
        "Copies of a GPU in 2 steps: host to device (pinned) 2.00 GB in 250 ms, 8.00 GB/s",
        "CUDA calls of a process in 2 steps: cudaFree 2.00 ms in 1 call",
    ]


def test_without_steps_the_answer_is_about_the_capture() -> None:
    row = line(0, "capture", None, 0.5, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.4, 0.4, 0.0, 0.0)
    found = answer(ActivityTables({"timeline": [row | {"extent": None}]}, {}))
    assert found.sentence == (
        "1 GPU in 500 ms, no steps found: mostly launch overhead (80% of the capture); then compute (20%, 100 ms)"
    )


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ({}, "cannot tell: no kernels of a GPU were recorded, and no step"),
        ({"forward": [0.1, 0.3]}, "no kernels of a GPU were recorded; ranges: forward 200 ms"),
        (
            {"step": [0.5, 0.7], "forward": [0.1, 0.2], "backward": [0.3, 0.3]},
            "no kernels of a GPU were recorded; 2 steps of 600 ms: backward 300 ms, forward 150 ms",
        ),
    ],
)
def test_without_a_gpu_the_answer_is_about_ranges(phases: dict[str, list[float]], says: str) -> None:
    rows = [{"phase": phase, "duration_s": each} for phase, seconds in phases.items() for each in seconds]
    assert answer(ActivityTables({"phases": rows} if rows else {}, {})).sentence == says
