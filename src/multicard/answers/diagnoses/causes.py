"""All causes of lost time that the record of a configuration's runs names."""

from collections.abc import Sequence
from dataclasses import replace

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.exchange import backend, collectives, data_parallel, gradient_exchange
from multicard.answers.diagnoses.gpus import gpu_activity, gpu_memory
from multicard.answers.diagnoses.gpus.trace_causes import causes_on_gpus
from multicard.answers.diagnoses.host import compiling, debugging, host_work, optimizer_loop, periods, threads
from multicard.answers.diagnoses.loading import between_passes, slow_loading
from multicard.answers.diagnoses.ranks import lone_evaluation, same_samples, slow_rank, uneven_work
from multicard.answers.diagnoses.training_setup import setup_of
from multicard.answers.diagnoses.user_code import code_lines, second_passes
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# A cause says why a rank, or some steps, take longer if it takes at least this share of that time.
MOSTLY = 0.5


def causes_of(configuration: Configuration, results: Results) -> list[Diagnosis]:
    """Return the causes, that with the largest gain first (`Diagnosis.order_share`)."""
    setup = setup_of(configuration, results)
    work = host_work.work_of(configuration, results)
    # What takes the time.
    causes = [
        *host_work.diagnoses(configuration, results, setup),
        *slow_loading.diagnoses(configuration, results),
        *between_passes.diagnoses(configuration, results),
        *lone_evaluation.diagnoses(configuration, results),
        *same_samples.diagnoses(configuration, results),
        *threads.diagnoses(configuration),
        *data_parallel.diagnoses(configuration, setup),
        *backend.diagnoses(configuration, setup),
        *optimizer_loop.diagnoses(configuration, setup),
        *compiling.diagnoses(setup),
        *debugging.diagnoses(setup),
        *uneven_work.diagnoses(configuration, results),
        *gpu_memory.diagnoses(configuration),
    ]
    # Where it is taken. In some steps, or at a line (which says itself if the host's work explains it): the sentence on
    # such steps has the line, if it is known. On one rank.
    in_steps = [cause for cause in periods.diagnoses(configuration, results) if not _is_explained(cause, causes)]
    by_samples = [
        *second_passes.diagnoses(configuration, results, setup),
        *code_lines.diagnoses(configuration, results),
    ]
    at_lines = [cause for cause in by_samples if not _is_explained(cause, in_steps)]
    causes += [*in_steps, *at_lines]
    causes += [cause for cause in slow_rank.diagnoses(configuration, results) if not _is_explained(cause, causes)]
    exchange = _exchange(
        [
            *gradient_exchange.diagnoses(configuration, results, setup),
            *collectives.diagnoses(configuration, setup, work),
        ],
        causes_on_gpus(gpu_activity.of_runs(configuration, results)),
    )
    return sorted([*causes, *exchange], key=lambda cause: -(cause.order_share or 0.0))


def _is_explained(cause: Diagnosis, others: Sequence[Diagnosis]) -> bool:
    """Return True if another cause says what takes most of the time of a cause that says where it is taken."""
    least = MOSTLY * (cause.share or 0.0)
    return cause.phase is not None and any(
        other.phase == cause.phase and (other.share or 0.0) >= least for other in others
    )


def _exchange(by_setup: list[Diagnosis], on_gpus: list[Diagnosis]) -> list[Diagnosis]:
    """Return causes in how ranks exchange, and those that traces of GPUs show.

    If traces show that GPUs communicate without computing, and the set-up why, that is one cause.
    """
    exposed = next((cause for cause in on_gpus if cause.part == StepPart.COMMUNICATION), None)
    if exposed is None or not by_setup:
        return [*by_setup, *on_gpus]
    first, *rest = by_setup
    evidence = f"{first.evidence}; {exposed.evidence}"
    joined = replace(first, evidence=evidence, share=exposed.share, part=exposed.part)
    return [joined, *rest, *[cause for cause in on_gpus if cause is not exposed]]
