"""How the ranks of a job find each other and add up what they know."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from multicard.workloads.vision.parameters import VisionParameters


@contextmanager
def joined(parameters: VisionParameters) -> Iterator[tuple[int, torch.device]]:
    """Join the process group that torchrun prepared, if the strategy has one; give rank and device.

    An error leaves the group as it is: to take it down may mean to wait for ranks that wait for this one.
    """
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    device, gpus = torch.device("cpu"), 0
    if parameters.device == "cuda":
        gpus = torch.cuda.device_count()
        device = torch.device("cuda", local_rank % max(1, gpus))
        torch.cuda.set_device(device)
    if not parameters.distributed:
        yield rank, device
        return
    # Ranks share a GPU only where the checks of this project make them; NCCL would refuse that.
    if device.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= gpus:
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    yield rank, device
    dist.destroy_process_group()


def sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Sum each value over all ranks."""
    if not dist.is_initialized():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()
