"""Diagnosis of batches that differ in their work, so that in each step the ranks wait for the one with most of it.

Of two ranks whose batches take 18 or 126 ms each, independently, where one in four is long, both are short in 9 of 16
steps. So a step takes (9 × 18 + 7 × 126) / 16 = 65.25 ms, and a rank works (3 × 18 + 126) / 4 = 45 ms of it: the ranks
lose 20.25 ms, 31% of the time, by waiting for each other. A rank that is the slowest in nearly all steps is not meant:
that is the subject of `slow_rank`.

A forward pass shows the work of a batch. So does the backward pass of the rank with most own work (`own_work`), since
that rank does not wait in it. The slope of these backward passes over the forward passes is β: after a forward pass
that is longer by 1 ms, the backward pass computes for β ms longer. It is 0 if the two are not long together. In each
step the ranks lose the longest forward pass less the mean over ranks, times 1 + β.

Other programs on busy CPUs make times differ from step to step as well, and ranks wait for each other then, but batches
are not the reason. So work must show in one of two ways.

- Tokens or samples were counted, and differ between the ranks of a step. Then the forward passes must follow them, with
  a correlation of `FOLLOWS` of the differences within steps, and only what follows them counts. If the largest batch is
  of the same size in each step (`ALIKE`), backward passes are assumed to follow as forward passes do.
- They were not counted, or do not differ, as of texts whose tokens the script alone knows. Then forward and backward
  passes must be long together (`TOGETHER`), as they are of the same batch, while a disturbance hits either; they must
  be long in single steps (`NEIGHBOURS`), as batches are drawn by chance, while a disturbance lasts; and the loss must
  be at least `LEAST_UNCOUNTED`. Of each rank only what differs from its mean counts.

A few stalls make no correlation, since extreme values are cut (`_correlation`). What slows both passes of single steps
down by about the same factor, a rank at a time, cannot be distinguished from batches that differ; other programs do not
do so.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.ranks.own_work import OwnWork, own_work_of
from multicard.answers.diagnoses.ranks.slow_rank import NEARLY_ALL
from multicard.core.layout import BACKWARD, FORWARD
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# Least correlation within steps of forward passes with tokens or samples. Backward passes that correlate less with
# forward passes have no slope.
FOLLOWS = 0.7
# Where work was not counted: least correlation of backward with forward passes.
TOGETHER = 0.9
# Likewise, largest correlation of a rank's forward pass with its next one.
NEIGHBOURS = 0.3
# Likewise, least share of the time that is lost, and fewest steps that show it.
LEAST_UNCOUNTED = 0.1
FEWEST_UNCOUNTED = 40
# Of more values than this, so many at equal distances are enough for a slope.
MOST_VALUES = 500
# Tokens or samples differ between the ranks of a step if the most are at least so many times the fewest.
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


class _UnevenWork(NamedTuple):
    """The uneven work of one run. Times are means over steps, in seconds."""

    # How long the rank with most work in each step works on its batch.
    longest_s: float
    # How long ranks wait for that rank, mean over all of them.
    lost_s: float
    # How long a step takes.
    step_s: float
    # What was counted: "tokens" or "samples"; None if work shows in times alone.
    counted: str | None = None
    # The most tokens or samples of a rank over the fewest, in the median of the steps in which they differ.
    most_over_fewest: float | None = None
    # True if samples differ between ranks in the last steps of passes alone.
    is_at_ends: bool = False

    @property
    def mean_s(self) -> float:
        """How long the ranks work on a batch in the mean."""
        return self.longest_s - self.lost_s

    @property
    def share(self) -> float:
        """Share of the time that ranks wait for the one with most work."""
        return self.lost_s / self.step_s


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield what ranks lose by batches that differ in work, if they do in more than half of the repeats."""
    runs = list(own_work_of(configuration, results))
    uneven_runs = [uneven for run in runs if (uneven := _uneven(run)) is not None]
    if 2 * len(uneven_runs) <= len(runs):
        return
    # In the other repeats nothing is known to be lost.
    share = sum(uneven.share for uneven in uneven_runs) / len(runs)
    longest = with_unit(fmean(uneven.longest_s for uneven in uneven_runs), SECONDS)
    mean = with_unit(fmean(uneven.mean_s for uneven in uneven_runs), SECONDS)
    evidence = (
        f"the batches of a step differ in work: the rank with most takes {longest} in the mean of the steps, all ranks "
        f"{mean}, and these wait for the difference ({percent(share)} of the time)"
    )
    first = uneven_runs[0]
    ratios = [uneven.most_over_fewest for uneven in uneven_runs if uneven.most_over_fewest is not None]
    if ratios:
        where = "in the last step of a pass, " if first.is_at_ends else ""
        ratio = number(round(fmean(ratios), 2))
        evidence += f"; {where}the most {first.counted} of a rank are {ratio} times the fewest"
    yield Diagnosis(evidence, _LAST_BATCHES if first.is_at_ends else _REMEDY, share)


