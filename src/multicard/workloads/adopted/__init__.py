"""Runs made of traces that somebody else captured: nothing is launched."""

from multicard.workloads.adopted.workload import WORKLOAD

__all__ = ["WORKLOAD"]
