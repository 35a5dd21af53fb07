"""Diagnoses of slow loading: no workers or too few, the start of a pass, slow samplers, and copies of unpinned memory.

A rank's steps show how long they wait for data (`waits`), its record how its loader loads (table `loaders`), and its
host's work what of that is the sampler's or the start and end of workers (`host_work`). With runs that went without
loading (`answers.ablation`), the time of a worker is measured, and not inferred from the waits.
"""

from collections.abc import Iterator
from dataclasses import replace

from multicard.answers.ablation import ABLATED, PartCost, costs
from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host.host_work import work_of
from multicard.answers.diagnoses.loading import passes
from multicard.answers.diagnoses.loading.facts import Loader, Loading, loader_of, sampling_of
from multicard.answers.diagnoses.loading.waits import rank_that_waits, waits_of
from multicard.answers.diagnoses.loading.workers import no_workers, slow_batches, too_few_workers
from multicard.answers.diagnoses.user_code.code_lines import lines_in_words
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.layout import DATA, EVALUATION
from multicard.core.units import duration, percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results

_PIN = "`pin_memory=True` of the loader, with copies by `.to(device, non_blocking=True)`"


def diagnoses(configuration: Configuration, results: Results) -> list[Diagnosis]:
    """Return why the steps of a configuration wait for data, and copies that wait for unpinned memory."""
    loader = loader_of(configuration, results)
    if loader is None:
        return []
    causes = [*_unpinned(configuration, results, loader), *_slow_loading(configuration, results, loader)]
    # Only without workers ranks wait as long as they load. A worker loads ahead while its rank waits for another one.
    waiting_rank = rank_that_waits(configuration, results) if loader.workers == 0 else None
    if waiting_rank is None:
        return causes
    return [
        replace(cause, evidence=f"{cause.evidence}; {waiting_rank}") if cause.phase == DATA else cause
        for cause in causes
    ]


def _slow_loading(configuration: Configuration, results: Results, loader: Loader) -> list[Diagnosis]:
    """Return why the steps of a configuration wait for data; nothing if runs exclude that they wait long."""
    cost = _cost_of_loading(configuration, results)
    if cost is not None and cost.is_excluded:
        return []
    work = [piece for piece in work_of(configuration, results) if piece.phase != EVALUATION]
    waits = waits_of(configuration, results, loader.workers)
    if waits is None:
        return list(passes.iterator_in_each_step(configuration, work))
    loading = Loading(configuration, loader, waits, sampling_of(work, configuration, results), cost)
    causes = list(passes.diagnoses(loading, work))
    if loader.workers == 0:
        causes += no_workers(loading, lines_in_words(configuration, results, DATA, "the loading"))
    elif loader.workers and waits.is_steady:
        causes += too_few_workers(loading)
    elif loader.workers:
        causes += slow_batches(loading)
    return causes


def _cost_of_loading(configuration: Configuration, results: Results) -> PartCost | None:
    """Return what loading costs by runs that went without it; None if there are none."""
    if not results.ablated():
        return None
    loading_costs = [cost for cost in costs(results) if cost.part == ABLATED[StepPart.DATA]]
    return next((cost for cost in loading_costs if cost.configuration.key == configuration.key), None)


def _unpinned(configuration: Configuration, results: Results, loader: Loader) -> Iterator[Diagnosis]:
    """Yield what copies to GPUs take that are not from pinned memory.

    If GPUs were traced, nothing: `copies` finds which of the copies are.
    """
    if configuration["device"] != "cuda" or loader.pinned is not False:
        return
    traced = results.table("memory_operations")["run"]
    if traced.isin([run.run for run in configuration.completed]).any():
        return
    share = mean_parts(configuration).get(StepPart.MEMORY_OPERATIONS, 0.0)
    if share < LEAST:
        return
    step_s = configuration.mean(STEP_TIME)
    time = f"{duration(share * step_s)} of a step, " if step_s else ""
    evidence = f"copies from memory that is not pinned (`pin_memory=False`) take {time}{percent(share)} of the time"
    yield Diagnosis(evidence, _PIN, share, part=StepPart.MEMORY_OPERATIONS)
