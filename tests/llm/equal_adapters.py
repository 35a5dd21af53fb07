"""The program that tunes, with adapters that are the same in every library.

Each library draws adapters at random, in an order of its own. Here their numbers depend on their shape alone.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from multicard.programs.llm import train
from multicard.programs.main import run_program


def initialize(tensor: torch.Tensor, **_options: Any) -> torch.Tensor:
    """Stand in for `nn.init.kaiming_uniform_`, by which both libraries initialize the first matrix of an adapter."""
    generator = torch.Generator().manual_seed(tensor.numel())
    values = torch.randn(tensor.shape, generator=generator, device="cpu") / tensor.shape[-1] ** 0.5
    if isinstance(tensor, DTensor):
        values = distribute_tensor(values, tensor.device_mesh, tensor.placements)
    with torch.no_grad():
        return tensor.copy_(values)


if __name__ == "__main__":
    nn.init.kaiming_uniform_ = initialize
    run_program(train.main)
