"""What each rank computes by itself in a step, apart from what it waits for other ranks.

In a backward pass the ranks exchange gradients, and all leave it when the last one has joined. So the time from one
exchange to the next is the same for all ranks, and a rank that needs longer for the rest of the step, its *own work*,
has a *shorter* backward pass, in which it does not wait. The difference of own work is what the others wait, if their
backward passes compute equally long. Two ranks whose backward passes compute for 20 ms:

    | rank | data, forward, optimizer, outside (own work) | backward pass, computing + waiting | step  |
    | 0    | 12 ms                                        | 20 + 13 = 33 ms                    | 45 ms |
    | 1    | 25 ms                                        | 20 +  0 = 20 ms                    | 45 ms |

Rank 0 waits 25 - 12 = 13 ms. If rank 1 is also slower within its backward pass, rank 0 waits longer than that, which
phases do not show: the backward pass of rank 0 has the sum of its computing and its waiting alone.

On GPUs phases lie between events in the stream that computes, which waits for the exchange at the end of the backward
pass, so the same holds. A phase in which the program itself calls collectives (`host_work`) may wait for other ranks,
too, so it is no own work either.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from multicard.answers.diagnoses.diagnosis import OUTSIDE
from multicard.core.host_work import COLLECTIVE
from multicard.core.layout import BACKWARD, EVALUATION, PHASES
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# There is nothing to compare in fewer steps.
FEWEST_STEPS = 12
# Returned by `steps_of`: by the results and the key of the configuration.
_steps: WeakKeyDictionary[Results, dict[Hashable, list["OwnWork"]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class OwnWork:
    """The measured steps of one run. Made by `steps_of` and `own_work_of`.

    Each table has a row per step, in order and by its number, and a column per rank, by its number; times in seconds.
    """

    run: str
    durations_s: pd.DataFrame
    # The times of the phases that were recorded, `OUTSIDE` and evaluation, by their names.
    phases_s: dict[str, pd.DataFrame]
    # Samples of each step; tokens without padding, and with it. None if they were not recorded.
    samples: pd.DataFrame | None
    tokens: pd.DataFrame | None
    padded_tokens: pd.DataFrame | None
    # For each step whether the next one is of another pass over the data. That is not known of the last one, which
    # counts as such.
    is_end_of_pass: pd.Series
    # Phases, among those recorded, in which ranks may wait for each other: the backward pass, and those in which the
    # program exchanges.
    shared: frozenset[str]

    @cached_property
    def own_s(self) -> pd.DataFrame:
        """The own work of each rank in each step: all that is not in a phase of `shared`."""
        return self.durations_s - sum(self.phases_s[name] for name in self.shared)

    @property
    def own_phases(self) -> list[str]:
        """The names of the phases that are own work."""
        return [name for name in self.phases_s if name not in self.shared]

    @cached_property
    def step_s(self) -> float:
        """Mean time of a step."""
        return float(self.durations_s.to_numpy().mean())

    @cached_property
    def is_in_step(self) -> bool:
        """True if no rank gains more than one step on another, so that ranks do wait for each other.

        By how much a rank is ahead after each step varies around a constant then. Its medians over the first and the
        last third of the steps are compared, so that a stall in the first or the last step, which no other rank has
        waited for within the measured steps, does not count.
        """
        ends_s = self.durations_s.cumsum()
        # By how much each rank ends a step later than the mean of the ranks.
        behind_s = ends_s.sub(ends_s.mean(axis=1), axis=0)
        third = len(behind_s) // 3
        lost_s = behind_s.iloc[-third:].median() - behind_s.iloc[:third].median()
        longest_step_s = self.durations_s.max(axis=1).mean()
        return bool(lost_s.max() - lost_s.min() <= longest_step_s)


def own_work_of(configuration: Configuration, results: Results) -> list[OwnWork]:
    """Return the measured steps of each completed run whose ranks wait for each other in backward passes.

    A run is left out if it has one rank or fewer than `FEWEST_STEPS` steps, if no backward pass was seen, or if its
    ranks do not wait for each other (`OwnWork.is_in_step`).
    """
    runs = []
    for run in steps_of(configuration, results):
        has_several_ranks = run.durations_s.shape[1] > 1
        if has_several_ranks and BACKWARD in run.phases_s and run.is_in_step:
            runs.append(run)
    return runs


def steps_of(configuration: Configuration, results: Results) -> list[OwnWork]:
    """Return the measured steps of each completed run that has `FEWEST_STEPS` steps or more that all ranks made.

    Several diagnoses need the same steps, so they are kept as long as the results are.
    """
    by_configuration = _steps.setdefault(results, {})
    if configuration.key not in by_configuration:
        by_configuration[configuration.key] = list(_read_steps(configuration, results))
    return by_configuration[configuration.key]


def _read_steps(configuration: Configuration, results: Results) -> Iterator[OwnWork]:
    steps = results.table("steps")
    host_work = results.table("host_work")
    collectives = host_work[host_work["kind"] == COLLECTIVE]
    for run in configuration.completed:
        measured = steps[(steps["run"] == run.run) & (steps["window"] == "measured")]
        phases = collectives.loc[collectives["run"] == run.run, "phase"]
        own_work = _own_work(run.run, measured, exchanging=frozenset(phases.fillna(OUTSIDE)))
        if len(own_work.durations_s) >= FEWEST_STEPS:
            yield own_work


def _own_work(run: str, steps: pd.DataFrame, exchanging: frozenset[str]) -> OwnWork:
    """Return the measured steps of a run.

    `steps`: rows of the table `steps`, one for each rank and step. `exchanging`: phases in which the program itself
    calls collectives.
    """
    steps = steps.drop_duplicates(["rank", "step"])
    # Steps that all ranks made.
    durations_s = _by_rank(steps, "duration_s").dropna()
    common = durations_s.index

    phases_s: dict[str, pd.DataFrame] = {}
    in_phases_s = pd.DataFrame(0.0, index=common, columns=durations_s.columns)
    for phase in (*PHASES, EVALUATION):
        is_recorded = steps[f"{phase}_s"].notna().any()
        if is_recorded:
            phases_s[phase] = _by_rank(steps, f"{phase}_s").loc[common].fillna(0.0)
            in_phases_s = in_phases_s + phases_s[phase]
    # Phases may add up to slightly more than the step, as by rounding.
    phases_s[OUTSIDE] = (durations_s - in_phases_s).clip(lower=0.0)

    epochs = _by_rank(steps, "epoch").loc[common].max(axis=1)
    # Epochs that were not recorded show no end of a pass.
    is_end_of_pass = (epochs.diff(-1) != 0) & epochs.notna()
    return OwnWork(
        run=run,
        durations_s=durations_s,
        phases_s=phases_s,
        samples=_counts(steps, "samples", common),
        tokens=_counts(steps, "tokens", common),
        padded_tokens=_counts(steps, "padded_tokens", common),
        is_end_of_pass=is_end_of_pass,
        shared=(exchanging | {BACKWARD}) & phases_s.keys(),
    )


def _counts(steps: pd.DataFrame, column: str, numbers: pd.Index) -> pd.DataFrame | None:
    """Return the samples or tokens of the steps with these numbers; None if some were not recorded."""
    is_recorded = steps[column].notna().all()
    return _by_rank(steps, column).loc[numbers] if is_recorded else None


def _by_rank(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    return steps.pivot(index="step", columns="rank", values=column)


def beyond_others(times: pd.DataFrame, rank: int) -> np.ndarray:
    """Return by how much each row's value of a rank exceeds the largest of the other ranks; negative if it does not.

    >>> beyond_others(pd.DataFrame({0: [1.0, 5.0], 1: [4.0, 4.0], 2: [2.0, 1.0]}), 1).tolist()
    [2.0, -1.0]
    """
    largest_other = times.drop(columns=rank).max(axis=1)
    excess: np.ndarray = (times[rank] - largest_other).to_numpy()
    return excess
