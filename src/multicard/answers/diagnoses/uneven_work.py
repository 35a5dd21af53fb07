"""Diagnosis of batches that differ in their work, so that in each step the ranks wait for the one with most of it.

No rank is always the slowest, which `slow_rank` tells: of each rank only what differs from its mean counts.

Of two ranks whose batches take 18 or 126 ms each, independently, where one in four is long, both are short in 9 of 16
steps. So a step takes (9 × 18 + 7 × 126) / 16 = 65.25 ms, and a rank works (3 × 18 + 126) / 4 = 45 ms of it: the ranks
lose 20.25 ms, 31% of the time, by waiting for each other.

A forward pass shows the work of a batch, and of the rank with most own work (`own_work`) the backward pass, too, since
it does not wait in it. So the slope of these passes over the steps tells by how much longer a backward pass computes
after a longer forward pass, β; it is 0 if the two are not long together. In each step the ranks lose the longest
forward pass less the mean over ranks, times 1 + β.

Other programs on busy CPUs make times differ from step to step as well, and ranks wait for each other then, but batches
are not the reason. So work must show in one of two ways.

- Tokens or samples were counted, and differ between the ranks of a step. Then the forward passes must follow them, with
  a correlation of `FOLLOWS` of the differences within steps, and only what follows them counts. If the largest batch is
  of the same size in each step (`ALIKE`), backward passes are taken to follow as forward passes do.
- They were not counted, or do not differ, as of texts whose tokens the script alone knows. Then forward and backward
  passes must be long together (`TOGETHER`), as they are of the same batch, while a disturbance hits either; they must
  be long in single steps (`NEIGHBOURS`), as batches are drawn by chance, while a disturbance lasts; and the loss must
  be at least `LEAST_UNCOUNTED`.

A few stalls make no correlation, since extreme values are cut (`_correlation`). What slows both passes of single steps
down by about the same factor, a rank at a time, cannot be told from batches that differ; other programs do not do so.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.own_work import OwnWork, own_work_of
from multicard.answers.diagnoses.slow_rank import NEARLY_ALL
from multicard.core.layout import BACKWARD, FORWARD
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# Least correlation within steps of forward passes with tokens or samples.
FOLLOWS = 0.7
# Where tokens are not known: least correlation of forward and backward passes, largest of a forward pass with the next
# one of the same rank, least share of the time that is lost, and fewest steps that show this.
TOGETHER = 0.9
NEIGHBOURS = 0.3
LEAST_UNCOUNTED = 0.1
FEWEST_UNCOUNTED = 40
# Of more steps than this, so many are enough for a slope.
MOST_STEPS = 500
# Tokens or samples differ between ranks if the most in a step are so many times the fewest, in the mean.
DIFFERENT = 1.02
# The largest batches of the steps are alike if their sizes have at most this standard deviation, over the mean.
ALIKE = 0.05
# In fewer steps with such differences times would follow them by chance.
FEWEST_DIFFERENT = 8

_REMEDY = (
    "batches with equally much work on all ranks in each step, as by sorting samples of like length into the same step "
    "(bucketing) or packing them into equally many tokens"
)
_LAST_BATCHES = "`drop_last=True`, or a sampler that gives all ranks equally large last batches"


class _Uneven(NamedTuple):
    """The uneven work of one run. Times are means over steps, in seconds."""

    # How long the ranks work on a batch in the mean, and the one with most work in each step.
    mean_s: float
    longest_s: float
    # Share of the time that ranks wait for the one with most work.
    share: float
    # What was counted, tokens or samples, and the most over the fewest of a step, in the median of the steps in which
    # they differ. None if that was not counted.
    counted: str | None
    times: float | None
    # True if samples differ between ranks in the last steps of passes alone.
    is_at_ends: bool


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield what ranks lose by batches that differ in work, if they do in more than half of the repeats."""
    runs = list(own_work_of(configuration, results))
    uneven = [found for run in runs if (found := _uneven(run)) is not None]
    if 2 * len(uneven) <= len(runs):
        return
    # In the other repeats nothing is known to be lost.
    share = sum(found.share for found in uneven) / len(runs)
    longest = with_unit(fmean(found.longest_s for found in uneven), SECONDS)
    mean = with_unit(fmean(found.mean_s for found in uneven), SECONDS)
    evidence = (
        f"the batches of a step differ in work: the rank with most takes {longest} in the mean of the steps, all ranks "
        f"{mean}, and these wait for the difference ({percent(share)} of the time)"
    )
    times = [found.times for found in uneven if found.times is not None]
    if times:
        what = uneven[0].counted
        where = "in the last step of a pass, " if uneven[0].is_at_ends else ""
        evidence += f"; {where}the most {what} of a rank are {number(round(fmean(times), 2))} times the fewest"
    yield Diagnosis(evidence, _LAST_BATCHES if uneven[0].is_at_ends else _REMEDY, share)


