"""Number formats of training, fp64 and fp32 throughout, fp16 and bf16 as mixed precision; and memory formats."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from multicard.programs.vision.parameters import VisionParameters

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def parameter_dtype(precision: str) -> torch.dtype:
    """Return the type of weights and inputs; mixed precision keeps them in fp32."""
    return torch.float64 if precision == "fp64" else torch.float32


def move_to_device(model: nn.Module, p: VisionParameters, device: torch.device) -> nn.Module:
    """Return a model moved to the device, in the type and the memory format of the run."""
    # PyTorch's annotations lack this overload.
    return model.to(device, parameter_dtype(p.precision), memory_format=LAYOUTS[p.layout])  # type: ignore[call-overload]


def batch_to_device(batch: Any, p: VisionParameters, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels moved to the device, in the type and the memory format of the model."""
    images, labels = batch
    # Images are moved first, then converted on the device. In a single call PyTorch would convert them on the host:
    # images in fp64 would be twice the bytes to copy, and the converted images would not be in pinned memory.
    images = images.to(device, memory_format=LAYOUTS[p.layout], non_blocking=p.non_blocking)
    return images.to(parameter_dtype(p.precision)), labels.to(device, non_blocking=p.non_blocking)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass: autocast in mixed precision, else one that does nothing."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return nullcontext()


def gradient_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return a scaler that keeps small fp16 gradients from vanishing, and does nothing for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


class AutocastModel(nn.Module):
    """Opens autocast around the model's own forward pass.

    nn.DataParallel needs this: its threads inherit that autocast is on, but not the number format of autocast.
    """

    def __init__(self, model: nn.Module, precision: str):
        super().__init__()
        self.model = model
        self.precision = precision

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of the model."""
        with autocast(self.precision, images.device):
            return self.model(images)
