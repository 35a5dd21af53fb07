"""Causes of lost time on GPUs that a trace shows, of runs and of single captures."""

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus import (
    allocations,
    communication,
    copies,
    host_waits,
    launches,
    queues,
    tensor_cores,
)
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity


def causes_on_gpus(activity: GpuActivity | None) -> list[Diagnosis]:
    """Return the causes, those that take most of the time first, and last those of which that is not known."""
    if activity is None:
        return []
    causes = [
        *launches.diagnoses(activity),
        *host_waits.diagnoses(activity),
        *allocations.diagnoses(activity),
        *copies.diagnoses(activity),
        *queues.diagnoses(activity),
        *communication.diagnoses(activity),
        *tensor_cores.diagnoses(activity),
    ]
    return sorted(causes, key=lambda cause: -(cause.share or 0.0))