def _uneven(run: OwnWork) -> _Uneven | None:
    """Return the uneven work of a run; None if there is none, or if it may be noise."""
    if FORWARD not in run.own_phases:
        return None
    forward_s = run.phases_s[FORWARD]
    busiest = run.own_s.idxmax(axis=1)
    forwards_s, backwards_s = (_of_ranks(run.phases_s[name], busiest) for name in (FORWARD, BACKWARD))
    together = _correlation(forwards_s, backwards_s)
    growth = max(0.0, _slope(forwards_s, backwards_s)) if together >= FOLLOWS else 0.0
    name, counts = _counts(run)
    if counts is None:
        # A rank that is always slower is not counted here.
        levelled_s = forward_s - forward_s.mean()
        lost_s = float((levelled_s.max(axis=1) - levelled_s.mean(axis=1)).mean()) * (1 + growth)
        is_work = together >= TOGETHER and _of_neighbours(levelled_s) <= NEIGHBOURS
        is_shown = is_work and len(forward_s) >= FEWEST_UNCOUNTED and lost_s >= LEAST_UNCOUNTED * run.step_s
        times, is_at_ends = None, False
    else:
        most = counts.max(axis=1)
        times_of_steps = most / counts.min(axis=1).clip(lower=1)
        differ = times_of_steps >= DIFFERENT
        times_within_s, counts_within = _within_steps(forward_s[differ]), _within_steps(counts[differ])
        is_work = differ.sum() >= FEWEST_DIFFERENT and _correlation(counts_within, times_within_s) >= FOLLOWS
        if not is_work or _has_always_most(counts[differ], len(counts)):
            return None
        if most.std() < ALIKE * most.mean():
            growth = float(np.mean(backwards_s) / np.mean(forwards_s))
        more = (most - counts.mean(axis=1)).where(differ, 0.0)
        lost_s = float(more.mean()) * max(0.0, _slope(counts_within, times_within_s)) * (1 + growth)
        is_shown = lost_s >= LEAST * run.step_s
        times = float(times_of_steps[differ].median())
        is_at_ends = bool(run.is_end_of_pass[differ].all())
    if not is_shown:
        return None
    longest_s = float(np.mean(forwards_s + backwards_s))
    return _Uneven(longest_s - lost_s, longest_s, lost_s / run.step_s, name, times, is_at_ends)


def _counts(run: OwnWork) -> tuple[str, pd.DataFrame] | tuple[None, None]:
    """Return what was counted of the work of each step, its name and its table; None if that says nothing of the work.

    Samples that are equally many on all ranks may be of different lengths, so they say nothing.
    """
    for tokens in (run.padded_tokens, run.tokens):
        if tokens is not None:
            return "tokens", tokens
    if run.samples is not None and (run.samples.min(axis=1) < run.samples.max(axis=1)).any():
        return "samples", run.samples
    return None, None


def _has_always_most(counts: pd.DataFrame, steps: int) -> bool:
    """Return True if the same rank has most in nearly all steps, which `slow_rank` tells.

    `counts`: those of the steps in which they differ. `steps`: the number of all steps.
    """
    return bool(counts.idxmax(axis=1).value_counts().max() >= NEARLY_ALL * steps)


def _of_ranks(times: pd.DataFrame, ranks: pd.Series) -> np.ndarray:
    """Return of each step the time of one rank. `ranks`: the rank of each step."""
    values: np.ndarray = times.to_numpy()[np.arange(len(times)), times.columns.get_indexer(ranks)]
    return values


def _within_steps(table: pd.DataFrame) -> np.ndarray:
    """Return by how much each rank's value differs from the mean of its step, all in one array."""
    differences: np.ndarray = table.sub(table.mean(axis=1), axis=0).to_numpy().ravel()
    return differences


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return the correlation of two series without their extremes; 0 if one of the two does not vary.

    Values beyond the 5th and the 95th percentile count as these, so that a few stalls make no correlation.

    >>> _correlation(np.arange(9.0), np.arange(9.0) ** 1.0), _correlation(np.ones(3), np.arange(3.0))
    (1.0, 0.0)
    """
    clipped = [np.clip(values, *np.quantile(values, [0.05, 0.95])) for values in (first, second) if len(values) > 1]
    if len(clipped) < 2 or any(np.ptp(values) == 0 for values in clipped):
        return 0.0
    return round(float(np.corrcoef(*clipped)[0, 1]), 12)


def _of_neighbours(times: pd.DataFrame) -> float:
    """Return the correlation of a rank's times with its next ones, over all ranks together; 0 if none vary.

    Extreme values are cut as in `_correlation`. A rank counts by its variance.

    >>> _of_neighbours(pd.DataFrame({0: [1.0, 1.0, 3.0, 3.0], 1: [2.0, 2.0, 2.0, 2.0]})).__round__(6)
    0.25
    """
    clipped = times.clip(times.quantile(0.05), times.quantile(0.95), axis=1)
    deviations = (clipped - clipped.mean()).to_numpy()
    squares = float((deviations**2).sum())
    return float((deviations[:-1] * deviations[1:]).sum()) / squares if squares else 0.0


def _slope(first: np.ndarray, second: np.ndarray) -> float:
    """Return by how much the second value grows with the first one: the median over all pairs (Theil and Sen).

    So a few stalls change little. The first values must not be all equal. Of many values some are used.

    >>> _slope(np.arange(6.0), np.array([0.0, 2.0, 4.0, 6.0, 8.0, 99.0]))
    2.0
    """
    chosen = np.linspace(0, len(first) - 1, min(len(first), MOST_STEPS)).astype(int)
    first, second = first[chosen], second[chosen]
    left, right = np.triu_indices(len(first), 1)
    differences = first[right] - first[left]
    differs = differences != 0
    slopes = (second[right] - second[left])[differs] / differences[differs]
    return float(np.median(slopes))
