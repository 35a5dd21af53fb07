"""How steps wait for data: in all of a pass over the data alike, at its start and its end, or now and then.

`waits_of` reads this from the table `steps`. In each step the rank counts for which the others wait, as in the
breakdown of a step (`results.breakdown`).

One or two long waits are by chance, as where another program takes the CPU. So the `BY_CHANCE` longest waits of a run
count as long as the next longest one: of 48 waits of 1 ms, one of 40 and one of 160 ms, all count as 1 ms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.diagnoses.host.regular import FEWEST
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.units import duration
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.results import Results
from multicard.results.windows import Window

# Workers are the limit if, of all spans of as many steps as there are workers, this share waits at least half as long
# as spans do on average: a loader that is too slow makes one step in so many wait, again and again.
STEADILY = 0.8
# Single steps wait if at most this share of the steps does, for all but `ELSEWHERE` of the time.
RARELY = 0.2
ELSEWHERE = 0.1
# So many long waits of a run, or fewer, are by chance.
BY_CHANCE = FEWEST - 1
# One rank alone waits for data if each of the others waits for at most this share of its time.
HARDLY_WAITS = 0.25


class RareWaits(NamedTuple):
    """Waits of single steps; see `RARELY`."""

    # Share of the steps that wait, and how long one of them does, in seconds.
    step_share: float
    wait_s: float


@dataclass(frozen=True)
class Waits:
    """Times of the steps of a configuration in seconds, means over its repeats. Made by `waits_of`."""

    # Wait for data of a step that neither begins nor ends a pass, and the rest of such a step.
    usual_s: float
    rest_s: float
    # By how much steps wait longer on average, because of a few waits that are long by chance.
    chance_s: float
    # By how much longer the first step of a pass waits than the usual ones, and the last one, until the loader is
    # exhausted. 0 if no pass begins or ends in the measured steps.
    first_s: float
    last_s: float
    # Steps of a pass; None if no pass begins or ends in the measured steps, or if the number is not known.
    pass_steps: float | None
    # True if all spans of a few steps wait alike; see `STEADILY`.
    is_steady: bool
    # None if more than single steps wait.
    rare: RareWaits | None

    @property
    def boundary_s(self) -> float:
        """The seconds of a step, on average over a pass, that the start and the end of the pass take."""
        return (self.first_s + self.last_s) / self.pass_steps if self.pass_steps else 0.0

    @property
    def step_s(self) -> float:
        """The seconds of a step, on average over a pass."""
        return self.usual_s + self.chance_s + self.rest_s + self.boundary_s


def waits_of(configuration: Configuration, results: Results, workers: int | None) -> Waits | None:
    """Return how the steps of a configuration wait; None if that was not recorded.

    `workers`: worker processes of each rank's loader; None if that is not known, which counts as none.
    """
    tables = results.table_by_run("steps")
    waits_of_runs = [_waits_of_run(run, tables.get(run.run), workers or 0) for run in configuration.completed]
    runs = [waits for waits in waits_of_runs if waits is not None]
    if not runs:
        return None
    pass_lengths = [waits.pass_steps for waits in runs if waits.pass_steps]
    rare = [waits.rare for waits in runs if waits.rare is not None]
    mean_rare = None
    if len(rare) == len(runs):
        mean_rare = RareWaits(fmean(waits.step_share for waits in rare), fmean(waits.wait_s for waits in rare))
    return Waits(
        usual_s=fmean(waits.usual_s for waits in runs),
        rest_s=fmean(waits.rest_s for waits in runs),
        chance_s=fmean(waits.chance_s for waits in runs),
        first_s=fmean(waits.first_s for waits in runs),
        last_s=fmean(waits.last_s for waits in runs),
        pass_steps=fmean(pass_lengths) if len(pass_lengths) == len(runs) else None,
        is_steady=all(waits.is_steady for waits in runs),
        rare=mean_rare,
    )


def _waits_of_run(run: MeasuredRun, steps: pd.DataFrame | None, workers: int) -> Waits | None:
    """Return how the steps of one run wait; None if that was not recorded, or if passes have one or two steps."""
    if steps is None or steps["data_s"].isna().all():
        return None
    measured = steps[steps["window"] == "measured"]
    if measured.empty:
        return None
    waiting = Window(measured.assign(data_s=measured["data_s"].fillna(0.0))).waiting
    data_s = waiting["data"]
    rest_s = waiting["period_s"] - data_s
    first_steps, last_steps = _pass_boundaries(steps)
    is_first, is_last = waiting.index.isin(first_steps), waiting.index.isin(last_steps)
    is_boundary = is_first | is_last
    is_usual = ~is_boundary
    if not is_usual.any():
        return None
    usual = without_chance(data_s[is_usual])
    usual_s = float(usual.mean())
    return Waits(
        usual_s=usual_s,
        chance_s=float(data_s[is_usual].mean()) - usual_s,
        rest_s=float(rest_s[is_usual].mean()),
        first_s=_longer(data_s[is_first], usual_s),
        last_s=_longer(data_s[is_last], usual_s),
        pass_steps=_pass_steps(run, int(is_first.sum()), len(waiting)) if is_boundary.any() else None,
        is_steady=_is_steady(usual, max(workers, 1)),
        rare=_rare(usual),
    )


def without_chance(waits_s: pd.Series) -> pd.Series:
    """Return times of which the `BY_CHANCE` longest are as long as the next one; all of them if there are so few.

    >>> without_chance(pd.Series([1.0, 40.0, 1.0, 2.0, 160.0])).tolist()
    [1.0, 2.0, 1.0, 2.0, 2.0]
    """
    if len(waits_s) <= BY_CHANCE:
        return waits_s
    longest = waits_s.nlargest(BY_CHANCE + 1)
    return waits_s.clip(upper=float(longest.iloc[-1]))


def _pass_boundaries(steps: pd.DataFrame) -> tuple[set[int], set[int]]:
    """Return the numbers of the steps that begin a pass, and of those that end one."""
    epochs = steps.groupby("step")["epoch"].min()
    # Positions of the last step of each pass.
    lasts = np.flatnonzero(np.diff(epochs.to_numpy()) != 0)
    numbers = epochs.index.to_numpy()
    return set(numbers[lasts + 1].tolist()), set(numbers[lasts].tolist())


def _longer(waits_s: pd.Series, usual_s: float) -> float:
    """Return by how many seconds these waits are longer than usual in the mean; 0 if they are not, or without any."""
    return max(0.0, float(waits_s.mean()) - usual_s) if len(waits_s) else 0.0


def _pass_steps(run: MeasuredRun, passes: int, steps: int) -> float | None:
    """Return the number of steps in a pass: as recorded, else as seen if several passes begin; None if neither."""
    pass_s, step_s = run.number("estimated_epoch_time_s"), run.number(STEP_TIME)
    if pass_s and step_s:
        return float(round(pass_s / step_s))
    return steps / passes if passes > 1 else None


def _is_steady(waits_s: pd.Series, span: int) -> bool:
    """Return True if spans of consecutive steps wait alike. False if there are too few steps to show it."""
    sums: list[float] = []
    for stretch in _stretches(waits_s):
        sums += stretch.rolling(span).sum().dropna().tolist()
    if len(sums) < 3:
        return False
    mean = fmean(sums)
    waiting_share = fmean(total >= mean / 2 for total in sums)
    return waiting_share >= STEADILY


def _stretches(waits_s: pd.Series) -> Iterator[pd.Series]:
    """Yield the stretches of consecutive steps."""
    stretch = (np.diff(waits_s.index.to_numpy(), prepend=-1) != 1).cumsum()
    for _, values in waits_s.groupby(stretch):
        yield values


def _rare(waits_s: pd.Series) -> RareWaits | None:
    """Return the waits of single steps; None if more steps wait, or none.

    >>> _rare(pd.Series([0.0] * 9 + [0.5])), _rare(pd.Series([0.0] * 5 + [0.5] * 5))
    (RareWaits(step_share=0.1, wait_s=0.5), None)
    """
    long_s = waits_s[waits_s > waits_s.max() / 2]
    if waits_s.max() <= 0 or len(long_s) > RARELY * len(waits_s):
        return None
    if long_s.sum() < (1 - ELSEWHERE) * waits_s.sum():
        return None
    return RareWaits(step_share=len(long_s) / len(waits_s), wait_s=float(long_s.mean()))


def rank_that_waits(configuration: Configuration, results: Results) -> str | None:
    """Return in words which rank waits alone for its data; None if another one does, too, or in another repeat."""
    steps = results.table("steps")
    is_measured = steps["run"].isin([run.run for run in configuration.completed]) & (steps["window"] == "measured")
    # A row for each run, with a column for each rank.
    waits_s = steps[is_measured].groupby(["run", "rank"])["data_s"].mean().unstack("rank").dropna()
    rank_count = waits_s.shape[1]
    if rank_count < 2 or waits_s.empty:
        return None
    ranks = waits_s.idxmax(axis=1).unique()
    if len(ranks) > 1:
        return None
    slow_s = waits_s[ranks[0]]
    others_s = waits_s.drop(columns=ranks[0]).max(axis=1)
    if (others_s > HARDLY_WAITS * slow_s).any():
        return None
    others = "the other" if rank_count == 2 else "the others at most"
    return (
        f"rank {ranks[0]} alone waits so: {duration(float(slow_s.mean()))} of a step, {others} "
        f"{duration(float(others_s.mean()))}"
    )
