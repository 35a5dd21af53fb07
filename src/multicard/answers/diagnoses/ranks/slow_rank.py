"""Diagnosis of one rank that is slower than the others, which wait for it in each step.

A rank is slow if its own work (`own_work`) takes longest in nearly all steps, by so much that the others lose
`bottlenecks.LEAST` of the time or more, if that is no slow fluctuation (`_is_certain`), and if it is so in most
repeats. It may be slow from some step on. That is told if the own work beyond that of the others changes by a test that
finds a change in 1% of series without one (`results.stationarity.change_p_value`), and the rank was not slow before.

A worked example, of two ranks and 100 steps. From step 61 on the forward pass of rank 1 takes 25 in place of 10 ms, and
its steps 45 in place of 30. Then rank 0 loses 15 ms in each of 40 steps: 600 ms of 60 × 30 + 40 × 45 = 3600 ms, 17%.

How long the others wait is known if there are steps before. If there are none, the own work is what they wait at least.
A rank whose forward pass takes 1.5 times as long may be as much slower in its backward pass. So if it is slow in
forward passes, they wait at most (1 - 1 / 1.5) of its backward pass longer, which is told, too: the share is then the
larger one, as a gain is at most that.
"""

import math
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.bottlenecks.late_ranks import late_rank
from multicard.answers.diagnoses.diagnosis import OUTSIDE, Diagnosis
from multicard.answers.diagnoses.ranks.own_work import (
    FEWEST_STEPS,
    OwnWork,
    beyond_others,
    own_work_of,
)
from multicard.core.layout import BACKWARD, EVALUATION
from multicard.core.text import listed
from multicard.core.units import duration, percent
from multicard.results.conditions import taken_cpus
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.results import Results
from multicard.results.stationarity import LEVEL, MOST_VALUES, autocorrelation, change_p_value

# A rank is slow if its own work takes longest in at least this share of the steps, which are so many or more. Of 20
# steps of two equal ranks, one of them has 18 or more by chance in 0.04% of the cases.
NEARLY_ALL = 0.9
FEWEST_SLOW = 20
# What its own work exceeds that of the others by is so many standard errors above 0.
SURE = 4
# A phase in which a rank is slow has at least this share of what its own work exceeds that of the others by.
MOST_OF_IT = 0.8
# Where something else used the CPUs of ranks, a rank is slow only if it takes so many times as long as the others: one
# that shares its CPU with one other process takes twice as long.
DISTURBED = 2.0
# A rank with so many times as many samples in a step as the others is slow for that reason.
MORE_SAMPLES = 1.05

_WHERE = {
    "forward": "in its forward pass",
    "optimizer": "in its optimizer",
    "transfer": "copying its batch to the device",
    "data": "waiting for its data",
    OUTSIDE: "outside of forward, backward and optimizer",
}
_REMEDIES = {
    "data": "a loader for rank {rank} that is as fast as the others': the same storage and as many workers and CPUs",
    OUTSIDE: "on rank {rank} no more work in each step than on the others, such as logging or metrics, or a share for "
    "each rank",
}
_EQUAL = "a device and CPUs for rank {rank} that are as fast as the others', and no more work for it"
_SWAP = "{equal} (with `CUDA_VISIBLE_DEVICES` in another order, another rank is slow if it is the device)"
_EQUAL_BATCHES = "as many samples on rank {rank} as on the others"


