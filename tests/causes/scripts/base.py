"""A DDP training on CPUs whose device work is a sleep, so that the time of a step follows by hand.

Without a cause of bad scaling a step takes `STEP_S`, 60 ms, on any number of processes, and exchanges gradients so
small that gloo needs less than a millisecond for them. Each script beside this one adds one cause; with `--fixed` it
trains without it. `../known_causes.py` lists them, `../README.md` says what a stopwatch showed.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

FORWARD_S = 0.020
BACKWARD_S = 0.040
STEP_S = FORWARD_S + BACKWARD_S

EPOCHS = 50
BATCH_SIZE = 16
FEATURES = 32
CLASSES = 10


class DeviceWork(torch.autograd.Function):
    """Sleeps as long as a device would compute, in the forward and in the backward pass."""

    @staticmethod
    def forward(context, hidden, forward_s, backward_s):
        """Return a copy of the input, after the forward pass of the device."""
        context.backward_s = backward_s
        time.sleep(forward_s)
        return hidden.clone()

    @staticmethod
    def backward(context, gradient):
        """Return the gradient, after the backward pass of the device."""
        time.sleep(context.backward_s)
        return gradient, None, None


class Network(nn.Module):
    """Two layers with the device's work between them.

    `small_parameters` more parameters, of eight numbers each, take part in each forward pass.
    """

    def __init__(self, small_parameters: int = 0):
        super().__init__()
        self.first = nn.Linear(FEATURES, 64)
        self.last = nn.Linear(64, CLASSES)
        self.small = nn.ParameterList(nn.Parameter(torch.zeros(8)) for _ in range(small_parameters))

    def forward(self, features: torch.Tensor, work: float = 1.0) -> torch.Tensor:
        """Return logits, shape (batch, classes); the device works `work` times as long as usual."""
        hidden = torch.relu(self.first(features))
        hidden = DeviceWork.apply(hidden, FORWARD_S * work, BACKWARD_S * work)
        logits = self.last(hidden)
        if len(self.small):
            logits = logits + torch.cat(list(self.small)).sum()
        return logits


def options() -> argparse.ArgumentParser:
    """Return a parser of the options that all scripts have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="train without the cause")
    return parser


def start() -> tuple[int, int]:
    """Join the other processes, if there are any; return the rank and the number of processes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def parallel(model: nn.Module, **ddp_options) -> nn.Module:
    """Wrap the model in DDP, unless it trains on one process."""
    return DistributedDataParallel(model, **ddp_options) if dist.is_initialized() else model


def samples(count: int = 6400) -> TensorDataset:
    """Return features, shape (count, 32), with a class for each."""
    return TensorDataset(torch.randn(count, FEATURES), torch.randint(CLASSES, (count,)))


def loader(dataset: Dataset, **loader_options) -> DataLoader:
    """Return batches of 16 samples; each process has samples of its own."""
    sampler = DistributedSampler(dataset) if dist.is_initialized() else None
    shuffle = sampler is None
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler, shuffle=shuffle, drop_last=True, **loader_options)


def slow_exchange(seconds: float, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all processes, which takes `seconds` in all.

    As a communication hook of DDP it stands for a slow network: gloo on one machine needs less than a millisecond.
    """
    end = time.perf_counter() + seconds
    gradients = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(gradients)
    time.sleep(max(0.0, end - time.perf_counter()))
    averaged = torch.futures.Future()
    averaged.set_result(gradients)
    return averaged


def slow_down_exchanges(model: nn.Module, seconds: float) -> None:
    """Let the exchange of each bucket of gradients take `seconds`; on one process nothing is exchanged."""
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(seconds, slow_exchange)
