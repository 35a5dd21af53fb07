"""Causes of lost time on GPUs: of captures and tables whose sums and gains follow by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import multicard
from captures import CallTimes, KernelTimes, Process, make_trace
from factories import Row, make_results, recommendations, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.results.breakdown import StepPart
from multicard.results.results import Results
from multicard.trace.device_times import SHARES
from multicard.trace.idle import CAUSES

STEPS = 4
STEP_MS = 20.0


def causes_in(
    folder: Path,
    kernels: Callable[[float], list[KernelTimes]],
    calls: Callable[[float], list[CallTimes]] = lambda start: [],
    has_steps: bool = True,
    suffix: str = ".json",
) -> list[Diagnosis]:
    """The causes in a capture of equal steps; `kernels` and `calls`: those of the step that begins at a time in ms.

    The last kernel of a step ends with it, so a step of the GPU is as long as one of the host.
    """
    starts = [step * STEP_MS for step in range(STEPS)]
    process = Process(
        steps=[(start, start + STEP_MS) for start in starts] if has_steps else [],
        kernels=[kernel for start in starts for kernel in kernels(start)],
        others=[call for start in starts for call in calls(start)],
    )
    path = make_trace(folder / f"trace{suffix}", process)
    return multicard.read_trace(path, scope="steps").answer().causes


@pytest.mark.parametrize("suffix", [".json", ".sqlite"])
def test_launching_is_told_with_the_number_and_the_length_of_kernels(suffix: str, tmp_path: Path) -> None:
    # Of each 2 ms a GPU computes for 0.5: 5 of 20 ms. Pauses of the host of a millisecond or more are no launching.
    [found] = [
        cause for cause in causes_in(tmp_path, one_by_one_quickly, suffix=suffix) if cause.part == StepPart.LAUNCHES
    ]
    assert found.share == pytest.approx(0.6, abs=0.03)
    assert "while the host launches work: 20 kernels a step, of 400 µs on average" in found.evidence
    assert found.gain == pytest.approx(2.5, rel=0.1)
    assert "waits for the GPU" not in found.evidence


def one_by_one_quickly(start: float) -> list[KernelTimes]:
    """Twenty kernels of 0.4 ms, one each millisecond, launched just before they begin; the last one ends the step."""
    ends = [start + number for number in range(1, 21)]
    return [(end - 0.5, end - 0.4, end, "relu") for end in ends]


def test_waits_for_values_are_counted_beside_launches(tmp_path: Path) -> None:
    def waits(start: float) -> list[CallTimes]:
        return [(start + number + 0.02, start + number + 0.03, "cudaStreamSynchronize") for number in (3, 6, 9)]

    [found] = [cause for cause in causes_in(tmp_path, one_by_one_quickly, waits) if cause.part == StepPart.LAUNCHES]
    assert "; it also waits for the GPU, in 3 cudaStreamSynchronize a step" in found.evidence
    assert "`.item()`" in found.remedy


def test_waiting_of_the_host_is_told_with_its_calls(tmp_path: Path) -> None:
    # The kernel runs for 10 of 20 ms. The host waits from 0.5 ms before its end until 8 ms after.
    def kernels(start: float) -> list[KernelTimes]:
        return [(start, start + 0.1, start + 10.1, "gemm"), (start + 19.8, start + 19.9, start + 20, "gemm")]

    def waits(start: float) -> list[CallTimes]:
        return [(start + 9.5, start + 18.1, "cudaStreamSynchronize")]

    [found] = [cause for cause in causes_in(tmp_path, kernels, waits) if cause.part == StepPart.SYNCHRONIZING]
    assert found.share == pytest.approx(8 / 20, abs=0.01)
    assert "is still in a synchronization or a blocking copy: 1 cudaStreamSynchronize a step" in found.evidence
    assert found.gain == pytest.approx(20 / 12, rel=0.02)


@pytest.mark.parametrize(
    ("function", "remedy"), [("cudaFree", "empty_cache"), ("cudaMalloc", "empty_cache"), ("cudaHostAlloc", "pinned")]
)
def test_allocations_are_told_by_function(function: str, remedy: str, tmp_path: Path) -> None:
    def kernels(start: float) -> list[KernelTimes]:
        return [(start + 9.8, start + 9.9, start + 20, "gemm")]

    def allocations(start: float) -> list[CallTimes]:
        return [(start + 1, start + 5, function), (start + 5, start + 9, function)]

    [found] = [cause for cause in causes_in(tmp_path, kernels, allocations) if cause.part == StepPart.ALLOCATING]
    assert found.share == pytest.approx(8 / 20, abs=0.01)
    assert f"2 {function} a step" in found.evidence and remedy in found.remedy


def test_few_allocations_in_a_capture_without_steps_may_be_those_of_a_start(tmp_path: Path) -> None:
    def kernels(start: float) -> list[KernelTimes]:
        return [(start + 9.8, start + 9.9, start + 20, "gemm")]

    def allocations(start: float) -> list[CallTimes]:
        return [(start + 1, start + 9, "cudaMalloc")]

    found = causes_in(tmp_path, kernels, allocations, has_steps=False)
    assert StepPart.ALLOCATING not in [cause.part for cause in found]


def test_without_steps_numbers_are_of_the_capture(tmp_path: Path) -> None:
    # Four times twenty kernels, from 0.6 ms on until 80 ms: all but 32 ms is idle.
    [found] = [
        cause for cause in causes_in(tmp_path, one_by_one_quickly, has_steps=False) if cause.part == StepPart.LAUNCHES
    ]
    assert found.share == pytest.approx((79.4 - 32) / 79.4, abs=0.01)
    assert "47.4 ms of the capture (60%)" in found.evidence
    assert "80 kernels in the capture, of 400 µs on average" in found.evidence


def test_a_gpu_at_work_has_no_cause(tmp_path: Path) -> None:
    assert causes_in(tmp_path, lambda start: [(start - 1, start, start + 20, "gemm")]) == []


def test_what_waits_on_the_gpu_long_is_no_delay_of_launches(tmp_path: Path) -> None:
    # Launched at once, each kernel begins 8 ms after the one before it has ended.
    def kernels(start: float) -> list[KernelTimes]:
        return [(start, start + 0.2, start + 4, "gemm"), (start + 0.1, start + 12, start + 20, "gemm")]

    def events(start: float) -> list[CallTimes]:
        return [(start + 0.3, start + 0.4, "cudaStreamWaitEvent")]

    [found] = [cause for cause in causes_in(tmp_path, kernels, events) if cause.part == StepPart.QUEUED]
    assert found.share == pytest.approx(8 / 20, abs=0.02)
    assert found.evidence.endswith("; the host makes streams wait for others by 1 cudaStreamWaitEvent a step")
    assert "events and streams" in found.remedy


# Tables of runs: per run so many steps on so many GPUs, and rows whose sums are of all steps.

GPUS = 2
TRACED_STEPS = 5


def timeline(at: int, step_s: float = 0.1, **seconds: float) -> list[Row]:
    """Rows of `GPUS` devices whose steps all have the given seconds."""
    rows = []
    for device in range(GPUS):
        place = {"at": at, "report": "r", "rank": device, "process": 10 + device, "device": device}
        times = dict.fromkeys((*SHARES, *CAUSES), 0.0) | {"span": step_s} | seconds
        of_step = {f"{name}_s": value for name, value in times.items()}
        of_steps = {name: TRACED_STEPS * value for name, value in of_step.items()}
        rows.append(place | of_steps | {"scope": "steps", "extent": "device"})
        rows += [place | of_step | {"scope": "step", "step": number} for number in range(1, TRACED_STEPS + 1)]
    return rows


def on_gpus(at: int, calls: int, seconds: float, **cells: Any) -> list[Row]:
    """A row for each GPU, with the calls and seconds of one step."""
    sums = {"calls": calls * TRACED_STEPS, "total_s": seconds * TRACED_STEPS}
    return [
        {"at": at, "report": "r", "rank": device, "process": 10 + device, "device": device} | sums | cells
        for device in range(GPUS)
    ]


def found_in(folder: Path, timelines: dict[str, float], tables: dict[str, list[Row]], **columns: Any) -> Results:
    """Results of three repeats on two GPUs whose step takes 100 ms."""
    runs = vision_runs(1000.0, devices=GPUS, iteration_time_s=0.1, mean_iteration_time_s=0.1, forward_s=0.1, **columns)
    repeats = range(len(runs))
    rows = {name: [row | {"at": at} for at in repeats for row in of_run] for name, of_run in tables.items()}
    return make_results(
        folder, runs, tables={"timeline": [row for at in repeats for row in timeline(at, **timelines)]} | rows
    )


def causes(results: Results) -> list[Diagnosis]:
    return causes_of(results.configurations()[0], results)


KERNELS = on_gpus(0, 50, 0.05, **{"class": "matrix_multiply"})


def test_exposed_collectives_are_told_with_their_number_and_size(tmp_path: Path) -> None:
    many_small = on_gpus(
        0, 200, 0.03, collective="all_reduce", messages=200 * TRACED_STEPS, message_bytes=200 * TRACED_STEPS * 40_000
    )
    times = {"compute": 0.07, "busy": 0.1, "communication": 0.04, "exposed_communication": 0.03, "overlapped": 0.01}
    results = found_in(tmp_path, times, {"kernel_classes": KERNELS, "collectives": many_small})
    [found] = causes(results)
    assert found.share == pytest.approx(0.3, rel=0.02)
    assert found.evidence.startswith("a GPU communicates without computing for 30.0 ms of a step (30%): 200 all-reduce")
    assert found.evidence.endswith("of 150 µs and 40.0 kB on average; 25% of the communication is beside computing")
    assert "`bucket_cap_mb`" in found.remedy
    said = recommendations(results)
    assert "since a GPU communicates without computing for 30.0 ms of a step" in said
    assert "since 30% of the step is exposed communication" not in said


def test_few_large_collectives_have_another_remedy(tmp_path: Path) -> None:
    few = on_gpus(0, 4, 0.03, collective="all_reduce", messages=4 * TRACED_STEPS, message_bytes=TRACED_STEPS * 10**8)
    times = {"compute": 0.07, "busy": 0.1, "communication": 0.03, "exposed_communication": 0.03}
    [found] = causes(found_in(tmp_path, times, {"kernel_classes": KERNELS, "collectives": few}))
    assert "4 all-reduce a step, of 7.50 ms and 25.0 MB on average; none of the communication" in found.evidence
    assert "overlap with the backward pass" in found.remedy


@pytest.mark.parametrize(
    ("copies", "says", "share"),
    [
        (
            {"operation": "host_to_device", "host_memory": "pageable"},
            "60.0 MB from pageable memory to the GPU a step, in 3 calls, take 20.0 ms (3.00 GB/s)", 0.2,
        ),
        ({"operation": "device_to_device"}, "60.0 MB within the GPU a step, in 3 calls, take 20.0 ms", 0.2),
    ],
)  # fmt: skip
def test_copies_are_told_by_the_direction_that_takes_longest(
    copies: Row, says: str, share: float, tmp_path: Path
) -> None:
    # Of 25 ms in which the GPU only copies, 20 are of these copies, and the rest of others.
    rows = on_gpus(0, 3, 0.02, bytes=60_000_000 * TRACED_STEPS, **copies)
    rows += on_gpus(0, 1, 0.005, bytes=8 * TRACED_STEPS, operation="device_to_host")
    times = {"compute": 0.075, "busy": 0.1, "memory": 0.025}
    results = found_in(tmp_path, times, {"kernel_classes": KERNELS, "memory_operations": rows})
    [found] = causes(results)
    assert says in found.evidence
    assert found.share == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize(
    ("arithmetic", "remedy"),
    [
        (["fp32 beside tf32"], 'TF32 (`torch.set_float32_matmul_precision("high")`'),
        (["fp32 beside tf32", "tf32"], "sizes that are multiples of 8"),
        (["fp32"], "`torch.autocast` to 16 bits, if the GPU has tensor cores"),
    ],
)
def test_products_without_tensor_cores_have_no_known_gain(arithmetic: list[str], remedy: str, tmp_path: Path) -> None:
    rows = [
        row for kind in arithmetic for row in on_gpus(0, 10, 0.02, arithmetic=kind, kernel="ampere_sgemm_128x64_nn")
    ]
    times = {"compute": 0.1, "busy": 0.1}
    [found] = causes(found_in(tmp_path, times, {"kernel_classes": KERNELS, "fp32_products": rows}))
    assert found.share is None
    assert (
        "take 20.0 ms of a step (20%), 40% of the time of all kernels; the longest is `ampere_sgemm" in found.evidence
    )
    assert remedy in found.remedy


def test_tf32_and_short_fp32_kernels_are_no_cause(tmp_path: Path) -> None:
    rows = on_gpus(0, 10, 0.04, arithmetic="tf32", kernel="a") + on_gpus(0, 1, 0.002, arithmetic="fp32", kernel="b")
    times = {"compute": 0.1, "busy": 0.1}
    assert causes(found_in(tmp_path, times, {"kernel_classes": KERNELS, "fp32_products": rows})) == []


@pytest.mark.parametrize(
    ("used", "again", "says"),
    [
        (20e9, 4e12, "activation checkpointing computes 33% of the model's operations again, and 20.0 GB of"),
        (80e9, 4e12, None),
        (20e9, 3.03e12, None),
    ],
)
def test_operations_are_computed_again_in_vain_if_memory_is_free(
    used: float, again: float, says: str | None, tmp_path: Path
) -> None:
    # A quarter of the operations is repeated ones: of a step that only computes, so is a quarter of the time.
    times = {"compute": 0.1, "busy": 0.1}
    results = found_in(
        tmp_path, times, {"kernel_classes": KERNELS},
        model_flop_per_step=3e12, hardware_flop_per_step=again, peak_reserved_bytes=used,
    )  # fmt: skip
    told = [cause for cause in causes(results) if "checkpointing" in cause.evidence]
    assert len(told) == (says is not None)
    for found in told:
        assert says is not None and found.evidence.startswith(says)
        assert found.share == pytest.approx(0.25, rel=0.03)


def test_small_batches_are_told_if_launches_take_long_and_memory_is_free(tmp_path: Path) -> None:
    times = {"compute": 0.05, "busy": 0.05, "idle": 0.05, "idle_launching": 0.05}
    tables = {"kernel_classes": KERNELS}
    found = causes(found_in(tmp_path / "free", times, tables, peak_reserved_bytes=3e9))
    assert [cause.part for cause in found] == [StepPart.LAUNCHES, None]
    assert found[0].gain == pytest.approx(2, rel=0.02)
    assert found[1].evidence.endswith(
        "94.0 GB are used, and a GPU is idle for 50% of a step while the host launches work"
    )
    assert "--vary batch_size=auto" in found[1].remedy
    assert len(causes(found_in(tmp_path / "full", times, tables, peak_reserved_bytes=60e9))) == 1


def test_nearly_all_of_the_time_has_no_gain_and_comes_first(tmp_path: Path) -> None:
    def kernels(start: float) -> list[KernelTimes]:
        return [(start + number - 0.13, start + number - 0.03, start + number, "relu") for number in range(1, 21)]

    [found, *_] = causes_in(tmp_path, kernels)
    assert (found.part, found.gain) == (StepPart.LAUNCHES, None)