class _SlowRank(NamedTuple):
    """The slow rank of one run. Times are those of a typical step, in seconds."""

    rank: int
    # The first step in which it is slow; None if it is so from the first measured step on.
    since: int | None
    # Where it is slow: a phase, or None for no single one.
    phase: str | None
    # What it takes there, and what the slowest of the others takes; of all own work for no single phase.
    takes_s: float
    others_s: float
    # What the others wait for it in a step in which it is slow, at least and at most.
    least_s: float
    most_s: float
    # The part of the measured steps in which it is slow, and the mean time of all.
    frequency: float
    step_s: float
    # Samples of the rank in a step over the most of the others; None if not known.
    samples: float | None

    @property
    def times(self) -> float:
        """How many times as long as the slowest of the others it takes."""
        return self.takes_s / self.others_s if self.others_s > 0 else math.inf

    @property
    def least_share(self) -> float:
        """The share of the time of all steps that the others wait, at least."""
        return self.least_s * self.frequency / self.step_s

    @property
    def most_share(self) -> float:
        """The share of the time of all steps that the others wait, at most."""
        return self.most_s * self.frequency / self.step_s


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield which rank is slower than the others, if one is in more than half of the repeats.

    If phases do not show it, traces of GPUs may: then the last rank to join in the collectives of the profiled steps.
    """
    runs = list(own_work_of(configuration, results))
    disturbed = _disturbed(configuration)
    slow_ranks = [
        slow
        for run in runs
        if (slow := _slow_rank(run)) is not None and (run.run not in disturbed or slow.times >= DISTURBED)
    ]
    ranks = [slow.rank for slow in slow_ranks]
    rank = max(ranks, key=ranks.count, default=None)
    of_rank = [slow for slow in slow_ranks if slow.rank == rank]
    if rank is not None and 2 * len(of_rank) > len(runs):
        # In the other repeats the rank is not slow, which takes no time.
        share = sum(slow.most_share for slow in of_rank) / len(runs)
        evidence = _evidence(of_rank, len(runs))
        facts = _facts(configuration, rank)
        if facts:
            evidence += f"; also recorded: {facts}"
        yield Diagnosis(evidence, _remedy(of_rank[0], configuration), share, phase=of_rank[0].phase)
        return
    yield from _of_traces(configuration, results)


def _disturbed(configuration: Configuration) -> frozenset[str]:
    """Return the names of the runs on CPUs during which something else used the CPUs."""
    if configuration["device"] != "cpu":
        return frozenset()
    return frozenset(run.run for run in configuration.completed if taken_cpus(_disturbance(run)))


def _disturbance(run: MeasuredRun) -> str:
    return str(run.values.get("disturbance") or "")


def _slow_rank(run: OwnWork) -> _SlowRank | None:
    """Return the slow rank of a run; None if it has none.

    A rank may be slow both in nearly all steps and from a step on. Then that counts by which the others lose more.
    """
    slow = [_if_slow(run, rank, None) for rank in run.own_s] + [_slow_since(run, rank) for rank in run.own_s]
    return max((candidate for candidate in slow if candidate), key=lambda rank: rank.least_share, default=None)


def _slow_since(run: OwnWork, rank: int) -> _SlowRank | None:
    """Return a rank as one that is slow from a step on; None if it is not.

    The order of the values is tested, so that stalls are no change.
    """
    order = pd.Series(_beyond_others(run, rank)).rank().to_numpy()
    count = len(order)
    steps_before = np.arange(1, count)
    cumulative_sums = (order - order.mean()).cumsum()[:-1]
    # For each number of steps before the change: the sum of squares that it explains, divided by a constant.
    explained = cumulative_sums**2 / (steps_before * (count - steps_before))
    slow = _if_slow(run, rank, int(steps_before[np.argmax(explained)]))
    if slow is None:
        return None
    averages = np.array([group.mean() for group in np.array_split(order, min(count, MOST_VALUES))])
    return slow if change_p_value(averages) < LEVEL else None


def _if_slow(run: OwnWork, rank: int, position: int | None) -> _SlowRank | None:
    """Return a rank of a run as a slow one; None if it is not.

    `position`: the position among the steps from which on it may be slow; None for all.
    """
    beyond_s = _beyond_others(run, rank)
    from_there = beyond_s[position:]
    is_enough = len(from_there) >= FEWEST_SLOW and (position is None or position >= FEWEST_STEPS)
    if not is_enough or np.mean(from_there > 0) < NEARLY_ALL or not _is_certain(from_there):
        return None
    least_s = float(np.median(from_there))
    before_s = float(np.median(beyond_s[:position])) if position else 0.0
    frequency = len(from_there) / len(beyond_s)
    if least_s * frequency < LEAST * run.step_s or (position is not None and before_s > least_s / 2):
        return None
    medians_s = {name: run.phases_s[name].iloc[position:].median() for name in run.phases_s}
    phase, takes_s, others_s = _where(medians_s, run, rank, position, least_s)
    most_s = least_s
    if phase == "forward":
        most_s += float(medians_s[BACKWARD][rank]) * (1 - others_s / takes_s)
    if position is not None:
        longest_s = run.durations_s.max(axis=1)
        longer_s = float(longest_s.iloc[position:].median() - longest_s.iloc[:position].median())
        least_s = most_s = min(max(longer_s, least_s), most_s)
    return _SlowRank(
        rank=rank,
        since=None if position is None else int(run.own_s.index[position]),
        phase=phase,
        takes_s=takes_s,
        others_s=others_s,
        least_s=least_s,
        most_s=most_s,
        frequency=frequency,
        step_s=run.step_s,
        samples=_samples(run, rank, position),
    )


def _beyond_others(run: OwnWork, rank: int) -> np.ndarray:
    """Return by how much a rank's own work exceeds the most of the others in each step, without evaluation."""
    times_s = run.own_s - run.phases_s[EVALUATION] if EVALUATION in run.own_phases else run.own_s
    return beyond_others(times_s, rank)


def _is_certain(values: np.ndarray) -> bool:
    """Return True if the mean of the values is above 0 by `SURE` standard errors or more.

    Values next to each other may be alike, so that n of them are worth n (1 - r) / (1 + r) independent ones, where r is
    their correlation. Extreme values are cut, so that stalls do not hide the others.
    """
    clipped = np.clip(values, *np.quantile(values, [0.05, 0.95]))
    correlation = autocorrelation(clipped)
    independent = len(clipped) * (1 - correlation) / (1 + correlation)
    return bool(clipped.mean() >= SURE * clipped.std() / independent**0.5)


