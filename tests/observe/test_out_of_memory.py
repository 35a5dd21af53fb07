"""Errors about memory are told from others, and keep the numbers that a reader needs."""

import pytest
import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.reasons import LONGEST_MESSAGE
from multicard.observe import failure
from multicard.observe.failure import describe_error, describe_failure
from multicard.observe.record.out_of_memory import GpuMemory, fullest_gpu, is_out_of_memory

FULL = GpuMemory(1, free=20_000_000, total=80_000_000_000)
ROOMY = GpuMemory(1, free=40_000_000_000, total=80_000_000_000)

# As PyTorch 2.11 and the libraries of CUDA word them.
NOT_INITIALIZED = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")
OF_NCCL = dist.DistBackendError(
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
DISGUISED = [
    NOT_INITIALIZED,
    NO_ENGINE,
    OF_NCCL,
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    *(RuntimeError(f"cuDNN error: CUDNN_STATUS_{status}") for status in ("NOT_INITIALIZED", "INTERNAL_ERROR")),
    RuntimeError("cusolver error: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),  # of nn.DataParallel
]


# What speaks of memory needs no number to be believed.
PLAIN = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    OF_NCCL,
    RuntimeError("unable to mmap 64 bytes from file: Cannot allocate memory (12)"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    dist.DistBackendError("ncclSystemError: System call (e.g. socket, malloc) or external library call failed"),
    RuntimeError("shapes do not match"),
    ValueError("unable to find an engine, out of memory"),
    OSError(2, "No such file"),
]


def test_what_a_full_gpu_makes_of_a_library_is_out_of_memory_and_no_other_fault_of_it() -> None:
    for error in DISGUISED:
        assert is_out_of_memory(error, FULL), error
        assert not is_out_of_memory(error, ROOMY), error
    for error in (NOT_INITIALIZED, NO_ENGINE):  # where the memory is not known
        assert not is_out_of_memory(error)


def test_running_out_of_memory_is_recognized_in_every_wording_and_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    for error in (*PLAIN, caught.value):
        assert is_out_of_memory(error), error
    for error in OTHERS:
        assert not is_out_of_memory(error, FULL), error


def test_memory_is_scarce_below_what_a_library_takes() -> None:
    for total, least in ((80 * 10**9, 1024**3), (8 * 10**9, 400 * 10**6)):  # 1 GiB, or 5% of a small GPU
        assert [GpuMemory(0, least + more, total).is_scarce for more in (-1, 0)] == [True, False]


NUMBERS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory 75.00 GiB "
    "is allocated by PyTorch, with 1.25 GiB allocated in private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved "
    "by PyTorch but unallocated."
)
ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def test_the_message_of_pytorch_keeps_all_numbers_and_loses_the_advice() -> None:
    assert describe_error(torch.OutOfMemoryError(NUMBERS + ADVICE), FULL) == f"OutOfMemoryError: {NUMBERS}"
    assert describe_error(torch.OutOfMemoryError("CUDA out of memory.")) == "OutOfMemoryError: CUDA out of memory."


def test_a_message_without_numbers_has_those_of_the_gpu() -> None:
    error = torch.AcceleratorError(
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda for more "
        "information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
        "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    )
    assert (
        describe_error(error, FULL) == "AcceleratorError: CUDA error: out of memory; 20.0 MB of 80.0 GB free on GPU 1"
    )
    assert describe_error(error) == "AcceleratorError: CUDA error: out of memory"
    # Of one that was something else, they show that it was.
    assert describe_error(NO_ENGINE, ROOMY).endswith("this computation; 40.0 GB of 80.0 GB free on GPU 1")
    assert describe_error(RuntimeError("shapes do not match"), ROOMY) == "RuntimeError: shapes do not match"


def test_of_a_long_message_the_beginning_and_the_end_are_kept() -> None:
    # As PyTorch hands on what a worker of a DataLoader raised: the cause comes last.
    began, cause = "Caught RuntimeError in DataLoader worker.", "RuntimeError: no shared memory"
    message = describe_error(RuntimeError(f"{began}\n{200 * '  File '}{cause}"))
    assert message.startswith(f"RuntimeError: {began}") and message.endswith(cause)
    assert len(message) < LONGEST_MESSAGE + 30
    assert describe_error(UserError("short")) == "short"


def test_an_error_is_judged_by_the_memory_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "fullest_gpu", lambda: FULL)
    found = describe_failure(NOT_INITIALIZED, 2)
    assert found.outcome == "out_of_memory" and found.reason is not None
    assert (found.reason.code, found.reason.rank) == ("out_of_memory", 2)
    assert str(found.reason.message).endswith("; 20.0 MB of 80.0 GB free on GPU 1")


def test_the_fullest_gpu_is_one_that_this_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    free, reserved = [500, 50, 5], [0, 1, 0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: reserved[gpu])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[gpu], 1000))
    assert fullest_gpu() == GpuMemory(1, free=50, total=1000)
    reserved[1] = 0
    assert fullest_gpu() == GpuMemory(0, free=500, total=1000)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert fullest_gpu() is None
