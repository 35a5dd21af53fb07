"""DistributedDataParallel over a slow network, with a slow loader; `WITHOUT` leaves either out, by hand.

    WITHOUT=loader torchrun --standalone --nproc-per-node 2 benchmarks/ablation/train.py [--workers 0] [--steps 400]

`WITHOUT` is empty, `loader`, `communication` or `loader+communication`. Loading takes 3 ms a sample, in the training
loop itself or, with `--workers 1`, beside it. A megabyte of gradients is exchanged.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WARMUP = 8, 20
WITHOUT = os.environ.get("WITHOUT", "")


class Slow(Dataset):
    """Samples that take their time."""

    def __len__(self) -> int:
        return BATCH * arguments.steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        return torch.full((1000,), index / len(self)), index % 2


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--compute-ms", type=float, default=10)
arguments = parser.parse_args()

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(1000, 250), nn.Linear(250, 2))
if "communication" not in WITHOUT:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ended = []
loader = DataLoader(Slow(), BATCH, num_workers=arguments.workers)
for x, y in [next(iter(loader))] * arguments.steps if "loader" in WITHOUT else loader:
    time.sleep(arguments.compute_ms / 1e3)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    ended.append(time.perf_counter())
if dist.get_rank() == 0:
    print(f"{1e3 * (ended[-1] - ended[WARMUP]) / (arguments.steps - WARMUP - 1):.1f} ms per step")
