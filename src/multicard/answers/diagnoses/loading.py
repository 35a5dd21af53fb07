"""Diagnoses of slow loading: no workers or too few, the start of a pass, slow samplers, and copies of unpinned memory.

A rank's steps tell how long they wait for data (`waits`), its record how its loader loads (table `loaders`), and its
host's work what of that is the sampler's or the start and end of workers (`host_work`). With runs that went without
loading (`answers.ablation`), the time of a worker is measured, and not inferred from the waits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from multicard.answers.ablation import ABLATED, PartCost, costs
from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts
from multicard.answers.diagnoses.code_lines import lines_in_words
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host_work import WorkOfSteps, place, work_of
from multicard.answers.diagnoses.waits import Waits, rank_that_waits, waits_of
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.host_work import SAMPLING, STARTING, STOPPING
from multicard.core.layout import DATA, EVALUATION
from multicard.core.text import counted
from multicard.core.units import duration, number, percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.results.tables import KnownValues, known_values

_LESS_WORK = "less work per sample, as by decoding, resizing or tokenizing once, beforehand"
_KEEP_WORKERS = "`persistent_workers=True`, so that workers stay from one pass to the next"
_LONGER_PASSES = (
    "longer passes, as by a sampler that repeats the data, or less work before the first batch (workers load nothing "
    "ahead of a pass)"
)
_FAST_START = "less work at the start of a pass, in `__iter__` of the sampler or of the data set"
_FAST_SAMPLER = (
    "a sampler that yields its first indices at once, or has its order made beforehand (it works in the training "
    "thread, whatever the number of workers)"
)
_ONE_ITERATOR = (
    "one iterator for all batches of a pass (`for batch in loader`), in place of a new one in each step, such as "
    "`next(iter(loader))`"
)
_PIN = "`pin_memory=True` of the loader, with copies by `.to(device, non_blocking=True)`"
# Workers start in each step if they start in this share of the steps or more.
NEARLY_EACH = 0.9
# Workers are enough if they load in at most so many times the time of the rest of a step: times are not more exact.
ENOUGH = 1.05
# Loading computes mostly if it uses a CPU for at least this share of its time. If it does not, it waits mostly.
MOSTLY_COMPUTES = 0.5
# Seconds that it may take to take a batch over from a worker. Loading that is shorter is not gained by workers: from a
# worker that waited with the batch, two busy CPUs took 2 ms, and 0.4 ms to load it in the training thread.
HANDOVER_S = 0.001
# A cause explains the wait for data if it takes at least this share of it.
MOST_OF_LOADING = 0.5
# More batches than so many ahead for each worker need too much memory to be proposed.
MOST_PREFETCHED = 16


@dataclass(frozen=True)
class _Loader:
    """How the one loader of each rank loads; None for what is not known. See `runs.record.LoaderRecord`."""

    workers: int | None
    prefetch_factor: int | None
    pinned: bool | None
    sampler: str | None
    keeps_workers: bool | None
    # CPU seconds of a step in which it loads.
    cpu_s: float | None


@dataclass(frozen=True)
class _Loading:
    """What is known of the loading of a configuration."""

    configuration: Configuration
    loader: _Loader
    waits: Waits
    # Seconds that the sampler takes of a step, if it takes them in all steps alike; else 0.
    sampler_s: float
    # What loading costs by runs without it; None if there are none.
    cost: PartCost | None

    @property
    def share(self) -> float:
        """Share of the time that steps wait which neither begin nor end a pass, without the wait for the sampler."""
        return max(0.0, self.waits.usual_s - self.sampler_s) / self.waits.step_s

    @property
    def worker_s(self) -> float:
        """About the seconds in which one worker, or the training thread, loads the batches of a step.

        Workers that are the limit are never idle, so that each of w takes w steps for its batch.
        """
        workers = self.loader.workers or 0
        if self.measured is not None:
            return self.measured[0] * max(1, workers)
        if workers == 0:
            return self.waits.usual_s - self.sampler_s
        return workers * (self.waits.usual_s + self.waits.rest_s)

    @property
    def rest_s(self) -> float:
        """The seconds of a step without loading."""
        return self.waits.rest_s if self.measured is None else self.measured[1]

    @property
    def measured(self) -> tuple[float, float] | None:
        """The seconds in which the loader alone loads a step, and those of a step without loading; None if unknown."""
        if self.cost is None:
            return None
        alone_s, step_s = self.cost.without.mean("loader_alone_s"), self.cost.without.mean(STEP_TIME)
        return (alone_s, step_s) if alone_s and step_s else None

    def part_of(self, share: float) -> StepPart | None:
        """Return the part of the step that a cause explains which takes this share: loading, if it is most of that."""
        data_share = mean_parts(self.configuration).get(StepPart.DATA, 0.0)
        return StepPart.DATA if share >= MOST_OF_LOADING * data_share else None

    @property
    def waits_mostly(self) -> bool | None:
        """Whether loading waits, as for storage, for more than half of its time; None if that is not known."""
        if self.loader.cpu_s is None:
            return None
        return self.loader.cpu_s < MOSTLY_COMPUTES * self.worker_s

    @property
    def workers_needed(self) -> int:
        """The number of workers that load the batches of a step in the time of its rest; see `ENOUGH`."""
        return max(1, math.ceil(self.worker_s / (ENOUGH * self.rest_s)))


def diagnoses(configuration: Configuration, results: Results) -> list[Diagnosis]:
    """Return why the steps of a configuration wait for data, and copies that wait for unpinned memory."""
    loader = _loader_of(configuration, results)
    if loader is None:
        return []
    causes = _causes(configuration, results, loader)
    # Only without workers ranks wait as long as they load. A worker loads ahead while its rank waits for another one.
    alone = rank_that_waits(configuration, results) if loader.workers == 0 else None
    return [
        replace(cause, evidence=f"{cause.evidence}; {alone}") if alone and cause.phase == DATA else cause
        for cause in causes
    ]


def _causes(configuration: Configuration, results: Results, loader: _Loader) -> list[Diagnosis]:
    found = [*_unpinned(configuration, results, loader)]
    waits = waits_of(configuration, results, loader.workers)
    cost = _cost_of_loading(configuration, results)
    if cost is not None and cost.is_excluded:
        return found
    work = [piece for piece in work_of(configuration, results) if piece.phase != EVALUATION]
    if waits is None:
        return [*found, *_start_in_each_step(configuration, work)]
    sampler = next((piece for piece in work if piece.kind == SAMPLING), None)
    sampling_s = sum(piece.seconds for piece in work if piece.kind == SAMPLING)
    is_in_each = sampler is not None and _is_in_most_steps(configuration, results)
    loading = _Loading(configuration, loader, waits, sampling_s if is_in_each else 0.0, cost)
    slow_sampler = [] if sampler is None else list(_slow_sampler(loading, sampler, sampling_s, is_in_each))
    is_sampler_in_turns = bool(slow_sampler) and not is_in_each
    # Workers that stay start once; those that start in measured steps are of another loader.
    starts = None if loader.keeps_workers else next((piece for piece in work if piece.kind == STARTING), None)
    found += slow_sampler
    found += _turns(loading, starts, sampling_s if is_sampler_in_turns else 0.0)
    if loader.workers == 0:
        found += _no_workers(loading, lines_in_words(configuration, results, DATA, "the loading"))
    elif loader.workers and waits.is_steady:
        found += _too_few_workers(loading)
    elif loader.workers:
        found += _slow_batches(loading)
    return found


def _loader_of(configuration: Configuration, results: Results) -> _Loader | None:
    """Return the loader of each rank; None if none is known, or if a rank has several: it is not known which is slow.

    What differs between ranks or repeats is None.
    """
    table = results.table("loaders")
    rows = table[table["run"].isin([run.run for run in configuration.completed])]
    if rows.empty or rows.duplicated(["run", "rank"]).any():
        return None

    alike = {name: rows[name].iloc[0] for name in rows if rows[name].nunique(dropna=False) == 1}
    known: KnownValues = known_values(alike)
    return _Loader(
        workers=known.get("num_workers"),
        prefetch_factor=known.get("prefetch_factor"),
        pinned=known.get("pin_memory"),
        sampler=known.get("sampler"),
        keeps_workers=known.get("persistent_workers"),
        cpu_s=None if rows["cpu_s"].isna().any() else float(rows["cpu_s"].mean() / _steps(configuration)),
    )


def _steps(configuration: Configuration) -> float:
    """Return the number of measured steps of a run, mean over repeats."""
    return fmean(run.number("measured_steps") or 1.0 for run in configuration.completed)


def _cost_of_loading(configuration: Configuration, results: Results) -> PartCost | None:
    """Return what loading costs by runs that went without it; None if there are none."""
    if not results.ablated():
        return None
    of_loading = [cost for cost in costs(results) if cost.part == ABLATED[StepPart.DATA]]
    return next((cost for cost in of_loading if cost.configuration.key == configuration.key), None)


def _is_in_most_steps(configuration: Configuration, results: Results) -> bool:
    """Return True if the sampler takes time in more than half of the measured steps."""
    table = results.table("host_work")
    rows = table[(table["kind"] == SAMPLING) & table["run"].isin([run.run for run in configuration.completed])]
    most_steps = rows.groupby("run")["steps"].max()
    return all(2 * most_steps.get(run.run, 0) > (run.number("measured_steps") or 0) for run in configuration.completed)


# Single steps, and the start and end of a pass.


def _slow_sampler(loading: _Loading, work: WorkOfSteps, seconds: float, is_in_each: bool) -> Iterator[Diagnosis]:
    """Yield what the sampler takes. `seconds`: of a step, on average over the measured ones."""
    waits = loading.waits
    # Measured steps may hold more starts of passes than a pass of so many steps has.
    share = seconds / waits.step_s if is_in_each else min(seconds, waits.turn_s) / waits.step_s
    if share < LEAST:
        return
    name = f"`{loading.loader.sampler}`" if loading.loader.sampler else "the sampler"
    if is_in_each:
        when = f"{duration(seconds)} of each step"
    else:
        when = f"{duration(share * waits.step_s * (waits.pass_steps or 1))} {_at_start(waits)}"
    evidence = f"{name} takes {when} ({percent(share)} of the time{place(work.site, ', called by ', '')})"
    yield Diagnosis(evidence, _FAST_SAMPLER, share, part=loading.part_of(share), phase=DATA)


def _turns(loading: _Loading, starts: WorkOfSteps | None, sampling_s: float) -> Iterator[Diagnosis]:
    """Yield what the start and the end of a pass take, without what a slow sampler takes of them.

    `starts`: starts of workers, None if there are none. `sampling_s`: seconds of a step, on average, of the sampler.
    """
    waits = loading.waits
    turn_s = max(0.0, waits.turn_s - sampling_s)
    share = turn_s / waits.step_s
    if share < LEAST or waits.pass_steps is None:
        return
    without = " (without the sampler)" if sampling_s else ""
    if starts is not None:
        first_s = max(0.0, turn_s * waits.pass_steps - waits.last_s)
        stopping = f", and {duration(waits.last_s)} at its end, until they have stopped" if waits.last_s > 0 else ""
        evidence = (
            f"`{starts.function}`{place(starts.site)} starts its workers {_at_start(waits)}, which then waits "
            f"{duration(first_s)} longer{without}{stopping} ({percent(share)} of the time)"
        )
        yield Diagnosis(evidence, _KEEP_WORKERS, share, part=loading.part_of(share), phase=DATA)
        return
    evidence = (
        f"the first step of each pass waits {duration(turn_s * waits.pass_steps)} longer for data than others{without} "
        f"({percent(share)} of the time, with {number(round(waits.pass_steps, 1))} steps in a pass)"
    )
    remedy = _LONGER_PASSES if loading.loader.workers else _FAST_START
    yield Diagnosis(evidence, remedy, share, part=loading.part_of(share), phase=DATA)


def _start_in_each_step(configuration: Configuration, work: list[WorkOfSteps]) -> Iterator[Diagnosis]:
    """Yield that each step makes an iterator of its own, so that a pass has one step: workers load much for nothing."""
    starts = [piece for piece in work if piece.kind == STARTING]
    step_s, data_s = configuration.mean(STEP_TIME), configuration.mean("data_s")
    if sum(piece.calls for piece in starts) < NEARLY_EACH or not step_s or data_s is None:
        return
    # Workers of the last iterator may be stopped when the next one takes its place, which is no wait for data.
    stopping_s = sum(piece.seconds for piece in work if piece.kind == STOPPING and piece.phase != DATA)
    seconds = data_s + stopping_s
    if seconds / step_s < LEAST:
        return
    evidence = (
        f"`{starts[0].function}`{place(starts[0].site)} starts workers in each step and stops them after one batch: "
        f"with the wait for it, this takes {duration(seconds)} of a step ({percent(seconds / step_s)})"
    )
    yield Diagnosis(evidence, _ONE_ITERATOR, seconds / step_s, part=StepPart.DATA, phase=DATA)


def _at_start(waits: Waits) -> str:
    return f"at the start of each pass of {number(round(waits.pass_steps or 0.0, 1))} steps"


# Loading that is too slow for the rest of a step.


def _no_workers(loading: _Loading, lines: str | None) -> Iterator[Diagnosis]:
    """Yield that the training thread loads. `lines`: where in the code it does, in words; None if that is unknown."""
    took_s = loading.share * loading.waits.step_s
    if loading.share < LEAST or took_s < HANDOVER_S:
        return
    evidence = (
        f"the training thread itself loads (`num_workers=0`), {duration(took_s)} of a step ({percent(loading.share)} "
        f"of the time), and the rest of it takes {duration(loading.rest_s)}{_on_cpus(loading)}"
    )
    if lines:
        evidence += f"; {lines}"
    yield Diagnosis(evidence, _more_workers(loading), loading.share, part=StepPart.DATA, phase=DATA)


def _too_few_workers(loading: _Loading) -> Iterator[Diagnosis]:
    """Yield that workers cannot keep up with the rest of the step."""
    workers = loading.loader.workers
    if loading.share < LEAST or not workers:
        return
    gives = "1 worker gives" if workers == 1 else f"{workers} workers give"
    batch_s = loading.worker_s / workers
    evidence = (
        f"{gives} the data of a step in about {duration(batch_s)}, and the rest of it takes "
        f"{duration(loading.rest_s)}: steps wait for {percent(loading.share)} of the time{_on_cpus(loading)}"
    )
    yield Diagnosis(evidence, _more_workers(loading), loading.share, part=StepPart.DATA, phase=DATA)


def _on_cpus(loading: _Loading) -> str:
    """Return in words whether loading computes or waits; empty if that is not known."""
    if loading.waits_mostly is None:
        return ""
    does = "waits, as for storage, rather than computes" if loading.waits_mostly else "computes"
    return f"; loading mostly {does}"


def _more_workers(loading: _Loading) -> str:
    """Return how many workers to use, as far as there are CPUs for them; if there are none, what else to do."""
    needed = loading.workers_needed
    workers = loading.loader.workers or 0
    cpus, most = _cpus_of_rank(loading.configuration), _most_workers(loading.configuration)
    persistent = " with `persistent_workers=True`" if workers == 0 else ""
    if needed <= workers:
        return f"{_LESS_WORK} (workers compete with training for CPUs, or their batches wait to be taken over)"
    if most is None or cpus is None or needed <= most or loading.waits_mostly:
        return f"about {counted(needed, 'worker')} (`num_workers={needed}`{persistent})"
    threads = round(loading.configuration.mean("intraop_threads") or 1)
    have = f"a rank has {counted(cpus, 'CPU')}"
    if most == 0 and threads > 1:
        have = f"the {threads} threads of a rank use {'its CPU' if cpus == 1 else f'all of its {cpus} CPUs'}"
    if most > workers:
        return f"`num_workers={most}`{persistent}, and {_LESS_WORK} (about {needed} workers are needed, and {have})"
    if loading.waits_mostly is None:
        return f"{_LESS_WORK}, or `num_workers={needed}` if loading waits rather than computes ({have})"
    return f"{_LESS_WORK} (about {counted(needed, 'worker')} would be needed, and {have})"


def _cpus_of_rank(configuration: Configuration) -> int | None:
    """Return the number of CPUs that there are for each rank of a node, at least 1; None if it is not known."""
    cpus = configuration.mean("usable_cpus")
    ranks = configuration["devices"] // (configuration["nodes"] or 1)
    return None if not cpus else max(1, round(cpus) // max(1, ranks))


def _most_workers(configuration: Configuration) -> int | None:
    """Return the number of workers of a rank for which there are CPUs beside the rank's threads; None if unknown.

    A rank that trains on a GPU leaves its CPU to a worker most of the time.
    """
    cpus = _cpus_of_rank(configuration)
    if cpus is None:
        return None
    if configuration["device"] != "cpu":
        return max(1, cpus - 1)
    return max(0, cpus - round(configuration.mean("intraop_threads") or 1))


def _slow_batches(loading: _Loading) -> Iterator[Diagnosis]:
    """Yield that single batches take longer than what is loaded ahead lasts.

    While a worker is at such a batch, steps use what all workers have loaded ahead, and then wait.
    """
    loader, waits = loading.loader, loading.waits
    if loading.share < LEAST or waits.rare is None or not loader.workers or not loader.prefetch_factor:
        return
    frequency, wait_s = waits.rare
    ahead = loader.workers * loader.prefetch_factor
    needed = math.ceil((ahead * waits.rest_s + wait_s) / (loader.workers * waits.rest_s))
    if needed > MOST_PREFETCHED:
        return
    evidence = (
        f"one of {number(round(1 / frequency))} steps waits {duration(wait_s)} for data, and the others hardly "
        f"({percent(loading.share)} of the time): single batches take longer to load than the {ahead} batches that "
        "workers load ahead last"
    )
    remedy = f"about `prefetch_factor={needed}` (now {loader.prefetch_factor})"
    yield Diagnosis(evidence, remedy, loading.share, part=StepPart.DATA, phase=DATA)


# Copies to GPUs.


def _unpinned(configuration: Configuration, results: Results, loader: _Loader) -> Iterator[Diagnosis]:
    """Yield what copies to GPUs take that are not from pinned memory.

    If GPUs were traced, nothing: `copies` knows which of the copies are.
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
    took = f"{duration(share * step_s)} of a step, " if step_s else ""
    evidence = f"copies from memory that is not pinned (`pin_memory=False`) take {took}{percent(share)} of the time"
    yield Diagnosis(evidence, _PIN, share, part=StepPart.MEMORY_OPERATIONS)
