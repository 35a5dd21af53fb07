"""Diagnosis of GPUs that exchange through the memory of their hosts."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.results.configuration import Configuration
from multicard.runs.record import TrainingSetup


def diagnoses(configuration: Configuration, setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that the ranks' only back end is gloo, if they train on GPUs."""
    if configuration["device"] == "cuda" and configuration["devices"] > 1 and setup.backends == ("gloo",):
        evidence = "GPUs exchange by gloo, which copies all data through the memory of the host"
        yield Diagnosis(evidence, '`init_process_group("nccl")`', None)
