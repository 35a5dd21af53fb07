"""The programs without random numbers that differ between devices, with the options of these: `python -m same_numbers`.

A generator of a GPU gives other numbers than that of the CPU, so equal losses need a model without dropout, and
adapters whose first values are drawn on the CPU. On a CPU it can also do what nn.DataParallel does on GPUs: a batch of
several times `BATCH_SIZE` is taken in parts, each by itself.
"""

import copy
import sys
from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models import MobileNetV2

from multicard.programs.main import run_program

BATCH_SIZE = 8


class InParts(nn.Module):
    """Only the first part has a say in the running statistics, as only the first replica shares its buffers."""

    def __init__(self, model: nn.Module, parts: int):
        super().__init__()
        self.model, self.parts = model, parts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the whole batch."""
        first, *others = images.chunk(self.parts)
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scores = [self.model(first)]
        scores += [torch.func.functional_call(self.model, copy.deepcopy(buffers), (part,)) for part in others]
        return torch.cat(scores)


def train_vision() -> None:
    from multicard.programs.vision import train
    from multicard.programs.vision.strategies import STRATEGIES

    def wrap(model: nn.Module, p: Any, _device: torch.device) -> nn.Module:
        return InParts(model, p.batch_size // BATCH_SIZE) if p.batch_size > BATCH_SIZE else model

    STRATEGIES["single"].wrap = wrap
    train.MobileNetV2 = partial(MobileNetV2, dropout=0.0)
    train.main()


def tune() -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    from multicard.programs.llm import train

    draw = nn.init.kaiming_uniform_

    @torch.no_grad()
    def draw_on_cpu(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        draw(whole, *arguments, **options | {"generator": torch.Generator().manual_seed(0)})
        whole = whole.to(tensor.device)
        if isinstance(tensor, DTensor):
            whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
        return tensor.copy_(whole)

    nn.init.kaiming_uniform_ = draw_on_cpu
    if "--library=torchtune" not in sys.argv:
        # It imports what asks for Triton, which must not fail.
        import peft  # noqa: F401

        # TRL then computes its loss by PyTorch; emulated GPUs compute nothing of what Triton compiles.
        sys.modules["triton"] = None
    train.main()


if __name__ == "__main__":
    # Only tuning has a folder of a model.
    tunes = any(word.startswith("--model-folder") for word in sys.argv)
    run_program(tune if tunes else train_vision)
