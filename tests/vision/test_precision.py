"""Number formats: a run computes in its own, whatever threads it has, and all of PyTorch accepts its settings."""

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.precision import (
    autocast,
    batch_to_device,
    gradient_scaler,
    parameter_dtype,
)
from multicard.programs.vision.strategies import STRATEGIES

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "weights", "product"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("fp16", torch.float32, torch.float16),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_a_precision_computes_in_its_own_format(precision: str, weights: torch.dtype, product: torch.dtype) -> None:
    matrix = torch.ones(4, 4, dtype=parameter_dtype(precision))
    assert matrix.dtype == weights
    with autocast(precision, CPU):
        assert (matrix @ matrix).dtype == product
    assert gradient_scaler(precision, CPU).is_enabled() == (precision == "fp16")


class InThreads(nn.Module):
    """Runs a module as nn.DataParallel does: in a thread, which inherits that autocast is on, not its format."""

    def __init__(self, module: nn.Module, device_ids: list[int]):
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Result of the thread."""
        results = []

        def work() -> None:
            with torch.amp.autocast("cpu", enabled=on):
                results.append(self.module(images))

        on = torch.is_autocast_enabled("cpu")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return results[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("precision", "product"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_the_replicas_of_dp_compute_in_the_format_of_the_run(
    precision: str, product: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = torch.device(device)
    if place.type == "cpu":
        monkeypatch.setattr(nn, "DataParallel", InThreads)
    elif torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    layer, seen = nn.Linear(4, 4).to(place), set()
    layer.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    wrapped = STRATEGIES["dp"].wrap(layer, VisionParameters(strategy="dp", devices=2, precision=precision), place)
    with autocast(precision, place):
        wrapped(torch.ones(8, 4, device=place))
    assert seen == {product}


class Conversions(TorchDispatchMode):
    """Notes the tensors that are converted or moved: where and what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._to_copy.default:
            self.seen.append((args[0].device.type, args[0].dtype))
        return function(*args, **(kwargs or {}))


def test_fp64_is_made_of_fp32_on_the_device() -> None:
    batch, p = (torch.ones(2, 3, 8, 8), torch.ones(2)), VisionParameters(precision="fp64", layout="nhwc")
    with Conversions() as conversions:
        images, labels = batch_to_device(batch, p, torch.device("meta"))
    assert conversions.seen == [("cpu", torch.float32), ("meta", torch.float32), ("cpu", torch.float32)]
    assert (images.device.type, images.dtype, labels.device.type) == ("meta", torch.float64, "meta")
    assert images.is_contiguous(memory_format=torch.channels_last)
