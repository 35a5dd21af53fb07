"""Diagnoses of what the host does in steps that no phase shows: collecting garbage, saving, exchanging by itself.

The ranks of a run record this work (`observe.host_work`), and `results` gathers it in the table `host_work`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST, mean_parts
from multicard.answers.diagnoses.diagnosis import OUTSIDE, RARE, Diagnosis
from multicard.answers.diagnoses.host.regular import Period, period_of
from multicard.core.grouping import grouped
from multicard.core.host_work import AUTOMATIC, COLLECTIVE, COMPILING, GARBAGE, SAVING
from multicard.core.text import listed
from multicard.core.units import duration, number, percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup

# A cause is named if it takes at least `LEAST` of the time, as a bottleneck is.
# What to do instead of collecting garbage, and of saving.
_COLLECT_RARELY = "no `gc.collect()` in the loop, or one in some hundred steps"
_FREEZE = "`gc.freeze()` once all is loaded, or `gc.disable()` and one collection in some hundred steps"
_SAVE_RARELY = "less frequent saving, or a copy of the state that a thread writes"
# Parts of a step in which GPUs may be idle because of the host's own work.
_IDLE_FOR_HOST = (StepPart.HOST_ELSEWHERE, StepPart.LAUNCHES)
# Collections of garbage are several if there are some in at least so many steps.
SEVERAL = 3
# Collectives outside of the model's passes are many if there are at least so many in a step.
MANY_CALLS = 4
# Compilations in less than this share of the steps belong to the warm-up.
RARELY = 0.2
_WARM_UP = "a longer warm-up (`warmup_steps`, `--warmup`), so that nothing is compiled in measured steps"
_FEW_SHAPES = (
    "`torch.compile(dynamic=True)`, or batches padded to a few different shapes (`TORCH_LOGS=recompiles` shows what "
    "differs)"
)
# What to do about collectives outside of the model's passes, and within these.
EXCHANGE_ONCE = "fewer and larger exchanges, as by `DistributedDataParallel` or of one flat tensor"
_NOT_EACH_STEP = "an exchange in one of many steps, if it is for logging"
_EXCHANGE_RARELY = "fewer or larger exchanges between a batch and its update"
_LESS_SYNCHRONIZED = (
    "plain batch norm, if a rank's batch is large enough for its statistics, or fewer synchronized layers"
)
_SHARD_LESS = "weights that are not sharded, if they fit, or larger shards"
# Functions by which sharded weights are gathered and their gradients scattered.
_OF_SHARDS = ("all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True)
class WorkOfSteps:
    """Work of one kind, by one function in one phase, of the hosts of a configuration. Made by `work_of`.

    Numbers are of one rank and one measured step, means over repeats. Of a collective the rank counts that is in it for
    the shortest time, because the others wait in it for this rank; of other work the one with the longest.
    """

    kind: str
    function: str
    phase: str | None
    calls: float
    seconds: float
    # File and line of the user's code with the first call: "train.py:12"; None if no such code is on the stack.
    site: str | None

    @property
    def words(self) -> str:
        """The calls in words: "104 all_reduce a step (train.py, line 12)"."""
        calls = f"{number(round(self.calls, 1))} " if self.kind == COLLECTIVE else ""
        name = "collections of garbage" if self.function == AUTOMATIC else self.function
        site = None if self.function == AUTOMATIC else self.site
        return f"{calls}{name}{' a step' if calls else ''}{place(site)}"


def work_of(configuration: Configuration, results: Results) -> list[WorkOfSteps]:
    """Return the work of the hosts in the measured steps of a configuration, the longest first."""
    table = _rows_of(configuration, results)
    steps = {run.run: run.number("measured_steps") or 1.0 for run in configuration.completed}
    pieces = []
    for (kind, function), rows in table.groupby(["kind", "function"], sort=False):
        counted = _of_the_rank_that_counts(rows, is_collective=kind == COLLECTIVE)
        for phase, of_phase in counted.groupby("phase", dropna=False, sort=False):
            run_steps = of_phase["run"].map(steps) * len(steps)
            pieces.append(
                WorkOfSteps(
                    kind=str(kind),
                    function=str(function),
                    phase=None if pd.isna(phase) else str(phase),
                    calls=float((of_phase["calls"] / run_steps).sum()),
                    seconds=float((of_phase["seconds"] / run_steps).sum()),
                    site=next((site for site in of_phase["site"] if not pd.isna(site)), None),
                )
            )
    return sorted(pieces, key=lambda piece: -piece.seconds)


def _of_the_rank_that_counts(rows: pd.DataFrame, is_collective: bool) -> pd.DataFrame:
    """Return the rows of one rank of each run: see `WorkOfSteps`. `rows`: of one function, in all phases."""
    seconds = rows.groupby(["run", "rank"])["seconds"].sum().sort_values(ascending=is_collective)
    chosen = seconds.reset_index().drop_duplicates("run")
    return rows.merge(chosen[["run", "rank"]], on=["run", "rank"])


def diagnoses(configuration: Configuration, results: Results, setup: TrainingSetup | None = None) -> list[Diagnosis]:
    """Return what the hosts of a configuration lose time by. `setup`: how its ranks train; None if that is unknown."""
    step_s = configuration.mean("iteration_time_s")
    if step_s is None:
        return []
    work = work_of(configuration, results)
    return [
        *_garbage(configuration, results, work, step_s),
        *_collectives(work, configuration, step_s, setup or TrainingSetup()),
        *_rare_work(configuration, results, work, SAVING, "saves", _SAVE_RARELY),
        *_compiling(configuration, results, work, step_s),
    ]


def _share_of_host(configuration: Configuration) -> float:
    """Return the largest share of a step that the host may take: on GPUs the share in which they are idle for it.

    It is 0 if that is not known.
    """
    if configuration["device"] == "cpu":
        return 1.0
    parts = mean_parts(configuration)
    return sum(parts.get(part, 0.0) for part in _IDLE_FOR_HOST)


def _garbage(
    configuration: Configuration, results: Results, work: Sequence[WorkOfSteps], step_s: float
) -> Iterator[Diagnosis]:
    """Yield what collections of garbage take, if there are several.

    There must be collections in `SEVERAL` steps or more. Python collects garbage of all generations so rarely that a
    window of steps holds one such collection, or none, by chance. So those that it makes by itself must take `LEAST` of
    the time even without the longest one. On GPUs collections take at most the share of the time in which these are
    idle for the host.
    """
    by_function = grouped([piece for piece in work if piece.kind == GARBAGE], lambda piece: piece.function)
    most = _share_of_host(configuration)
    for function, parts in by_function.items():
        seconds = sum(piece.seconds for piece in parts)
        share = min(seconds / step_s, most)
        is_automatic = function == AUTOMATIC
        steps, longest_s = _collecting_steps(configuration, results, function)
        by_chance_s = longest_s if is_automatic else 0.0
        if share < LEAST or steps < SEVERAL or (seconds - by_chance_s) / step_s < LEAST:
            continue
        who = "Python" if is_automatic else f"`{function}`{place(parts[0].site)}"
        evidence = f"{who} collects garbage for {duration(seconds)} of a step ({percent(seconds / step_s)})"
        yield Diagnosis(evidence, _FREEZE if is_automatic else _COLLECT_RARELY, share)


def _collecting_steps(configuration: Configuration, results: Results, function: str) -> tuple[float, float]:
    """Return in how many steps of a run garbage is collected, and what the longest collection takes.

    The latter is at most the time by which the longest step of the rank is longer than its median step, without waits
    for data and evaluation, divided by the number of steps, as all work is. It is 0 if the times of steps are not
    known. Both are means over repeats.
    """
    rows = _rows_of(configuration, results)
    collections = _of_the_rank_that_counts(rows[rows["function"] == function], is_collective=False)
    steps = results.table("steps")
    measured = steps[steps["window"] == "measured"]
    step_counts: list[float] = []
    longest_s: list[float] = []
    for (run, rank), collections_of_rank in collections.groupby(["run", "rank"]):
        steps_of_rank = measured[(measured["run"] == run) & (measured["rank"] == rank)]
        step_counts.append(float(collections_of_rank["steps"].max()))
        longest_s.append(_longest_beyond_median(steps_of_rank))
    # A run without a collection has no rows.
    runs = len(configuration.completed)
    return sum(step_counts) / runs, sum(longest_s) / runs


def _longest_beyond_median(steps: pd.DataFrame) -> float:
    """Return by how many seconds the longest step exceeds the median one, divided by the number of steps; 0 for none.

    Waits for data and evaluation do not count.
    """
    if not len(steps):
        return 0.0
    durations_s = steps["duration_s"] - steps["data_s"].fillna(0.0) - steps["evaluation_s"].fillna(0.0)
    return float(durations_s.max() - durations_s.median()) / len(steps)


def _collectives(
    work: Sequence[WorkOfSteps], configuration: Configuration, step_s: float, setup: TrainingSetup
) -> Iterator[Diagnosis]:
    """Yield what collectives take: those of sharded weights, those of layers within the model's passes, and the rest.

    Of GPUs only the launch of a collective is known, so there is no diagnosis.
    """
    if configuration["device"] != "cpu":
        return
    collectives = [
        piece
        for piece in work
        if piece.kind == COLLECTIVE and piece.phase != "evaluation" and not _is_of_buckets(piece, setup)
    ]
    is_sharded = setup.wrapper in ("FSDP", None)
    of_shards = [piece for piece in collectives if is_sharded and piece.function in _OF_SHARDS]
    others = [piece for piece in collectives if piece not in of_shards]
    in_passes = [piece for piece in others if piece.phase in ("forward", "backward")]
    outside = [piece for piece in others if piece.phase not in ("forward", "backward")]
    has_many = sum(piece.calls for piece in outside) >= MANY_CALLS
    remedies = (
        (outside, EXCHANGE_ONCE if has_many else _NOT_EACH_STEP),
        (of_shards, _SHARD_LESS),
        (in_passes, _LESS_SYNCHRONIZED if setup.synchronized_norms else _EXCHANGE_RARELY),
    )
    for parts, remedy in remedies:
        seconds = sum(piece.seconds for piece in parts)
        share = seconds / step_s
        if share >= LEAST:
            calls = listed([piece.words for piece in parts[:2]])
            is_one = len(parts) == 1 and number(round(parts[0].calls, 1)) == "1"
            evidence = f"{calls} {'takes' if is_one else 'take'} {duration(seconds)} of a step ({percent(share)})"
            is_made_rare = remedy == _NOT_EACH_STEP
            yield Diagnosis(
                evidence,
                remedy,
                share,
                phase=OUTSIDE if parts is outside else None,
                least_share=(1 - RARE) * share if is_made_rare else None,
                most_share=share,
                is_made_rare=is_made_rare,
            )


def _is_of_buckets(piece: WorkOfSteps, setup: TrainingSetup) -> bool:
    """Return True if a collective exchanges the buckets of gradients, in a hook of `DistributedDataParallel`.

    Then it is called once for each of them. `gradient_exchange` tells of these.
    """
    buckets = round((setup.exchanged_passes or 0) * (setup.buckets or 0))
    return piece.phase == "backward" and buckets >= 1 and round(piece.calls) == buckets


def _compiling(
    configuration: Configuration, results: Results, work: Sequence[WorkOfSteps], step_s: float
) -> Iterator[Diagnosis]:
    """Yield what torch.compile takes in measured steps: for new shapes, or since the warm-up is too short.

    Where some steps do not compile, it is the time by which those that do are longer. Where all compile, it is the time
    within torch.compile, to which more comes that is not timed: the first run of what was compiled, the search for
    compiled code that fits, and on several ranks the waits for the one that compiles longest in a step.
    """
    compiling = [piece for piece in work if piece.kind == COMPILING]
    seconds = sum(piece.seconds for piece in compiling)
    table = _rows_of(configuration, results)
    rows = table[table["kind"] == COMPILING]
    if rows.empty:
        return
    long_steps = _long_steps_of_runs(rows, results)
    share = fmean(steps.share for steps in long_steps) if long_steps else seconds / step_s
    if share < LEAST:
        return
    steps = fmean(run.number("measured_steps") or 1.0 for run in configuration.completed)
    compiled = float(rows.groupby(["run", "rank"])["steps"].max().mean())
    evidence = (
        f"`torch.compile` compiles in {number(round(compiled, 1))} of {number(round(steps, 1))} measured steps, "
        f"{duration(share * step_s)} of a step ({percent(share)})"
    )
    remedy = _WARM_UP if compiled / steps < RARELY else _FEW_SHAPES
    # A GPU may work on while the host compiles. Where steps are compared, the share is all that is lost.
    is_least = configuration["device"] == "cpu" and not long_steps
    yield Diagnosis(evidence, remedy, share, least_share=share if is_least else None)


class _LongSteps(NamedTuple):
    """The steps of one run that have work of some kind."""

    longer_s: float  # by how much they are longer than the median of the others, without evaluations
    frequency: float  # their share of the measured steps
    period: Period | None  # their period, if they come at equal distances
    share: float  # of the time of all steps by which they are longer


def _rare_work(
    configuration: Configuration, results: Results, work: Sequence[WorkOfSteps], kind: str, does: str, remedy: str
) -> Iterator[Diagnosis]:
    """Yield what work of one kind takes that only some steps have: the time by which these are longer than the others.

    Work that all steps have takes the time of its calls. `does`: what the function of that kind does, in words.
    """
    calls_s = sum(piece.seconds for piece in work if piece.kind == kind)
    step_s = configuration.mean("iteration_time_s")
    table = _rows_of(configuration, results)
    rows = table[table["kind"] == kind]
    if rows.empty or not step_s:
        return
    known = _long_steps_of_runs(rows, results)
    first = rows.iloc[0]
    call = f"`{first['function']}`{place(first['site'])} {does}"
    if not known:
        share = calls_s / step_s
        working = fmean(float(of_run["steps"].max()) for _, of_run in rows.groupby("run"))
        all_steps = fmean(run.number("measured_steps") or 1.0 for run in configuration.completed)
        is_in_each = round(working) >= round(all_steps)
        when = "each step" if is_in_each else f"{number(round(working))} of {number(round(all_steps))} steps"
        each_s = calls_s * all_steps / working
        evidence = f"{call} in {when}, for {duration(each_s)} ({percent(share)} of the time)"
    else:
        share = fmean(long_steps.share for long_steps in known)
        frequency = fmean(long_steps.frequency for long_steps in known)
        periods = {long_steps.period.words for long_steps in known if long_steps.period}
        is_regular = len(periods) == 1 and all(long_steps.period for long_steps in known)
        when = periods.pop() if is_regular else f"one of {round(1 / frequency)} steps"
        longer_s = fmean(long_steps.longer_s for long_steps in known)
        within_s = calls_s / frequency
        within = f"{duration(within_s)} of it within the call"
        takes = f"takes {duration(longer_s)} longer ({percent(share)} of the time; {within})"
        evidence = f"{call} in {when}, which then {takes}"
    is_outside = all(piece.phase is None for piece in work if piece.kind == kind)
    if share >= LEAST:
        yield Diagnosis(evidence, remedy, share, phase=OUTSIDE if is_outside else None)


def _long_steps_of_runs(work: pd.DataFrame, results: Results) -> list[_LongSteps]:
    """Return `_long_steps` of each run for which they are known. `work`: rows of the table `host_work` of one kind."""
    steps = results.table("steps")
    measured = dict(list(steps[steps["window"] == "measured"].groupby("run")))
    of_runs = [_long_steps(rows, measured[run]) for run, rows in work.groupby("run") if run in measured]
    return [long_steps for long_steps in of_runs if long_steps is not None]


def _long_steps(work: pd.DataFrame, steps: pd.DataFrame) -> _LongSteps | None:
    """Return the steps of one run that have the work; None if all measured steps have it, or not all numbers are known.

    `work`: rows of the table `host_work` of one run and kind. `steps`: its measured steps. A step is as long as on its
    slowest rank, because the other ranks wait for the one that does the work.
    """
    numbers = {int(step) for text in work["first_steps"] for step in text.split(", ") if step}
    time_s = steps["duration_s"] - steps["evaluation_s"].fillna(0.0)
    longest_s = time_s.groupby(steps["step"]).max()
    has_work = longest_s.index.isin(numbers)
    if has_work.all() or not has_work.any() or work["steps"].max() > len(numbers):
        return None
    longer_s = float((longest_s[has_work] - longest_s[~has_work].median()).mean())
    frequency = float(has_work.mean())
    share = longer_s * frequency / float(longest_s.mean())
    return _LongSteps(longer_s, frequency, period_of(numbers & set(longest_s.index), longest_s.index), share)


def grown_work(
    configuration: Configuration, baseline: Configuration, work_share: float, results: Results
) -> list[WorkOfSteps]:
    """Return the work that takes longer than in the ideal step, with the seconds by which it does, the longest first.

    `work_share`: as of `growth.Growth`. The result is empty for GPUs, because the host's time is not theirs.
    """
    if configuration["device"] != "cpu":
        return []
    before = {(piece.function, piece.phase): piece.seconds * work_share for piece in work_of(baseline, results)}
    grown = []
    for piece in work_of(configuration, results):
        seconds = piece.seconds - before.get((piece.function, piece.phase), 0.0)
        if seconds > 0:
            grown.append(replace(piece, seconds=seconds))
    return sorted(grown, key=lambda work: -work.seconds)


def _rows_of(configuration: Configuration, results: Results) -> pd.DataFrame:
    """Return the rows of the table `host_work` of the completed runs of a configuration."""
    table = results.table("host_work")
    return table[table["run"].isin([run.run for run in configuration.completed])]


def place(site: str | None, before: str = " (", after: str = ")") -> str:
    """Return a site in words, in brackets or between other texts; empty without one.

    >>> place("train.py:12"), place("train.py:12", ", in ", ""), place(None)
    (' (train.py, line 12)', ', in train.py, line 12', '')
    """
    if site is None or pd.isna(site):
        return ""
    file, _, line = site.rpartition(":")
    return f"{before}{file}, line {line}{after}"
