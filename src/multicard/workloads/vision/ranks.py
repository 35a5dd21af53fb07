"""How the ranks of a job find each other and add up what they know."""

import os

import torch
import torch.distributed as dist

from multicard.record.visible import rank_devices, visible_gpus
from multicard.workloads.vision.parameters import VisionParameters


def join(parameters: VisionParameters) -> tuple[int, torch.device]:
    """Join the process group that torchrun prepared, if the strategy has one; give rank and device."""
    rank, device = int(os.environ.get("RANK", "0")), rank_devices(parameters)[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not parameters.distributed:
        return rank, device
    if device.type == "cuda" and len(visible_gpus()) >= parameters.devices_per_node:
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")  # also where ranks share a GPU, which NCCL refuses
    return rank, device


def sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Sum each value over all ranks."""
    if not dist.is_initialized():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()
