"""How the ranks of a job find and help each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from multicard.experiment.vision_parameters import VisionParameters
from multicard.workloads.vision.precision import autocast

ONE_PROCESS = ("single", "dp")


@contextmanager
def joined(parameters: VisionParameters) -> Iterator[tuple[int, torch.device]]:
    """Join the process group that torchrun prepared, if the strategy has one; give rank and device.

    An error leaves the group as it is: to take it down may mean to wait for ranks that wait for this one.
    """
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    device, cards = torch.device("cpu"), 0
    if parameters.device == "cuda":
        cards = torch.cuda.device_count()
        device = torch.device("cuda", local_rank % max(1, cards))
        torch.cuda.set_device(device)
    if parameters.strategy in ONE_PROCESS:
        yield rank, device
        return
    # Ranks share a card only where the checks of this project make them; NCCL would refuse that.
    if device.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= cards:
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    yield rank, device
    dist.destroy_process_group()


class ReplicaAutocast(nn.Module):
    """Opens autocast around the model's own forward pass.

    For nn.DataParallel, whose threads take over that autocast is on, but not its format.
    """

    def __init__(self, model: nn.Module, precision: str):
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the model."""
        with autocast(self.precision, images.device):
            return self.model(images)


def distribute(model: nn.Module, parameters: VisionParameters, device: torch.device) -> nn.Module:
    """Wrap the model as the strategy asks."""
    match parameters.strategy:
        case "single":
            return model
        case "dp":
            replicated = ReplicaAutocast(model, parameters.precision)
            return nn.DataParallel(replicated, device_ids=list(range(parameters.devices)))
        case "fsdp":
            # Block by block, so that one block is gathered while the one before it computes.
            mesh = init_device_mesh(device.type, (parameters.devices,))
            for block in model.features:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)
    on_gpu = device.type == "cuda"
    return DistributedDataParallel(
        model, device_ids=[device] if on_gpu else None, bucket_cap_mb=parameters.bucket_cap_mb
    )


def sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Sum each value over all ranks."""
    if not dist.is_initialized():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()
