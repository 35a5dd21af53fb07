"""Peak memory of one training process."""

import resource
import sys

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """Peak memory in bytes: allocated on the GPU since the last call, or resident on the host so far.

    On a GPU this is `torch.cuda.max_memory_allocated`, which is then reset; neither synchronizes. On a CPU it
    is the peak resident set of the process since its start, which never falls.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
