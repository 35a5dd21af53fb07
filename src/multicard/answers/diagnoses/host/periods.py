"""Diagnosis of steps that take far longer than the others at equal distances: every 16th step, for example.

A step is long if its time without waits for data and without evaluation, which have parts of the step of their own, is
far above that of the others (`stats.outliers.far_above`), or one of the longest where none is, unless its batch holds
more work (`results.larger_batches`).
Steps that save or start workers are told by `host_work`.

What long steps take is told for whole periods. 50 steps of 45 ms with 300 ms more in every 16th of them may hold three
or four such steps, and their mean is 63 or 69 ms. Over whole periods it is 45 + 300 / 16 = 63.75 ms, of which the long
steps take 29%. If the mean of the measured steps differs from that by `BIASED` or more, this is said.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import OUTSIDE, Diagnosis
from multicard.answers.diagnoses.host.regular import FEWEST, Period, period_of
from multicard.answers.diagnoses.ranks.own_work import OwnWork, own_work_of, steps_of
from multicard.answers.diagnoses.user_code.code_lines import place_of_long_steps, remedy_of_call
from multicard.core.host_work import COLLECTIVE, SAVING, STARTING
from multicard.core.layout import BACKWARD, DATA, EVALUATION, FORWARD
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration
from multicard.results.larger_batches import have_larger_batches
from multicard.results.results import Results
from multicard.stats.outliers import LEAST_RATIO, far_above

# How many times as many of the longest steps are tried next.
MORE = 1.2
# Where a long step takes longer: a phase or a rank has at least this share of it. Other ranks have less than the rest.
MOST_OF_IT = 0.8
# Work of the host explains long steps if at least this share of them has it.
EXPLAINED = 0.5
# A mean is said to be biased if it differs by at least this share from that of whole periods.
BIASED = 0.01

_WHERE = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "transfer": "copying batches to the device",
    OUTSIDE: "outside of forward, backward and optimizer",
}
_UNEVEN = (DATA, EVALUATION)
_SELDOM = "what the script does in these steps alone less often, or in a thread (saving, logging, evaluation)"
_SHARED = (
    "what rank {rank} alone does in these steps (such as evaluation, saving or logging) in shares by all ranks, less "
    "often or in a thread"
)


class _LongSteps(NamedTuple):
    """Steps of one run that take longer at equal distances. Times are in seconds."""

    period: Period
    # By how much a long step is longer, in the mean.
    longer_s: float
    # Mean time of all steps over whole periods, and of the measured ones.
    step_s: float
    measured_s: float
    # How many steps were measured.
    steps: int
    # The phase in which they take longer, and the rank that alone does; None for no single one.
    phase: str | None = None
    rank: int | None = None
    # Their place in a pass over the data, "first" or "last"; None if they are elsewhere.
    of_pass: str | None = None

    @property
    def share(self) -> float:
        """The share of the time, of whole periods, by which long steps are longer."""
        return self.longer_s / self.period.every / self.step_s

    @property
    def words(self) -> str:
        """Which steps these are: "every 10th step, the last of a pass,"."""
        return f"{self.period.words}, the {self.of_pass} of a pass," if self.of_pass else self.period.words

    @property
    def bias(self) -> str:
        """How the mean of the measured steps differs from that of whole periods, after a semicolon.

        Empty if it hardly differs.
        """
        bias = self.measured_s / self.step_s - 1
        if abs(bias) < BIASED:
            return ""
        due = number(self.steps / self.period.every)
        direction = "long" if bias > 0 else "short"
        return (
            f"; the {self.steps} measured steps hold {self.period.times} of them where {due} are due, so that their "
            f"mean time is {percent(abs(bias))} too {direction}"
        )


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield what steps take that are longer at equal distances, if they are in more than half of the repeats."""
    alike = _with_usual_period(
        [
            long_steps
            for run, long_steps in _long_steps_of(configuration, results).items()
            if not _is_explained(run, long_steps, results)
        ]
    )
    if 2 * len(alike) <= len(configuration.completed):
        return
    share = fmean(long_steps.share for long_steps in alike)
    if share < LEAST:
        return
    first = alike[0]
    phases = {long_steps.phase for long_steps in alike}
    ranks = {long_steps.rank for long_steps in alike}
    place = place_of_long_steps(configuration, results, share) if phases == {OUTSIDE} else None

    longer = with_unit(fmean(long_steps.longer_s for long_steps in alike), SECONDS)
    evidence = f"{first.words} takes {longer} longer"
    if first.phase is not None and len(phases) == 1:
        evidence += f" {_WHERE[first.phase]}"
    remedy = _SELDOM
    if first.rank is not None and len(ranks) == 1:
        evidence += f" on rank {first.rank} alone, for which the others wait"
        remedy = _SHARED.format(rank=first.rank)
    if place is not None:
        evidence += f", mostly at {place.words}"
        remedy = remedy_of_call(place) or remedy
    evidence += f" ({percent(share)} of the time){first.bias}"
    yield Diagnosis(evidence, remedy, share, phase=first.phase)