class _Passes(NamedTuple):
    """The passes of the rank with most own work in each step, in seconds; it does not wait in its backward pass."""

    forward_s: np.ndarray
    backward_s: np.ndarray

    @property
    def mean_s(self) -> float:
        """Mean of both passes together."""
        return float(np.mean(self.forward_s + self.backward_s))

    @property
    def correlation(self) -> float:
        """Correlation of the backward with the forward passes."""
        return _correlation(self.forward_s, self.backward_s)

    @property
    def slope(self) -> float:
        """β: by how many seconds a backward pass is longer after a forward pass that is longer by a second."""
        return max(0.0, _slope(self.forward_s, self.backward_s)) if self.correlation >= FOLLOWS else 0.0


class _Counts(NamedTuple):
    """The tokens or samples of each rank in each step."""

    # "tokens" or "samples".
    name: str
    # A row per step and a column per rank, as in `OwnWork`.
    table: pd.DataFrame


def _uneven(run: OwnWork) -> _UnevenWork | None:
    """Return the uneven work of a run; None if there is none, or if it may be noise."""
    if FORWARD not in run.own_phases:
        return None
    busiest = run.own_s.idxmax(axis=1)
    forward_s, backward_s = run.phases_s[FORWARD], run.phases_s[BACKWARD]
    passes = _Passes(_of_ranks(forward_s, busiest), _of_ranks(backward_s, busiest))
    counts = _counts(run)
    return _uneven_by_times(run, passes) if counts is None else _uneven_by_counts(run, passes, counts)


def _uneven_by_times(run: OwnWork, passes: _Passes) -> _UnevenWork | None:
    """Return the uneven work of a run in which it was not counted, as far as the times of passes show it."""
    forward_s = run.phases_s[FORWARD]
    # A rank that is always slower is not meant here.
    levelled_s = forward_s - forward_s.mean()
    forward_lost_s = float((levelled_s.max(axis=1) - levelled_s.mean(axis=1)).mean())
    lost_s = forward_lost_s * (1 + passes.slope)
    if len(forward_s) < FEWEST_UNCOUNTED or lost_s < LEAST_UNCOUNTED * run.step_s:
        return None
    is_work = passes.correlation >= TOGETHER and _correlation_of_neighbours(levelled_s) <= NEIGHBOURS
    return _UnevenWork(passes.mean_s, lost_s, run.step_s) if is_work else None


