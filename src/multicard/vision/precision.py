"""Number formats of training: fp64 and fp32 throughout, fp16 and bf16 as mixed precision."""

from contextlib import AbstractContextManager, nullcontext

import torch

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def parameter_dtype(precision: str) -> torch.dtype:
    """Type of weights and inputs; mixed precision keeps them in fp32."""
    return torch.float64 if precision == "fp64" else torch.float32


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Context of the forward pass."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return nullcontext()


def gradient_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Scaler that keeps small fp16 gradients from vanishing; it does nothing for the other formats."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
