"""Occupy a GPU's memory, but for so many MiB, until the standard input ends: occupy.py GPU MIB."""

import sys

import torch

gpu, spared = torch.device("cuda", int(sys.argv[1])), int(sys.argv[2]) * 2**20
block = torch.empty(max(0, torch.cuda.mem_get_info(gpu)[0] - spared), dtype=torch.uint8, device=gpu)
print("occupied", block.numel(), flush=True)
sys.stdin.read()
