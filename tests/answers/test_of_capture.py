"""What `multicard analyze` answers: sums of a capture's tables, counted by hand."""

from typing import Any

import pytest

from multicard.answers.bottlenecks.of_capture import INSIDE_GRAPHS, answer
from multicard.trace.device_times import SHARES
from multicard.trace.idle import CAUSES
from multicard.trace.tables import ActivityTables

Rows = list[dict[str, Any]]


def line(device: int, scope: str = "capture", start_s: float | None = None, **seconds: Any) -> dict[str, Any]:
    """A row of the table `timeline`; what it does not name is zero, and `calls` names functions by cause."""
    place = {"report": "a", "rank": device, "process": 10 + device, "device": device}
    calls = {f"{cause}_call": function for cause, function in seconds.pop("calls", {}).items()}
    times = dict.fromkeys((*SHARES, *CAUSES), 0.0) | seconds
    row = {f"{name}_s": value for name, value in times.items()}
    where = {"scope": scope, "step": None, "start_s": start_s, "extent": None if scope == "capture" else "device"}
    return place | row | where | calls


def stepping(device: int, starts: list[float], **of_step: Any) -> Rows:
    """Rows of a device whose steps are all alike and follow one another without a pause."""
    together = {name: value if name == "calls" else len(starts) * value for name, value in of_step.items()}
    single = {name: value for name, value in of_step.items() if name != "calls"}
    steps = [line(device, "step", start, **single) | {"step": n} for n, start in enumerate(starts, 1)]
    return [line(device, "steps", starts[0], **together), *steps]


def kernel(device: int, name: str, seconds: float, calls: int) -> dict[str, Any]:
    """A row of the table `kernels`."""
    place = {"report": "a", "process": 10 + device, "device": device}
    return place | {"class": "matrix_multiply", "kernel": name, "total_s": seconds, "calls": calls}


def called(api: str, function: str, seconds: float, calls: int = 1) -> dict[str, Any]:
    """A row of the table `cuda_api`."""
    return {"report": "a", "process": 10, "api": api, "function": function, "total_s": seconds, "calls": calls}


