"""`Loading`: how the loader of a configuration loads, how its steps wait for data, and what of it the sampler takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from multicard.answers.ablation import PartCost
from multicard.answers.bottlenecks.bottlenecks import mean_parts
from multicard.answers.diagnoses.host.host_work import WorkOfSteps
from multicard.answers.diagnoses.loading.waits import Waits
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.host_work import SAMPLING
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.results.tables import KnownValues, known_values

# Workers are enough if they load in at most so many times the time of the rest of a step: times are not more exact.
ENOUGH = 1.05
# Loading computes mostly if it uses a CPU for at least this share of its time. If it does not, it waits mostly.
MOSTLY_COMPUTES = 0.5
# A cause explains the wait for data if it takes at least this share of it.
MOST_OF_LOADING = 0.5


@dataclass(frozen=True)
class Loader:
    """How the one loader of each rank loads, made by `loader_of`; None for what is not known.

    See `runs.record.LoaderRecord`.
    """

    workers: int | None
    prefetch_factor: int | None
    pinned: bool | None
    sampler: str | None
    keeps_workers: bool | None
    # CPU seconds of a step in which it loads.
    cpu_s: float | None


def loader_of(configuration: Configuration, results: Results) -> Loader | None:
    """Return the loader of each rank; None if none is known, or if a rank has several: it is not known which is slow.

    What differs between ranks or repeats is None.
    """
    table = results.table("loaders")
    rows = table[table["run"].isin([run.run for run in configuration.completed])]
    if rows.empty or rows.duplicated(["run", "rank"]).any():
        return None

    common = {name: rows[name].iloc[0] for name in rows if rows[name].nunique(dropna=False) == 1}
    values: KnownValues = known_values(common)
    cpu_s = None
    if rows["cpu_s"].notna().all():
        steps = fmean(run.number("measured_steps") or 1.0 for run in configuration.completed)
        cpu_s = float(rows["cpu_s"].mean() / steps)
    return Loader(
        workers=values.get("num_workers"),
        prefetch_factor=values.get("prefetch_factor"),
        pinned=values.get("pin_memory"),
        sampler=values.get("sampler"),
        keeps_workers=values.get("persistent_workers"),
        cpu_s=cpu_s,
    )


class Sampling(NamedTuple):
    """The time that the sampler takes in the measured steps."""

    # Seconds of a step, on average over the measured ones.
    seconds: float
    # True if it takes time in most steps; False if only in some, as at the start of a pass.
    is_in_each_step: bool
    # File and line of the user's code that calls it: "train.py:12"; None if that is not known.
    site: str | None


class WithoutLoading(NamedTuple):
    """Times that were measured by runs without loading."""

    # Seconds in which the loader alone loads the batches of a step.
    loader_s: float
    # Seconds of a step without loading.
    step_s: float


@dataclass(frozen=True)
class Loading:
    """What is known of the loading of a configuration. Made by `loading.diagnoses`."""

    configuration: Configuration
    loader: Loader
    waits: Waits
    # None if the sampler takes no time that was recorded.
    sampling: Sampling | None
    # What loading costs by runs without it; None if there are none.
    cost: PartCost | None

    @property
    def usual_wait_s(self) -> float:
        """Seconds that a step waits which neither begins nor ends a pass, without the wait for the sampler."""
        in_each_step_s = self.sampling.seconds if self.sampling is not None and self.sampling.is_in_each_step else 0.0
        return self.waits.usual_s - in_each_step_s

    @property
    def share(self) -> float:
        """Share of the time that steps wait for `usual_wait_s`, from 0 to 1."""
        return max(0.0, self.usual_wait_s) / self.waits.step_s

    @property
    def measured(self) -> WithoutLoading | None:
        """The times by runs without loading; None if there are none."""
        if self.cost is None:
            return None
        loader_s, step_s = self.cost.without.mean("loader_alone_s"), self.cost.without.mean(STEP_TIME)
        return WithoutLoading(loader_s, step_s) if loader_s and step_s else None

    @property
    def worker_s(self) -> float:
        """About the seconds in which one worker, or the training thread, loads the batches of a step.

        Workers that are the limit are never idle, so that each of w takes w steps for its batch.
        """
        workers = self.loader.workers or 0
        if self.measured is not None:
            return self.measured.loader_s * max(1, workers)
        if workers == 0:
            return self.usual_wait_s
        return workers * (self.waits.usual_s + self.waits.rest_s)

    @property
    def rest_s(self) -> float:
        """The seconds of a step without loading."""
        return self.waits.rest_s if self.measured is None else self.measured.step_s

    @property
    def waits_mostly(self) -> bool | None:
        """True if loading waits, as for storage, for more than half of its time; None if that is not known."""
        if self.loader.cpu_s is None:
            return None
        return self.loader.cpu_s < MOSTLY_COMPUTES * self.worker_s

    @property
    def workers_needed(self) -> int:
        """The number of workers that load the batches of a step in the time of its rest; see `ENOUGH`."""
        return max(1, math.ceil(self.worker_s / (ENOUGH * self.rest_s)))

    def part_of(self, share: float) -> StepPart | None:
        """Return loading, the part of the step, if a cause with this share explains most of it; else None."""
        data_share = mean_parts(self.configuration).get(StepPart.DATA, 0.0)
        return StepPart.DATA if share >= MOST_OF_LOADING * data_share else None


def sampling_of(work: Sequence[WorkOfSteps], configuration: Configuration, results: Results) -> Sampling | None:
    """Return the time that the sampler takes. `work`: that of the hosts, the longest first (`host_work.work_of`)."""
    samplers = [piece for piece in work if piece.kind == SAMPLING]
    if not samplers:
        return None
    seconds = sum(piece.seconds for piece in samplers)
    return Sampling(seconds, _samples_in_most_steps(configuration, results), site=samplers[0].site)


def _samples_in_most_steps(configuration: Configuration, results: Results) -> bool:
    """Return True if the sampler takes time in more than half of the measured steps of each run."""
    table = results.table("host_work")
    rows = table[(table["kind"] == SAMPLING) & table["run"].isin([run.run for run in configuration.completed])]
    steps_by_run = rows.groupby("run")["steps"].max()
    for run in configuration.completed:
        measured_steps = run.number("measured_steps") or 0
        if 2 * steps_by_run.get(run.run, 0) <= measured_steps:
            return False
    return True
