"""Runs that are made from traces captured elsewhere; multicard launches nothing for them."""

from multicard.workloads.adopted.workload import WORKLOAD

__all__ = ["WORKLOAD"]
