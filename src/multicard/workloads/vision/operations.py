"""Floating-point operations of training MobileNet v2, by the shapes of its layers. Nothing here imports torch."""

from collections.abc import Mapping
from typing import Any

from multicard.experiment.workload import Operations
from multicard.workloads.vision.memory_estimate import layers
from multicard.workloads.vision.parameters import VisionParameters


def operations_per_sample(p: VisionParameters, classes: int) -> int:
    """Those of the forward and backward passes for one image: of convolutions and matrix products, as all count them.

    A multiplication and an addition are two. Normalization, activations, loss and optimizer are left out. Each of the
    two gradients of a layer takes as much as its forward pass; the images need none.
    """
    network = list(layers(p.width_mult, p.image_size))
    forward = [2 * layer.filters * layer.after**2 for layer in network]
    return 3 * (sum(forward) + 2 * network[-1].given * classes) - forward[0]


def operations(record: Mapping[str, Any], steps: Any) -> Operations | None:
    """Of a device in a step, by the samples of the steps; None of a record that does not tell the number of classes."""
    p, classes = VisionParameters.model_validate(record["parameters"]), (record.get("data") or {}).get("classes")
    if classes is None:
        return None
    found = operations_per_sample(p, classes) * steps["samples"].mean() * p.ranks / p.devices
    return Operations(found, found, product_precisions(p))


def product_precisions(p: VisionParameters) -> tuple[str, ...]:
    """As PyTorch computes convolutions by default: fp32 in TF32, unless that is turned off."""
    return ("tf32", "fp32") if p.precision == "fp32" and p.tf32 != "off" else (p.precision,)