def _with_usual_period(runs: Sequence[_LongSteps]) -> list[_LongSteps]:
    """Return the long steps of the runs whose period is that of most runs; of equally many, the first period."""
    periods = [long_steps.period.every for long_steps in runs]
    usual = max(periods, key=periods.count, default=None)
    return [long_steps for long_steps in runs if long_steps.period.every == usual]


def words_of_parts(configuration: Configuration, results: Results) -> dict[str, str]:
    """Return in words how often steps stall or evaluate, and for how long, by the name of the part of the step.

    A part is missing if that is not at equal distances in all repeats.
    """
    runs = list(steps_of(configuration, results))
    evaluations = [evaluation for run in runs if (evaluation := _evaluation(run)) is not None]
    takes = {
        StepPart.STALLS: ("takes {time} longer", list(_long_steps_of(configuration, results).values())),
        StepPart.EVALUATION: ("evaluates for {time}", evaluations),
    }
    words = {}
    for part, (does, of_runs) in takes.items():
        if of_runs and len(of_runs) == len(runs) and len({steps.words for steps in of_runs}) == 1:
            time = with_unit(fmean(steps.longer_s for steps in of_runs), SECONDS)
            words[part.value] = f"{of_runs[0].words} {does.format(time=time)}{of_runs[0].bias}"
    return words


def _long_steps_of(configuration: Configuration, results: Results) -> dict[str, _LongSteps]:
    """Return the long steps of each run that has some at equal distances, by the run's name."""
    in_step = {run.run for run in own_work_of(configuration, results)}
    found = {}
    for run in steps_of(configuration, results):
        uneven_s = sum((run.phases_s[name] for name in _UNEVEN if name in run.phases_s), 0.0 * run.durations_s)
        times_s = run.durations_s.max(axis=1) - uneven_s.max(axis=1)
        is_candidate = np.ones(len(times_s), dtype=bool)
        if FORWARD in run.phases_s and BACKWARD in run.phases_s:
            is_candidate = ~have_larger_batches(run.phases_s[FORWARD], run.phases_s[BACKWARD]).to_numpy()
        period = _period_of_long(times_s, is_candidate)
        if period is not None:
            has_work = times_s.index.isin(period.numbers)
            found[run.run] = _described(run, times_s, has_work, period, run.run in in_step)
    return found


def _period_of_long(times_s: pd.Series, is_candidate: np.ndarray) -> Period | None:
    """Return the period of the steps that take far longer than the others; None if they have none.

    On a busy machine the times of steps may scatter so widely that hardly any is far above the others. Then it is the
    period of the longest steps, however many have one, if each takes `LEAST_RATIO` times the median. Of 100 steps whose
    times are random, the longest ones have a period in less than 1% of the cases, as `FEWEST` says of three.

    `is_candidate`: which steps may be long; the others are for another reason.
    """
    is_long = far_above(times_s.to_numpy()) & is_candidate
    if is_long.sum() >= FEWEST:
        return period_of(times_s.index[is_long], times_s.index)
    candidates = times_s[is_candidate & (times_s > LEAST_RATIO * times_s.median()).to_numpy()]
    longest_first = candidates.sort_values(ascending=False, kind="stable").index
    count = FEWEST
    while count <= len(longest_first):
        period = period_of(longest_first[:count], times_s.index)
        if period is not None:
            return period
        # Since some may be off the period, and some be missing, not every number has to be tried.
        count = max(count + 1, int(MORE * count))
    return None


