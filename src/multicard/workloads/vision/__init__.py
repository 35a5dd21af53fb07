"""Image-classification training: data, model, strategies, precision and the loop."""

from multicard.workloads.vision.workload import WORKLOAD

__all__ = ["WORKLOAD"]
