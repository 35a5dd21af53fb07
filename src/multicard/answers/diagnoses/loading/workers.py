"""Diagnoses of loading that cannot keep up with the rest of a step: no workers, too few, or single slow batches."""

import math
from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.loading.facts import Loading
from multicard.core.layout import DATA
from multicard.core.text import counted
from multicard.core.units import duration, number, percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration

_LESS_WORK = "less work per sample, as by decoding, resizing or tokenizing once, beforehand"
# Seconds that it may take to take a batch over from a worker. Loading that is shorter is not gained by workers: from a
# worker that waited with the batch, two busy CPUs took 2 ms, and 0.4 ms to load it in the training thread.
HANDOVER_S = 0.001
# More batches than so many ahead for each worker need too much memory to be proposed.
MOST_PREFETCHED = 16


def no_workers(loading: Loading, lines: str | None) -> Iterator[Diagnosis]:
    """Yield that the training thread loads. `lines`: where in the code it does, in words; None if that is unknown."""
    seconds = loading.share * loading.waits.step_s
    if loading.share < LEAST or seconds < HANDOVER_S:
        return
    evidence = (
        f"the training thread itself loads (`num_workers=0`), {duration(seconds)} of a step ({percent(loading.share)} "
        f"of the time), and the rest of it takes {duration(loading.rest_s)}{_on_cpus(loading)}"
    )
    if lines:
        evidence += f"; {lines}"
    yield Diagnosis(evidence, _more_workers(loading), loading.share, part=StepPart.DATA, phase=DATA)


def too_few_workers(loading: Loading) -> Iterator[Diagnosis]:
    """Yield that workers cannot keep up with the rest of the step."""
    workers = loading.loader.workers
    if loading.share < LEAST or not workers:
        return
    workers_give = "1 worker gives" if workers == 1 else f"{workers} workers give"
    all_workers_s = loading.worker_s / workers
    evidence = (
        f"{workers_give} the data of a step in about {duration(all_workers_s)}, and the rest of it takes "
        f"{duration(loading.rest_s)}: steps wait for {percent(loading.share)} of the time{_on_cpus(loading)}"
    )
    yield Diagnosis(evidence, _more_workers(loading), loading.share, part=StepPart.DATA, phase=DATA)


def _on_cpus(loading: Loading) -> str:
    """Return in words whether loading computes or waits; empty if that is not known."""
    if loading.waits_mostly is None:
        return ""
    verb = "waits, as for storage, rather than computes" if loading.waits_mostly else "computes"
    return f"; loading mostly {verb}"


def _more_workers(loading: Loading) -> str:
    """Return how many workers to use, as far as there are CPUs for them; if there are none, what else to do."""
    needed = loading.workers_needed
    workers = loading.loader.workers or 0
    if needed <= workers:
        return f"{_LESS_WORK} (workers compete with training for CPUs, or their batches wait to be taken over)"
    persistent = " with `persistent_workers=True`" if workers == 0 else ""
    cpus, most = _cpus_of_rank(loading.configuration), _most_workers(loading.configuration)
    # Workers that mostly wait need no CPU each.
    if most is None or cpus is None or needed <= most or loading.waits_mostly:
        return f"about {counted(needed, 'worker')} (`num_workers={needed}`{persistent})"
    threads = _threads_of_rank(loading.configuration)
    limit = f"a rank has {counted(cpus, 'CPU')}"
    if most == 0 and threads > 1:
        all_cpus = "its CPU" if cpus == 1 else f"all of its {cpus} CPUs"
        limit = f"the {threads} threads of a rank use {all_cpus}"
    if most > workers:
        return f"`num_workers={most}`{persistent}, and {_LESS_WORK} (about {needed} workers are needed, and {limit})"
    if loading.waits_mostly is None:
        return f"{_LESS_WORK}, or `num_workers={needed}` if loading waits rather than computes ({limit})"
    return f"{_LESS_WORK} (about {counted(needed, 'worker')} would be needed, and {limit})"


def _cpus_of_rank(configuration: Configuration) -> int | None:
    """Return the number of CPUs that there are for each rank of a node, at least 1; None if it is not known."""
    cpus = configuration.mean("usable_cpus")
    if not cpus:
        return None
    ranks_of_node = configuration["devices"] // (configuration["nodes"] or 1)
    return max(1, round(cpus) // max(1, ranks_of_node))


def _threads_of_rank(configuration: Configuration) -> int:
    """Return the number of threads in which a rank computes on CPUs; 1 if it is not known."""
    return round(configuration.mean("intraop_threads") or 1)


def _most_workers(configuration: Configuration) -> int | None:
    """Return the number of workers of a rank for which there are CPUs beside the rank's threads; None if unknown.

    A rank that trains on a GPU leaves its CPU to a worker most of the time.
    """
    cpus = _cpus_of_rank(configuration)
    if cpus is None:
        return None
    if configuration["device"] != "cpu":
        return max(1, cpus - 1)
    return max(0, cpus - _threads_of_rank(configuration))


def slow_batches(loading: Loading) -> Iterator[Diagnosis]:
    """Yield that single batches take longer than what is loaded ahead lasts.

    While a worker is at such a batch, steps use what all workers have loaded ahead, and then wait.
    """
    loader, waits = loading.loader, loading.waits
    if loading.share < LEAST or waits.rare is None or not loader.workers or not loader.prefetch_factor:
        return
    # A slow batch takes as long as the steps that use the batches loaded ahead, and the wait. So many batches of each
    # worker last for that time.
    ahead = loader.workers * loader.prefetch_factor
    slow_batch_s = ahead * waits.rest_s + waits.rare.wait_s
    needed = math.ceil(slow_batch_s / (loader.workers * waits.rest_s))
    if needed > MOST_PREFETCHED:
        return
    steps_per_wait = round(1 / waits.rare.step_share)
    evidence = (
        f"one of {number(steps_per_wait)} steps waits {duration(waits.rare.wait_s)} for data, and the others hardly "
        f"({percent(loading.share)} of the time): single batches take longer to load than the {ahead} batches that "
        "workers load ahead last"
    )
    remedy = f"about `prefetch_factor={needed}` (now {loader.prefetch_factor})"
    yield Diagnosis(evidence, remedy, loading.share, part=StepPart.DATA, phase=DATA)