def _where(
    medians_s: dict[str, pd.Series], run: OwnWork, rank: int, position: int | None, beyond_s: float
) -> tuple[str | None, float, float]:
    """Return the phase in which a rank is slow, what it takes there, and what the slowest of the others takes.

    The phase is None, and the times are of all own work, if no phase has most of it. `beyond_s`: by how much the
    rank's own work exceeds that of the others. `medians_s`: of each phase and rank.
    """
    for phase in run.own_phases:
        takes_s, others_s = float(medians_s[phase][rank]), float(medians_s[phase].drop(rank).max())
        if phase in _WHERE and takes_s - others_s >= MOST_OF_IT * beyond_s:
            return phase, takes_s, others_s
    own_s = run.own_s.iloc[position:].median()
    return None, float(own_s[rank]), float(own_s.drop(rank).max())


def _samples(run: OwnWork, rank: int, position: int | None) -> float | None:
    """Return how many times as much as any other rank a rank has in a step, in tokens or samples; None if not known."""
    counts = next((table for table in (run.padded_tokens, run.tokens, run.samples) if table is not None), None)
    if counts is None:
        return None
    means = counts.iloc[position:].mean()
    most = float(means.drop(rank).max())
    return float(means[rank]) / most if most else None


def _evidence(slow_ranks: list[_SlowRank], runs: int) -> str:
    """Return the numbers in words, means over repeats. `runs`: how many there are."""
    first = slow_ranks[0]
    phases = {slow.phase for slow in slow_ranks}
    where = _WHERE[first.phase] if first.phase and len(phases) == 1 else "for what it does by itself"
    numbers = [slow.since for slow in slow_ranks if slow.since is not None]
    since = ""
    if len(numbers) == len(slow_ranks):
        since = f" since step {' to '.join(map(str, sorted({min(numbers), max(numbers)})))}"
    repeats = f" in {len(slow_ranks)} of {runs} repeats" if len(slow_ranks) < runs else ""
    takes_s = fmean(slow.takes_s for slow in slow_ranks)
    others_s = fmean(slow.others_s for slow in slow_ranks)
    least_s = fmean(slow.least_s for slow in slow_ranks)
    most_s = fmean(slow.most_s for slow in slow_ranks)
    share = fmean(slow.least_share for slow in slow_ranks)
    waited = f"{duration(least_s)} of a step ({percent(share)} of the time)"
    text = (
        f"rank {first.rank} is the slowest in nearly all steps{since}{repeats}: {duration(takes_s)} {where}, the "
        f"others at most {duration(others_s)}, so that these wait {waited}"
    )
    if most_s > least_s:
        most = percent(fmean(slow.most_share for slow in slow_ranks))
        text += f", or {duration(most_s)} ({most}) if its backward pass is as much slower"
    return text


def _facts(configuration: Configuration, rank: int) -> str:
    """Return what the runs' conditions say about a rank, in words; empty for nothing.

    A cause that throttles GPUs is stated with the first rank that it was seen on, so only that rank is known.
    """
    parts = [part for run in configuration.completed for part in _disturbance(run).split("; ")]
    throttled = [part for part in parts if part.endswith(f"seen on rank {rank}")]
    others = [part for part in parts if taken_cpus(part)]
    known = throttled or (others if configuration["nodes"] in (None, 1) else [])
    return listed(list(dict.fromkeys(known))[:1])


def _remedy(slow: _SlowRank, configuration: Configuration) -> str:
    if slow.samples is not None and slow.samples >= MORE_SAMPLES and slow.phase in ("forward", "transfer", "data"):
        return _EQUAL_BATCHES.format(rank=slow.rank)
    equal = _EQUAL if configuration["device"] == "cpu" else _SWAP.format(equal=_EQUAL)
    return _REMEDIES.get(slow.phase or "", equal).format(rank=slow.rank)


def _of_traces(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield the rank that others wait for in the collectives of the profiled steps, if one stands out in most traces.

    The others wait at least as long as the one of them that waits least.
    """
    if configuration["device"] == "cpu":
        return
    stragglers, info = results.table("stragglers"), results.table("runs_info").set_index("run")
    sentences, shares, traces = [], [], 0
    for run in configuration.completed:
        rows = stragglers[stragglers["run"] == run.run].to_dict("records")
        steps = info["traced_steps"].get(run.run)
        step_s = run.number("trace_iteration_time_s")
        if not rows or not step_s or steps is None or pd.isna(steps):
            continue
        traces += 1
        span_s = step_s * steps
        sentence = late_rank(rows, span_s, round(steps))
        waits_s = pd.DataFrame(rows).groupby(["report", "process", "device"], dropna=False)["waited_s"].sum()
        share = float(waits_s.nsmallest(2).iloc[-1]) / span_s if len(waits_s) > 1 else 0.0
        if sentence is not None and share >= LEAST:
            sentences.append(sentence)
            shares.append(share)
    if sentences and 2 * len(sentences) > traces:
        remedy = "equal work and equally fast devices on all ranks"
        yield Diagnosis(f"in the trace {sentences[0]}", remedy, fmean(shares))
