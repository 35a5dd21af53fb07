"""A loop that times its own steps; its ranks are torchrun's, or it starts them itself. Options have it go wrong."""

import argparse
import csv
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 4
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10_000)
parser.add_argument("--out", type=Path, help="folder for the stopwatch of each rank")
parser.add_argument("--spawn", type=int, default=0, help="ranks to start by torch.multiprocessing")
parser.add_argument("--start-method", default="spawn", help="of these")
parser.add_argument("--fault", choices=["raise", "exit"], help="of the first rank")
parser.add_argument("--at", type=int, default=3, help="step of the fault")
parser.add_argument("--write", type=Path, help="file to write before training")
args = parser.parse_args()


def fail(rank: int) -> None:
    if rank:
        return
    if args.fault == "raise":
        raise RuntimeError("the data are wrong")
    print("4 errors so far")
    sys.exit("no samples are left")


def train(rank: int, ranks: int, meeting: str = "env://") -> None:
    if ranks > 1:
        dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(16, 4)
    model = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100 * BATCH_SIZE, 16))
    watch = csv.writer((args.out / f"rank{rank}.csv").open("w", buffering=1)) if args.out else None
    step, last = 0, None
    while step < args.steps:
        for (batch,) in DataLoader(data, BATCH_SIZE):
            step += 1
            if args.fault and step == args.at:
                fail(rank)
            time.sleep(0.005 * (1 + step % 4))  # steps of four lengths, so that a step taken for the next one shows
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            optimizer.zero_grad()
            if watch and last is not None:
                watch.writerow([step, now - last])
            last = now
            if step == args.steps:
                break
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    if args.write:
        args.write.write_text("written by the script")
    if args.spawn:
        with tempfile.TemporaryDirectory() as folder:
            given = args.spawn, f"file://{folder}/meeting"
            mp.start_processes(train, given, nprocs=args.spawn, start_method=args.start_method)
    else:
        train(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
