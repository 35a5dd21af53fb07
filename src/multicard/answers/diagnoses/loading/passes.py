"""Diagnoses of slow loading at the start and the end of a pass over the data, and of samplers.

Workers begin to load when a pass begins, and a sampler may draw the order of a whole pass before its first batch.
"""

from collections.abc import Iterator, Sequence

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host.host_work import WorkOfSteps, place
from multicard.answers.diagnoses.loading.facts import Loading, Sampling
from multicard.answers.diagnoses.loading.waits import Waits
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.host_work import STARTING, STOPPING
from multicard.core.layout import DATA
from multicard.core.units import duration, number, percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration

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
# Workers start in each step if they start in this share of the steps or more.
NEARLY_EACH = 0.9


def diagnoses(loading: Loading, work: Sequence[WorkOfSteps]) -> Iterator[Diagnosis]:
    """Yield what the sampler takes, and what the start and the end of a pass take besides. `work`: of the hosts."""
    sampling = loading.sampling
    by_sampler = [] if sampling is None else list(_slow_sampler(loading, sampling))
    yield from by_sampler
    # What a slow sampler takes at the start of a pass is not reported twice.
    sampler_at_start_s = 0.0
    if sampling is not None and by_sampler and not sampling.is_in_each_step:
        sampler_at_start_s = sampling.seconds
    # Workers that stay start once; those that start in measured steps are of another loader.
    starts = None
    if not loading.loader.keeps_workers:
        starts = next((piece for piece in work if piece.kind == STARTING), None)
    yield from _starts_and_ends(loading, starts, sampler_at_start_s)


def _slow_sampler(loading: Loading, sampling: Sampling) -> Iterator[Diagnosis]:
    """Yield what the sampler takes."""
    waits = loading.waits
    seconds = sampling.seconds
    if not sampling.is_in_each_step:
        # Measured steps may hold more starts of passes than a pass of so many steps has.
        seconds = min(seconds, waits.boundary_s)
    share = seconds / waits.step_s
    if share < LEAST:
        return
    name = f"`{loading.loader.sampler}`" if loading.loader.sampler else "the sampler"
    if sampling.is_in_each_step:
        when = f"{duration(seconds)} of each step"
    else:
        when = f"{duration(seconds * (waits.pass_steps or 1))} {_at_start(waits)}"
    evidence = f"{name} takes {when} ({percent(share)} of the time{place(sampling.site, ', called by ', '')})"
    yield Diagnosis(evidence, _FAST_SAMPLER, share, part=loading.part_of(share), phase=DATA)


def _starts_and_ends(loading: Loading, starts: WorkOfSteps | None, sampler_s: float) -> Iterator[Diagnosis]:
    """Yield what the start and the end of a pass take, without what a slow sampler takes of them.

    `starts`: starts of workers, None if there are none. `sampler_s`: seconds of a step, on average, of the sampler.
    """
    waits = loading.waits
    # Seconds of a step, on average over a pass.
    seconds = max(0.0, waits.boundary_s - sampler_s)
    share = seconds / waits.step_s
    if share < LEAST or waits.pass_steps is None:
        return
    without_sampler = " (without the sampler)" if sampler_s else ""
    pass_s = seconds * waits.pass_steps
    if starts is not None:
        first_s = max(0.0, pass_s - waits.last_s)
        stopping = f", and {duration(waits.last_s)} at its end, until they have stopped" if waits.last_s > 0 else ""
        evidence = (
            f"`{starts.function}`{place(starts.site)} starts its workers {_at_start(waits)}, which then waits "
            f"{duration(first_s)} longer{without_sampler}{stopping} ({percent(share)} of the time)"
        )
        remedy = _KEEP_WORKERS
    else:
        evidence = (
            f"the first step of each pass waits {duration(pass_s)} longer for data than others{without_sampler} "
            f"({percent(share)} of the time, with {number(round(waits.pass_steps, 1))} steps in a pass)"
        )
        remedy = _LONGER_PASSES if loading.loader.workers else _FAST_START
    yield Diagnosis(evidence, remedy, share, part=loading.part_of(share), phase=DATA)


def _at_start(waits: Waits) -> str:
    return f"at the start of each pass of {number(round(waits.pass_steps or 0.0, 1))} steps"


def iterator_in_each_step(configuration: Configuration, work: Sequence[WorkOfSteps]) -> Iterator[Diagnosis]:
    """Yield that each step makes a new iterator, so that a pass has one step: most that workers load is never used."""
    starts = [piece for piece in work if piece.kind == STARTING]
    step_s, data_s = configuration.mean(STEP_TIME), configuration.mean("data_s")
    starts_per_step = sum(piece.calls for piece in starts)
    if starts_per_step < NEARLY_EACH or not step_s or data_s is None:
        return
    # Workers of the last iterator may be stopped when the next one takes its place, which is no wait for data.
    stopping_s = sum(piece.seconds for piece in work if piece.kind == STOPPING and piece.phase != DATA)
    seconds = data_s + stopping_s
    share = seconds / step_s
    if share < LEAST:
        return
    evidence = (
        f"`{starts[0].function}`{place(starts[0].site)} starts workers in each step and stops them after one batch: "
        f"with the wait for it, this takes {duration(seconds)} of a step ({percent(share)})"
    )
    yield Diagnosis(evidence, _ONE_ITERATOR, share, part=StepPart.DATA, phase=DATA)
