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
    if device.type == "cuda" and len(visible_gpus()) >= parameters.devices_per_node:
        dist.init_process_group("nccl", device_id=device)
    else:
        # For CPUs, and for ranks that share a GPU, which NCCL refuses.
        dist.init_process_group("gloo")
    return rank, device


def sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Return, for each value, the sum of that value over all ranks; without a process group, the values unchanged."""
    if not dist.is_initialized():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()
