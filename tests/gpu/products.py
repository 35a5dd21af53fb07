"""Training steps whose work follows by hand: matrix products, all-reduces of their gradients, a wait for data.

Each layer multiplies a square matrix of its own by a square weight, in bf16, forwards and twice backwards: 6 edge³
operations. Ranks of torchrun add up each weight's gradient by itself: 2 edge² bytes.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Numbers, each of which takes its time."""

    def __init__(self, load_s: float):
        self.load_s = load_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        if self.load_s:  # for even no time at all it would leave its CPU to others
            time.sleep(self.load_s)
        return index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--edges", required=True, help="of the matrices of each layer, with commas")
    parser.add_argument("--load-ms", type=float, default=0.0, help="that the loader takes for each step")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    how = {"device": device, "dtype": torch.bfloat16}
    edges = [int(edge) for edge in args.edges.split(",")]
    layers = nn.ModuleList(nn.Linear(edge, edge, bias=False, **how) for edge in edges)
    inputs = [nn.Parameter(torch.randn(edge, edge, **how)) for edge in edges]
    optimizer = torch.optim.SGD([*layers.parameters(), *inputs], lr=0.1)
    for _ in DataLoader(Numbers(args.load_ms / 1e3)):
        optimizer.zero_grad()
        loss = sum(layer(x).mean() for layer, x in zip(layers, inputs, strict=True))
        loss.backward()
        if dist.is_initialized():
            for weight in layers.parameters():
                dist.all_reduce(weight.grad)
        optimizer.step()


if __name__ == "__main__":
    main()
