"""Diagnosis of one rank that evaluates alone, while the others wait for it in their next exchange of gradients.

An evaluation of 300 ms by rank 0 after every tenth step of 45 ms makes a step take 75 ms in the mean. If each of two
ranks evaluates a half, it is 60 ms: evaluating alone costs 15 of 75 ms, 20%.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.host.regular import period_of
from multicard.answers.diagnoses.ranks.own_work import OwnWork, own_work_of
from multicard.core.layout import EVALUATION
from multicard.core.units import SECONDS, percent, with_unit
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# A rank evaluates alone if the others together evaluate for at most this share of its time.
HARDLY = 0.05

_REMEDY = (
    "evaluation by all ranks, each of a share of the batches (a `DistributedSampler`, and an all-reduce of the sums)"
)


class _Alone(NamedTuple):
    """The evaluation of one rank of a run. Times are in seconds."""

    rank: int
    # How often, in words.
    when: str
    # Time of one evaluation, and the share of the time of all steps that evaluation takes.
    evaluation_s: float
    share: float


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield that one rank evaluates alone, if it does in each repeat."""
    runs = [_alone(run) for run in own_work_of(configuration, results)]
    alone = [run for run in runs if run is not None]
    if not alone or len(alone) < len(runs) or len({run.rank for run in alone}) > 1:
        return
    ranks = configuration["devices"]
    whole = fmean(run.share for run in alone)
    time = with_unit(fmean(run.evaluation_s for run in alone), SECONDS)
    # If each rank evaluates a share, the evaluation takes 1 / ranks of its time.
    share = whole * (1 - 1 / ranks)
    if share < LEAST:
        return
    evidence = (
        f"rank {alone[0].rank} evaluates alone {alone[0].when}, for {time}, while the others wait "
        f"({percent(whole)} of the time)"
    )
    yield Diagnosis(evidence, _REMEDY, share)


def _alone(run: OwnWork) -> _Alone | None:
    """Return the rank of a run that evaluates alone; None if none does."""
    evaluation_s = run.phases_s.get(EVALUATION)
    if evaluation_s is None:
        return None
    totals_s = evaluation_s.sum()
    rank = int(totals_s.idxmax())
    if totals_s.drop(rank).sum() > HARDLY * totals_s[rank]:
        return None
    times_s = evaluation_s[rank]
    numbers = times_s.index[times_s > 0]
    period = period_of(numbers, times_s.index)
    when = f"in {period.words}" if period else f"in {len(numbers)} of {len(times_s)} steps"
    return _Alone(rank, when, float(times_s[times_s > 0].mean()), float(times_s.mean()) / run.step_s)
