"""A training script with a known bottleneck: its loader sleeps 2 ms for every sample, 32 ms for every batch of 16.

cd benchmarks/slow_loader
python train.py
multicard scale --device cpu --devices 1,2 -- train.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Slow(Dataset):
    """Random vectors, each of which takes its time."""

    def __len__(self) -> int:
        return 6400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.002)
        return torch.randn(512), index % 10


def main() -> None:
    """Train for a while."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip
    data, sampler = Slow(), None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model, sampler = DistributedDataParallel(model), DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler, num_workers=args.workers)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (inputs, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == args.steps:
            break
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