def _evaluation(run: OwnWork) -> _LongSteps | None:
    """Return the steps of a run that evaluate, with the time of evaluation; None if they are not at equal distances."""
    if EVALUATION not in run.phases_s:
        return None
    times_s = run.phases_s[EVALUATION].max(axis=1)
    period = period_of(times_s.index[times_s > 0], times_s.index)
    if period is None:
        return None
    longer_s = float(times_s.loc[list(period.numbers)].mean())
    measured_s = float(run.durations_s.max(axis=1).mean())
    step_s = measured_s - float(times_s.mean()) + longer_s / period.every
    return _LongSteps(period, longer_s, step_s, measured_s, len(times_s))


def _described(run: OwnWork, times_s: pd.Series, is_long: np.ndarray, period: Period, is_in_step: bool) -> _LongSteps:
    """Return long steps with what they take and where. `is_long`: which steps these are.

    `is_in_step`: True if ranks wait for each other, so that own work shows for which of them.
    """
    longer_s = _longer(times_s, is_long)
    measured_s = float(run.durations_s.max(axis=1).mean())
    # The measured steps hold more or fewer long steps than whole periods do.
    step_s = measured_s + longer_s * (1 / period.every - is_long.mean())
    rank = _rank_alone(run, is_long, longer_s) if is_in_step else None
    phase = _phase_of_long(run, is_long, longer_s, rank)
    # Ranks wait in their backward passes for another one whose phase is not known.
    if phase == BACKWARD and is_in_step:
        phase = None
    return _LongSteps(period, longer_s, step_s, measured_s, len(times_s), phase, rank, _place_in_pass(run, is_long))


def _longer(times_s: pd.Series, is_long: np.ndarray) -> float:
    """Return by how many seconds long steps are longer: their mean less the median of the other steps."""
    return float(times_s[is_long].mean() - times_s[~is_long].median())


def _even_phases(run: OwnWork) -> list[str]:
    """Return the recorded phases that take about as long in each step, unlike loading and evaluation."""
    return [name for name in run.phases_s if name not in _UNEVEN]


def _rank_alone(run: OwnWork, is_long: np.ndarray, longer_s: float) -> int | None:
    """Return the rank whose own work alone makes long steps longer, by `longer_s` seconds; None if none does."""
    own_s = sum(run.phases_s[name] for name in _even_phases(run) if name in run.own_phases)
    beyond_s = own_s[is_long].mean() - own_s[~is_long].median()
    busiest = beyond_s.idxmax()
    others_work_as_usual = beyond_s.drop(busiest).max() <= (1 - MOST_OF_IT) * longer_s
    return int(busiest) if others_work_as_usual and beyond_s[busiest] >= MOST_OF_IT * longer_s else None


def _phase_of_long(run: OwnWork, is_long: np.ndarray, longer_s: float, rank: int | None) -> str | None:
    """Return the phase that makes long steps longer, by `longer_s` seconds; None if no single one does.

    `rank`: the rank that counts; None for the mean of all ranks.
    """
    phase = None
    for name in _even_phases(run):
        phase_s = run.phases_s[name]
        times_s = phase_s.mean(axis=1) if rank is None else phase_s[rank]
        if _longer(times_s, is_long) >= MOST_OF_IT * longer_s:
            phase = name
    return phase


def _place_in_pass(run: OwnWork, is_long: np.ndarray) -> str | None:
    """Return whether long steps are the last or the first ones of passes over the data; None if they are neither."""
    is_last = run.is_end_of_pass.to_numpy()
    is_first = np.roll(is_last, 1)
    # Whether the first and the last of the measured steps are at an end of a pass is not known.
    known = slice(1, -1)
    for place, is_there in (("last", is_last), ("first", is_first)):
        if is_there[known].any() and (is_there == is_long)[known].all():
            return place
    return None


def _is_explained(run: str, long_steps: _LongSteps, results: Results) -> bool:
    """Return True if work of the host that other diagnoses tell is in the long steps, and takes what they take.

    Saving and starting workers count with all that steps with them take longer, other work with the time of its calls.
    """
    table = results.table("host_work")
    for _, work in table[(table["run"] == run) & (table["kind"] != COLLECTIVE)].iterrows():
        numbers = [int(step) for step in work["first_steps"].split(", ") if step]
        # Only the first numbers are kept.
        expected = [step for step in long_steps.period.numbers if numbers and step <= max(numbers)]
        has_work = len(set(expected) & set(numbers)) >= max(1.0, EXPLAINED * len(expected))
        takes_it = work["seconds"] / max(work["steps"], 1) >= EXPLAINED * long_steps.longer_s
        if has_work and (work["kind"] in (SAVING, STARTING) or takes_it):
            return True
    return False
