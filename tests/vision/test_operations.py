"""Operations that are counted are those of closed forms, and of what was published of the model."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

from multicard.record.operations import OperationCounter

FIRST_LAYER = 2 * 112 * 112 * 32 * 3 * 3 * 3  # of MobileNet v2 at 224 px: 32 filters of 3 × 3 × 3, with stride 2


def count_operations(call: Callable[[], object]) -> int:
    with OperationCounter() as counter:
        call()
    assert counter.problem is None
    return counter.total


def trained(model: nn.Module, inputs: torch.Tensor) -> int:
    return count_operations(lambda: model(inputs).sum().backward())


@pytest.mark.parametrize(("groups", "transposed"), [(1, False), (4, True), (16, False)])
def test_a_grouped_convolution_costs_as_much_less_in_both_directions(groups: int, transposed: bool) -> None:
    b, channels, kernel, size = 3, 16, 3, 8
    layer = nn.ConvTranspose2d if transposed else nn.Conv2d
    with torch.device("meta"):
        model = layer(channels, channels, kernel, padding=1, groups=groups)
        inputs = torch.empty(b, channels, size, size, requires_grad=True)
    # Each of size × size outputs, as padding keeps the size, sums the filter over the channels of its group.
    forward = 2 * b * channels * size**2 * kernel**2 * channels // groups
    assert count_operations(lambda: model(inputs)) == forward
    assert trained(model, inputs) == 3 * forward


def test_mobilenet_v2_costs_what_was_published() -> None:
    # Sandler et al. 2018: 300 M multiply-adds at 224 px; torchvision states 0.301 G of them.
    published = MobileNet_V2_Weights.IMAGENET1K_V2.meta["_ops"] * 1e9
    with torch.device("meta"):
        model, images = mobilenet_v2(), torch.empty(2, 3, 224, 224)
    forward = count_operations(lambda: model(images)) // 2
    assert forward == pytest.approx(2 * published, rel=0.002)
    # Each gradient of a layer costs as much as its forward pass; the images need none.
    assert trained(model, images) // 2 == 3 * forward - FIRST_LAYER
