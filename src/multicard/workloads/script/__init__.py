"""A user's own training script, unchanged: started by a launcher, observed from inside its processes."""

from multicard.workloads.script.workload import WORKLOAD

__all__ = ["WORKLOAD"]
