"""Peak memory of one training process."""

import resource
import sys
from typing import NamedTuple

import torch


class PeakMemory(NamedTuple):
    """Peaks in bytes: allocated for tensors, and reserved by PyTorch's caching allocator (GPU only)."""

    allocated: int
    reserved: int | None


def peak_memory(*devices: torch.device, reset: bool = True) -> PeakMemory:
    """Peak memory: of the fullest GPU since the last call, or resident on the host so far.

    On a GPU these are `torch.cuda.max_memory_allocated` and `max_memory_reserved`, which are then reset together
    (`reset`); none of it synchronizes. On a CPU `allocated` is the peak resident set of the process since its start,
    which never falls, and nothing is reserved.
    """
    if devices[0].type == "cuda":
        peaks = [_peaks_of_gpu(gpu, reset) for gpu in devices]
        return PeakMemory(max(peak.allocated for peak in peaks), max(peak.reserved for peak in peaks))
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None)


def _peaks_of_gpu(gpu: torch.device, reset: bool) -> PeakMemory:
    # The two functions of PyTorch would each fetch all the counters, and flatten and sort them, in every step.
    counters = torch.cuda.memory_stats_as_nested_dict(gpu)
    if reset:
        torch.cuda.reset_peak_memory_stats(gpu)
    return PeakMemory(*(counters[name]["all"]["peak"] for name in ("allocated_bytes", "reserved_bytes")))
