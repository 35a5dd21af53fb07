"""A plain loop: a loader with a distributed sampler, DDP, SGD; accumulation, torch.compile and spawning on demand."""

import argparse
import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# By torchrun and the like, by Slurm, by Open MPI: the rank, and how many there are.
TOLD = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--spawn", type=int, default=0, help="ranks to start by torch.multiprocessing")
    args = parser.parse_args()
    if args.spawn and "RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        mp.spawn(start, (args.spawn, port), nprocs=args.spawn)
        return

    on_gpu = torch.cuda.is_available()
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    sampler = None
    told = next((names for names in TOLD if names[0] in os.environ), None)
    if told:
        rank, ranks = (int(os.environ[name]) for name in told)
        dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=ranks)
        model = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=on_gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward = torch.compile(model) if args.compile else model

    for epoch in range(args.epochs):
        for number, (inputs, labels) in enumerate(loader, 1):
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            last = number % args.accumulate == 0
            with contextlib.nullcontext() if last or sampler is None else model.no_sync():
                loss = nn.functional.cross_entropy(forward(inputs), labels) / args.accumulate
                loss.backward()
            if last:
                if sampler is None or dist.get_rank() == 0:
                    print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for inputs, _ in DataLoader(data, 64):
                model(inputs.to(device))
    if dist.is_initialized():
        dist.destroy_process_group()


def start(rank: int, ranks: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main()


if __name__ == "__main__":
    main()
