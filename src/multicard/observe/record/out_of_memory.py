"""Detect errors which mean that memory ran out, and cut PyTorch's advice from their messages."""

import errno
import re
from typing import NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.core.units import BYTES, with_unit
from multicard.observe.record.visible import visible_gpus

# An error message that contains one of these, in lower case, means that the host ran out of memory.
ON_HOST = (
    "can't allocate memory",  # PyTorch
    "cannot allocate memory",  # Linux
    "bad_alloc",  # C++
)
# These mean that the host or a GPU ran out of memory. If the message also names one of `LIBRARIES`, it counts only if a
# GPU is nearly full (`GpuMemory.is_scarce`), or if the memory of the GPUs is unknown.
ON_HOST_OR_GPU = (
    "out of memory",  # CUDA, NCCL
    "alloc_failed",  # cuBLAS, cuDNN, cuFFT, cuSOLVER
    "allocation_failed",  # cuDNN 9
)
# CUDA's libraries report these when they get no memory for their handles, workspaces or code, but also for other
# faults. They count only if a GPU is nearly full.
AMBIGUOUS = (
    "cublas_status_not_initialized", "cusolver_status_not_initialized", "cudnn_status_not_initialized",
    "cudnn_status_internal_error", "unable to find an engine", "unhandled cuda error", "ncclunhandledcudaerror",
)  # fmt: skip
LIBRARIES = ("nccl", "cublas", "cudnn", "cusolver", "cufft")

# PyTorch's advice at the end of its messages.
ADVICE = re.compile(
    r" (?:If reserved but unallocated memory is large|Search for `cuda|CUDA kernel errors might be).*", re.DOTALL
)


class GpuMemory(NamedTuple):
    """Memory of a GPU in bytes. The driver counts it, so it includes what other processes use."""

    gpu: int  # CUDA index
    free: int
    total: int

    @property
    def is_scarce(self) -> bool:
        """True if less is free than a library of CUDA may need: 1 GiB, or 5% of the total if that is less."""
        return self.free < min(1024**3, 0.05 * self.total)

    def describe(self) -> str:
        """Return the memory as text, such as "12.3 MB of 85.0 GB free on GPU 0"."""
        return f"{with_unit(self.free, BYTES)} of {with_unit(self.total, BYTES)} free on GPU {self.gpu}"


def fullest_gpu() -> GpuMemory | None:
    """Return the memory of the GPU with the least free memory, of the GPUs that this process uses.

    None if this process has not initialized CUDA, or if CUDA raises.
    """
    return read_or_none(_fullest_gpu)


def _fullest_gpu() -> GpuMemory | None:
    if not torch.cuda.is_initialized():
        return None
    # `mem_get_info` sets CUDA up on its GPU. So it is called only for GPUs on which PyTorch holds memory, and for the
    # current one.
    used = {gpu for gpu in range(len(visible_gpus())) if torch.cuda.memory_reserved(gpu)}
    used.add(torch.cuda.current_device())
    memory_of_gpus = [GpuMemory(gpu, *torch.cuda.mem_get_info(gpu)) for gpu in used]
    return min(memory_of_gpus, key=lambda memory: memory.free)


def is_out_of_memory(error: BaseException, memory: GpuMemory | None = None) -> bool:
    """Return True if an error means that memory ran out, on a GPU or on the host.

    `memory`: of the fullest GPU when the error was raised; None if it is unknown. It decides about errors of CUDA's
    libraries, because these errors look the same for other causes. If it is None, such an error counts if its message
    mentions memory (`ON_HOST_OR_GPU`), and does not count if its message is `AMBIGUOUS`.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory")), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if _has(text, ON_HOST):
        return True
    if _has(text, ON_HOST_OR_GPU):
        return memory is None or memory.is_scarce or not _has(text, LIBRARIES)
    return _has(text, AMBIGUOUS) and memory is not None and memory.is_scarce


def mentions_memory(error: BaseException) -> bool:
    """Return True if an error is a `RuntimeError` whose message is, or may be, about the memory of a GPU."""
    return isinstance(error, RuntimeError) and _has(str(error).lower(), (*ON_HOST_OR_GPU, *AMBIGUOUS))


def without_advice(text: str) -> str:
    """Return an error's message without PyTorch's advice at its end; `text` must have no line breaks."""
    return ADVICE.sub("", text)


def _has(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)
