"""Diagnosis of many small collectives beside those that exchange gradients."""

from collections.abc import Iterator, Sequence

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host.host_work import EXCHANGE_ONCE, WorkOfSteps
from multicard.core.host_work import COLLECTIVE
from multicard.core.text import counted, listed
from multicard.core.units import number
from multicard.results.configuration import Configuration
from multicard.runs.record import TrainingSetup

# So many collectives in a step are many.
_MANY = 100
# Buffers of a model are sent in at most so many collectives, one for each type of theirs.
_TYPES_OF_BUFFERS = 4


def diagnoses(configuration: Configuration, setup: TrainingSetup, work: Sequence[WorkOfSteps]) -> Iterator[Diagnosis]:
    """Yield that GPUs exchange something in many collectives beside the buckets of gradients.

    On CPUs `host_work` tells of them, with their time. Sharded models need many. `work`: of the hosts.
    """
    if configuration["device"] == "cpu" or setup.collectives is None or setup.wrapper == "FSDP":
        return
    passes = setup.backward_passes or 0.0
    of_model = (setup.exchanged_passes or passes) * ((setup.buckets or 0) + bool(setup.finds_unused))
    of_buffers = passes * _TYPES_OF_BUFFERS if setup.broadcast_bytes else 0.0
    others = setup.collectives - of_model - of_buffers
    if others < _MANY:
        return
    evidence = f"ranks exchange something {number(round(others))} times a step beside the model's gradients"
    if setup.synchronized_norms:
        layers = counted(setup.synchronized_norms, "layer")
        remedy = "plain batch norm, if a rank's batch is large enough for its statistics, or fewer synchronized layers"
        yield Diagnosis(f"{evidence}, with {layers} of `SyncBatchNorm`", remedy, None)
        return
    calls = [piece for piece in work if piece.kind == COLLECTIVE and piece.phase != "evaluation"]
    if sum(piece.calls for piece in calls) >= others / 2:
        most_first = sorted(calls, key=lambda piece: -piece.calls)
        yield Diagnosis(f"{evidence}, as in {listed([piece.words for piece in most_first[:2]])}", EXCHANGE_ONCE, None)
