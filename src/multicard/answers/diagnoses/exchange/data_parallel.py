"""Diagnosis of a single process that drives several GPUs."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.text import counted
from multicard.results.configuration import DEVICE_WORDS, Configuration
from multicard.runs.record import TrainingSetup


def diagnoses(configuration: Configuration, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that `DataParallel` copies the model to all GPUs in each step, if it does."""
    if configuration["devices"] > 1 and setup.wrapper == "DataParallel":
        devices = counted(configuration["devices"], DEVICE_WORDS[configuration["device"]])
        evidence = f"in each step one process copies the model to {devices} and gathers all outputs (`DataParallel`)"
        yield Diagnosis(evidence, "`DistributedDataParallel`, with a process for each device", None)
