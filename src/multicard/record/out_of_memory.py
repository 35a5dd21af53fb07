"""Detect errors which mean that memory ran out, and keep of their messages what a reader needs."""

import errno
import re
from typing import NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.core.units import BYTES, with_unit
from multicard.record.visible import visible_gpus

# Parts of error messages, in lower case.
ON_HOST = (
    "can't allocate memory",  # PyTorch
    "cannot allocate memory",  # Linux
    "bad_alloc",  # C++
)
ON_HOST_OR_GPU = (
    "out of memory",  # CUDA, NCCL
    "alloc_failed",  # cuBLAS, cuDNN, cuFFT, cuSOLVER
    "allocation_failed",  # cuDNN 9
)
# Messages of CUDA's libraries when they get no memory for their handles, workspaces or code, and of other faults too.
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
    """Memory of a GPU in bytes, as the driver counts it: for everything that runs there."""

    gpu: int
    free: int
    total: int

    @property
    def is_scarce(self) -> bool:
        """True if less is free than a library takes for itself: 1 GiB, on a small GPU 5% of its memory."""
        return self.free < min(1024**3, 0.05 * self.total)

    def describe(self) -> str:
        """Return the memory as text, such as "12.3 MB of 85.0 GB free on GPU 0"."""
        return f"{with_unit(self.free, BYTES)} of {with_unit(self.total, BYTES)} free on GPU {self.gpu}"


def fullest_gpu() -> GpuMemory | None:
    """Return the GPU with the least free memory of those that this process uses; None without one, or if CUDA fails."""
    return read_or_none(_fullest_gpu)


def _fullest_gpu() -> GpuMemory | None:
    if not torch.cuda.is_initialized():
        return None
    # Reading the memory of a GPU that is not in use would set CUDA up there.
    used = {gpu for gpu in range(len(visible_gpus())) if torch.cuda.memory_reserved(gpu)}
    used.add(torch.cuda.current_device())
    memory_of_gpus = [GpuMemory(gpu, *torch.cuda.mem_get_info(gpu)) for gpu in used]
    return min(memory_of_gpus, key=lambda memory: memory.free)


def is_out_of_memory(error: BaseException, memory: GpuMemory | None = None) -> bool:
    """Return whether an error means that memory ran out, on the GPU or on the host.

    `memory` is that of the fullest GPU when the error was raised. It decides about errors of CUDA's libraries, which
    look the same for other causes; where it is None, only those that mention memory count.

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
    """Return whether an error of a GPU is about memory, or may be."""
    return isinstance(error, RuntimeError) and _has(str(error).lower(), (*ON_HOST_OR_GPU, *AMBIGUOUS))


def without_advice(text: str) -> str:
    """Return an error's message in one line, without what PyTorch advises at its end."""
    return ADVICE.sub("", text)


def _has(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)
