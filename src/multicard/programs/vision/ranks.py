"""The process group of a job: joining it, and sums over its ranks."""

import os

import torch
import torch.distributed as dist

from multicard.observe.record.visible import rank_devices, visible_gpus
from multicard.programs.vision.parameters import VisionParameters


def join(parameters: VisionParameters) -> tuple[int, torch.device]:
    """Join the job's process group, if the strategy has one; return the number of this rank and its first device."""
    rank = int(os.environ.get("RANK", "0"))
    device = rank_devices(parameters)[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not parameters.distributed:
        return rank, device
    # NCCL refuses ranks that share a GPU.
    has_nccl = device.type == "cuda" and len(visible_gpus()) >= parameters.devices_per_node
    backend, bound_device = ("nccl", device) if has_nccl else ("gloo", None)
    if parameters.ranks == 1:
        # A single rank has no other to find. It needs no port, and no launcher, which would import torch for seconds.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=bound_device)
    else:
        # The launcher's variables say where the ranks meet.
        dist.init_process_group(backend, device_id=bound_device)
    return rank, device


def sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Return, for each value, the sum of that value over all ranks; without a process group, the values unchanged."""
    if not dist.is_initialized():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()
