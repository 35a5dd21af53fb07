"""The estimate of a vision job's memory, against torchvision's model and what a step holds."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard.experiment.datasets import Synthetic
from multicard.experiment.runs import Run
from multicard.workloads.vision.memory_estimate import estimate_memory, layers
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.precision import autocast, parameter_dtype
from simulated_gpu import Allocations

CPU = torch.device("cpu")


def job(**fixed: Any) -> VisionParameters:
    return VisionParameters(**{"strategy": "single", "image_size": 224, "batch_size": 2} | fixed)


def network(p: VisionParameters, classes: int) -> nn.Module:
    torch.set_default_dtype(parameter_dtype(p.precision))
    try:
        return MobileNetV2(num_classes=classes, width_mult=p.width_mult)
    finally:
        torch.set_default_dtype(torch.float32)


def batch(p: VisionParameters) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.empty(p.batch_size, 3, p.image_size, p.image_size, dtype=parameter_dtype(p.precision))
    return images, torch.zeros(p.batch_size, dtype=torch.int64)


def peak_of_a_step(p: VisionParameters, classes: int) -> int:
    """The most bytes that the second of two training steps holds, on tensors without data."""
    allocations = Allocations(vocabulary=-1)
    with FakeTensorMode(), allocations:
        model = network(p, classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
        for _ in range(2):
            images, labels = batch(p)
            allocations.peak = allocations.held
            with autocast(p.precision, CPU):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del images, labels, loss
    return allocations.peak


@pytest.mark.slow
@pytest.mark.parametrize(
    "fixed",
    [
        {"precision": "bf16"},
        {"precision": "fp64", "image_size": 500, "batch_size": 64},
        {"precision": "fp16", "image_size": 65, "width_mult": 0.35},
        {"precision": "fp32", "image_size": 32, "batch_size": 16, "width_mult": 1.4},
    ],
    ids=str,
)
def test_a_step_holds_at_most_what_was_estimated(fixed: dict[str, Any]) -> None:
    p = job(**fixed)
    assert estimate_memory(p).total == pytest.approx(peak_of_a_step(p, 10), rel=0.04)


@pytest.mark.parametrize("width", [0.35, 1.0, 1.3])
def test_the_layers_are_those_of_torchvisions_model(width: float) -> None:
    with FakeTensorMode():
        model = MobileNetV2(num_classes=1000, width_mult=width)
    filters = [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Conv2d)]
    found = list(layers(width, 224))
    assert [(layer.given, layer.taken // layer.groups, layer.kernel, layer.kernel) for layer in found] == filters
    trained = sum(layer.weights for layer in found) + (found[-1].given + 1) * 1000
    assert trained == sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_those_that_torchvision_publishes() -> None:
    # MobileNet_V2_Weights.IMAGENET1K_V1: 3 504 872 weights, 0.301 billion multiplications for an image of 224 px.
    found = list(layers(1.0, 224))
    assert sum(layer.weights for layer in found) + 1281 * 1000 == 3_504_872
    multiplied = sum(layer.filters * layer.after**2 for layer in found) + 1280 * 1000
    assert multiplied / 1e9 == pytest.approx(0.301, abs=0.0005)


def test_the_largest_job_of_the_papers_needs_51_gb() -> None:
    found = job(image_size=500, precision="fp64", batch_size=64)
    assert estimate_memory(found).total == pytest.approx(51e9, rel=0.005)


def test_devices_share_what_the_strategy_shares() -> None:
    alone, ddp, sharded = (
        estimate_memory(job(strategy=strategy, devices=devices))
        for strategy, devices in (("single", 1), ("ddp-ds", 4), ("fsdp", 4))
    )
    weights = 4 * (3_504_872 - 1281 * 990)  # of 10 classes
    assert (alone.optimizer, alone.gradients) == (weights, 0)
    assert (ddp.optimizer, ddp.gradients, ddp.activations) == (weights, weights, alone.activations)
    assert sharded.optimizer == weights // 4
    # One process puts the images of all four on its first GPU.
    assert estimate_memory(job(strategy="dp", devices=4)).batch == 4 * alone.batch
    assert alone.batch == 2 * 3 * 224**2 * 4
    assert estimate_memory(job(strategy="ddp", devices=2, scaling="strong")).batch == alone.batch // 2


def test_a_compiled_job_has_no_estimate() -> None:
    images = {"dataset": Synthetic(source="synthetic", samples=100)}
    assert Run("a", job(), images).device_memory_bytes() == estimate_memory(job()).total
    assert Run("a", job(compile=True), images).device_memory_bytes() is None
    assert Run("a", job(cuda_graphs=True), images).device_memory_bytes() is None


def test_planning_imports_no_torch() -> None:
    code = "import sys, multicard.workloads.vision.memory_estimate; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
