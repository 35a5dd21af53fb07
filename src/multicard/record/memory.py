"""Peak memory of one training process."""

import resource
import sys
from typing import NamedTuple

import torch


class PeakMemory(NamedTuple):
    """Peaks in bytes: of what tensors held, and of what PyTorch's caching allocator held for them (GPU only)."""

    allocated: int
    reserved: int | None


def peak_memory(device: torch.device) -> PeakMemory:
    """Peak memory: of the GPU since the last call, or resident on the host so far.

    On a GPU these are `torch.cuda.max_memory_allocated` and `max_memory_reserved`, which are then reset together, so
    one call reads both; none of it synchronizes. On a CPU `allocated` is the peak resident set of the process since
    its start, which never falls, and nothing is reserved.
    """
    if device.type == "cuda":
        peak = PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None)
