"""Floating-point operations of what PyTorch runs, by its own counter."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def count_operations(call: Callable[[], Any]) -> int:
    """Floating-point operations of all convolutions and matrix products in a call.

    A multiplication and an addition are two. Normalization, activations, loss and optimizer are left out.
    """
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward}) as counter:
        call()
    return counter.get_total_flops()


def _backward(
    grad_out: Sequence[int],
    x: Sequence[int],
    w: Sequence[int],
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    output_mask: Sequence[bool],
    out_shape: Any = None,
) -> int:
    """Of the shapes of a convolution: each of its two gradients takes as many operations as its forward pass.

    PyTorch 2.11 counts the gradient of a grouped convolution's weights once for each group
    (https://github.com/pytorch/pytorch/pull/183405).
    """
    forward = 2 * prod(x if transposed else grad_out) * prod(w[1:])
    return forward * sum(map(bool, output_mask[:2]))