def test_the_answer_says_where_a_step_goes() -> None:
    # Two GPUs, two steps of 100 ms: 70 ms of computing, 20 of communication of which 10 are hidden, and 20 idle while
    # the host launches; on the second GPU 60 ms of computing, and 30 idle.
    rows: Rows = []
    for device, compute, idle in ((0, 0.07, 0.02), (1, 0.06, 0.03)):
        rows += stepping(
            device, [0.0, 0.1], span=0.1, busy=0.1 - idle, compute=compute, communication=0.02, overlapped=0.01,
            exposed_communication=0.01, idle=idle, idle_launching=0.005, idle_between_calls=idle - 0.005,
            calls={"idle_launching": "cudaLaunchKernel"},
        )  # fmt: skip
    of_gpu = {"report": "a", "process": 10, "device": 0}
    found = answer(
        ActivityTables(
            {
                "timeline": rows,
                "kernels": [kernel(0, "gemm", 0.3, 8), kernel(1, "gemm", 0.1, 8), kernel(0, "other", 0.1, 2)],
                "collectives": [of_gpu | {"collective": "all_reduce", "total_s": 0.04, "calls": 2}],
                "memory_operations": [
                    {**of_gpu, "device": device, "operation": operation, "host_memory": memory, "total_s": 0.5}
                    | {"calls": 2, "bytes": 4e9}
                    for device in (0, 1)
                    for operation, memory in (("host_to_device", "pinned"),)
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
        ("compute", "65.0 ms", "60% to 70%", ""),
        ("launch overhead", "25.0 ms", "20% to 30%", ""),
        ("  in launching calls", "5.00 ms", "5.0%", "cudaLaunchKernel"),
        ("  between calls", "20.0 ms", "15% to 25%", ""),
        ("exposed communication", "10.0 ms", "10%", ""),
    ]
    assert found.over == " in 2 steps"
    assert found.kernels == [
        ("200 ms", "80%", "8", "matrix multiply", "gemm"),
        ("100 ms", "20%", "2 (only on GPU 0)", "matrix multiply", "other"),
    ]
    assert found.lines == [
        "Collectives of a GPU in 2 steps: all-reduce 40.0 ms in 2 calls (only on GPU 0)",
        "Copies of a GPU in 2 steps: host to device (pinned) 4.00 GB in 500 ms, 8.00 GB/s",
        "CUDA calls of a process in 2 steps: cudaFree 2.00 ms in 1 call",
    ]


def test_one_step_is_one_step() -> None:
    rows = stepping(0, [0.0], span=0.1, busy=0.08, compute=0.08, idle=0.02, idle_launching=0.02)
    assert answer(ActivityTables({"timeline": rows}, {})).sentence == (
        "1 GPU, 1 step of 100 ms: mostly compute (80% of the step); then launch overhead (20%, 20.0 ms)"
    )


def test_a_step_is_elapsed_time_over_steps_and_its_median_stands_beside_it() -> None:
    # Steps of 8, 8 and 232 ms in turn, from start to start: 248 / 3 ms on average.
    starts = [sum(([0.008, 0.008, 0.232] * 4)[:n]) for n in range(13)]
    single = [line(0, "step", start, span=0.008, busy=0.006, compute=0.006, idle=0.002) for start in starts]
    steps = [row | {"step": n} for n, row in enumerate(single, 1)]
    span, busy = starts[-1] + 0.008, 13 * 0.006
    together = line(
        0, "steps", 0.0, span=span, busy=busy, compute=busy, idle=span - busy, idle_data_loading=span - busy
    )
    found = answer(ActivityTables({"timeline": [together, *steps]}, {}))
    assert found.sentence.startswith(
        "1 GPU, 13 steps of 82.7 ms (median 8.00 ms, quartiles 8.00 ms and 232 ms): mostly data loading ("
    )
    assert ("compute", "6.00 ms") in [row[:2] for row in found.parts]


def test_without_steps_the_answer_is_about_the_time_from_first_to_last_activity() -> None:
    row = line(0, span=0.5, busy=0.1, compute=0.1, idle=0.4, idle_allocating=0.4, calls={"idle_allocating": "cudaFree"})
    rows = {"timeline": [row], "cuda_api": [called("runtime", "cudaFree", 3.0)]}
    found = answer(ActivityTables(rows, {}, gpu_count=4))
    assert found.sentence == (
        "1 GPU in 500 ms from first to last activity, no steps found: mostly memory allocation (80% of the time, in "
        "cudaFree); then compute (20%, 100 ms)"
    )
    # Calls are of all that was recorded, which may be longer than the GPU's activity.
    assert found.lines == [
        "CUDA calls of a process in the whole capture: cudaFree 3.00 s in 1 call",
        "3 of the machine's 4 GPUs ran nothing",
    ]


def test_gpus_that_only_copied_are_not_averaged_with_the_others() -> None:
    at_work = line(0, span=0.1, busy=0.1, compute=0.1)
    copied = [line(device, span=0.1, busy=0.001, memory=0.001, idle=0.099) for device in (1, 2, 3)]
    assert answer(ActivityTables({"timeline": [at_work, *copied]}, {})).sentence == (
        "1 GPU in 100 ms from first to last activity, no steps found: mostly compute (100% of the time); 3 of 4 GPUs "
        "ran no kernel"
    )


def test_graphs_are_busy_time_of_unknown_content() -> None:
    row = line(0, span=0.1, busy=0.09, graphs=0.09, idle=0.01, idle_queued=0.01)
    found = answer(ActivityTables({"timeline": [row]}, {}))
    assert "mostly CUDA graphs (90% of the time); then queued on the GPU (10%, 10.0 ms)" in found.sentence
    assert found.lines == [INSIDE_GRAPHS]


def test_what_is_missing_comes_before_the_answer() -> None:
    row = line(0, span=0.1, busy=0.1, compute=0.1)
    assert answer(ActivityTables({"timeline": [row]}, {}, warnings=("a: half is lost",))).warnings == [
        "a: half is lost"
    ]


DRIVER = "Installed CUDA driver version (13.3) is not supported by this build of Nsight Systems."


@pytest.mark.parametrize(
    ("phases", "calls", "diagnostics", "says", "is_known"),
    [
        ({}, [], (), "cannot tell: no kernels of a GPU were recorded, and no step", False),
        (
            {}, [called("driver", "cuLaunchKernel", 1.0), called("runtime", "cudaMemcpy", 1.0)], (DRIVER,),
            f"cannot tell: 1 kernel was launched, but none recorded on a GPU, and no step: {DRIVER}", False,
        ),
        ({"forward": [0.1, 0.3]}, [], (), "no kernels of a GPU were recorded; ranges: forward 200 ms", True),
        (
            {"step": [0.5, 0.7], "forward": [0.1, 0.2], "backward": [0.3, 0.3]}, [], (),
            "no kernels of a GPU were recorded; 2 steps of 600 ms: backward 300 ms, forward 150 ms", True,
        ),
    ],
)  # fmt: skip
def test_without_a_gpu_the_answer_is_about_ranges_and_says_why(
    phases: dict[str, list[float]], calls: Rows, diagnostics: tuple[str, ...], says: str, is_known: bool
) -> None:
    rows = [
        {"report": "t", "process": 0, "phase": phase, "duration_s": each}
        for phase, seconds in phases.items()
        for each in seconds
    ]
    tables = {"phases": rows} if rows else {}
    found = answer(ActivityTables(tables | {"cuda_api": calls}, {}, diagnostics=diagnostics))
    assert (found.sentence, found.is_known) == (says, is_known)


@pytest.mark.parametrize(
    ("of_ranks", "says"),
    [((5, 5), "2 ranks × 5 steps of 100 ms"), ((5, 4), "9 steps in 2 ranks of 100 ms"), ((5,), "5 steps of 100 ms")],
)
def test_steps_without_a_gpu_are_counted_by_rank(of_ranks: tuple[int, ...], says: str) -> None:
    """A step that two ranks make together is one step of the job."""
    rows = [
        {"report": f"rank{rank}", "process": 0, "phase": "step", "duration_s": 0.1}
        for rank, steps in enumerate(of_ranks)
        for _ in range(steps)
    ]
    assert answer(ActivityTables({"phases": rows}, {})).sentence == f"no kernels of a GPU were recorded; {says}"