def _uneven_by_counts(run: OwnWork, passes: _Passes, counts: _Counts) -> _UnevenWork | None:
    """Return the uneven work of a run, as far as times of forward passes follow what was counted."""
    most = counts.table.max(axis=1)
    most_over_fewest = most / counts.table.min(axis=1).clip(lower=1)
    differs = most_over_fewest >= DIFFERENT
    if differs.sum() < FEWEST_DIFFERENT:
        return None
    counts_within = _within_steps(counts.table[differs])
    forward_within_s = _within_steps(run.phases_s[FORWARD][differs])
    is_work = _correlation(counts_within, forward_within_s) >= FOLLOWS
    if not is_work or _has_always_most(counts.table[differs], len(counts.table)):
        return None

    backward_slope = passes.slope
    if most.std() < ALIKE * most.mean():
        # Passes over batches of one size show no slope.
        backward_slope = float(np.mean(passes.backward_s) / np.mean(passes.forward_s))
    seconds_per_count = max(0.0, _slope(counts_within, forward_within_s))
    excess = (most - counts.table.mean(axis=1)).where(differs, 0.0)
    lost_s = float(excess.mean()) * seconds_per_count * (1 + backward_slope)
    if lost_s < LEAST * run.step_s:
        return None
    return _UnevenWork(
        longest_s=passes.mean_s,
        lost_s=lost_s,
        step_s=run.step_s,
        counted=counts.name,
        most_over_fewest=float(most_over_fewest[differs].median()),
        is_at_ends=bool(run.is_end_of_pass[differs].all()),
    )


def _counts(run: OwnWork) -> _Counts | None:
    """Return what was counted of the work of each step; None if that says nothing of the work.

    Samples that are equally many on all ranks may be of different lengths, so they say nothing.
    """
    # A rank computes padding, too.
    for tokens in (run.padded_tokens, run.tokens):
        if tokens is not None:
            return _Counts("tokens", tokens)
    if run.samples is not None and (run.samples.min(axis=1) < run.samples.max(axis=1)).any():
        return _Counts("samples", run.samples)
    return None


def _has_always_most(counts: pd.DataFrame, steps: int) -> bool:
    """Return True if the same rank has most in nearly all steps, which is the subject of `slow_rank`.

    `counts`: those of the steps in which they differ. `steps`: the number of all steps.
    """
    steps_by_rank = counts.idxmax(axis=1).value_counts()
    return bool(steps_by_rank.max() >= NEARLY_ALL * steps)


def _of_ranks(times: pd.DataFrame, ranks: pd.Series) -> np.ndarray:
    """Return of each step the time of one rank. `ranks`: the rank of each step."""
    rows = np.arange(len(times))
    columns = times.columns.get_indexer(ranks)
    values: np.ndarray = times.to_numpy()[rows, columns]
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
    if len(first) < 2:
        return 0.0
    clipped = [np.clip(values, *np.quantile(values, [0.05, 0.95])) for values in (first, second)]
    if any(np.ptp(values) == 0 for values in clipped):
        return 0.0
    correlations = np.corrcoef(*clipped)
    return round(float(correlations[0, 1]), 12)


def _correlation_of_neighbours(times: pd.DataFrame) -> float:
    """Return the correlation of a rank's times with its next ones, over all ranks together; 0 if none vary.

    Extreme values are cut as in `_correlation`. A rank counts by its variance.

    >>> round(_correlation_of_neighbours(pd.DataFrame({0: [1.0, 1.0, 3.0, 3.0], 1: [2.0, 2.0, 2.0, 2.0]})), 6)
    0.25
    """
    clipped = times.clip(times.quantile(0.05), times.quantile(0.95), axis=1)
    deviations = (clipped - clipped.mean()).to_numpy()
    squares = float((deviations**2).sum())
    products = float((deviations[:-1] * deviations[1:]).sum())
    return products / squares if squares else 0.0


def _slope(first: np.ndarray, second: np.ndarray) -> float:
    """Return by how much the second value grows with the first one: the median over all pairs (Theil and Sen).

    So a few stalls change little. The first values must not be all equal. Of many values some are used.

    >>> _slope(np.arange(6.0), np.array([0.0, 2.0, 4.0, 6.0, 8.0, 99.0]))
    2.0
    """
    chosen = np.linspace(0, len(first) - 1, min(len(first), MOST_VALUES)).astype(int)
    first, second = first[chosen], second[chosen]
    # The positions of the two values of each pair.
    left, right = np.triu_indices(len(first), 1)
    first_differences = first[right] - first[left]
    second_differences = second[right] - second[left]
    differs = first_differences != 0
    slopes = second_differences[differs] / first_differences[differs]
    return float(np.median(slopes))
