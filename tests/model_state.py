"""Counts the bytes that a model in training and its optimizer hold on this rank."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def count(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """Bytes on this rank after an update, before its gradients are dropped; the numbers of weights of the whole model.

    `weights` are those that are frozen, or all where none is; `adapters` are trained beside frozen ones; `buffers` are
    tables that are not trained, such as those of rotary positions.

    Storage that several tensors share counts once, and completely: FSDP pads its shards, and lets the gradients of a
    layer share one buffer. Of a weight in NF4 every inner tensor counts.
    """
    parameters = list(model.parameters())  # each once, however many modules use it
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    seen: set[int] = set()
    return {
        "weights": _bytes(frozen or trained, seen),
        "adapters": _bytes(trained, seen) if frozen else 0,
        "gradients": _bytes((parameter.grad for parameter in trained if parameter.grad is not None), seen),
        "optimizer": _bytes(states, seen),
        "buffers": _bytes(model.buffers(), seen),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in trained),
    }


def _bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Bytes of the storages that are not in `seen`, which takes them in."""
    total = 0
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The plain tensors of this rank inside a tensor: the shard of a DTensor, the codes and scales of an NF4Tensor."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))
