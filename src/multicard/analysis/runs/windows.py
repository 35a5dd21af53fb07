"""A window of steps: how long it took, and what was done in it.

Throughput is the work of a window over its elapsed time on the slowest rank: the harmonic mean of the steps' rates,
weighted by their work, as T. Hoefler and R. Belli ask for ("Scientific Benchmarking of Parallel Computing Systems",
SC15, rule 3: arithmetic means for costs, harmonic means for rates). The rate of the median step leaves out the waits
that a loader causes, since it delivers in bursts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from multicard.core.layout import PHASES

EVALUATION = "evaluation_s"  # column of steps.csv: of a step's pitch the time in evaluation


def step_pitches(steps: pd.DataFrame, of: str = "rank") -> pd.DataFrame:
    """Time from the start of each step to that of the next one, which covers what lies between them.

    `steps`: steps of one window: `step`, `start_s` and `duration_s`, by one clock for each value of the column `of`;
    and `epoch` where there are several.

    Gives `of`, `stretch`, `step` and `pitch_s`, in the order of `of` and `step`. A stretch is a row of consecutive
    steps of one epoch, numbered from 1 in each rank; of its last step the pitch is the duration. So the pitches of a
    stretch add up to the time from its first start to its last end.
    """
    order = np.lexsort((steps["step"], steps[of]))
    place, step, start, duration = (steps[name].to_numpy()[order] for name in (of, "step", "start_s", "duration_s"))
    follows = np.zeros(len(steps), dtype=bool)  # on the one before
    follows[1:] = (np.diff(place) == 0) & (np.diff(step) == 1)
    if "epoch" in steps:
        follows[1:] &= np.diff(steps["epoch"].to_numpy()[order]) == 0
    pitch = duration.astype(float)
    pitch[:-1] = np.where(follows[1:], np.diff(start), pitch[:-1])
    begun = (~follows).cumsum()
    before = begun[np.searchsorted(place, place)] - 1  # in the places before
    return pd.DataFrame({of: place, "step": step, "stretch": begun - before, "pitch_s": pitch})


def elapsed_s(pitches: pd.DataFrame, of: str = "rank") -> float:
    """Sum over stretches of the slowest rank's time from the start of its first to the end of its last step."""
    stretch = pitches["stretch"].to_numpy()
    first = np.flatnonzero((np.diff(stretch, prepend=0) != 0) | (np.diff(pitches[of], prepend=0) != 0))
    longest = np.zeros(stretch.max())
    np.maximum.at(longest, stretch[first] - 1, np.add.reduceat(pitches["pitch_s"].to_numpy(), first))
    return float(longest.sum())


@dataclass(frozen=True)
class Window:
    """The steps of one window, on all ranks: rows of steps.csv, at least one."""

    steps: pd.DataFrame

    @cached_property
    def pitches(self) -> pd.DataFrame:
        """As `step_pitches`."""
        return step_pitches(self.steps)

    @cached_property
    def elapsed_s(self) -> float:
        """As the function `elapsed_s`."""
        return elapsed_s(self.pitches)

    @cached_property
    def pace_s(self) -> np.ndarray:
        """Pitches of the rank that takes longest in all, in order."""
        by_rank = self.pitches.groupby("rank")["pitch_s"]
        return by_rank.get_group(by_rank.sum().idxmax()).to_numpy(dtype=float)

    @property
    def count(self) -> int:
        """Steps of a rank."""
        return int(self.steps["step"].nunique())

    @property
    def iteration_time_s(self) -> float:
        """Elapsed time over steps."""
        return self.elapsed_s / self.count

    @property
    def median_iteration_time_s(self) -> float:
        """Median over steps of the longest duration among ranks."""
        return float(self.steps.groupby("step")["duration_s"].max().median())

    @property
    def mean_iteration_time_s(self) -> float:
        """Mean duration over steps and ranks."""
        return float(self.steps["duration_s"].mean())

    @cached_property
    def waiting(self) -> pd.DataFrame:
        """Of each step the rank that waited longest for data: its `pitch_s` and seconds by name of the phase.

        Ranks that share a job wait for the one without data, in their backward pass, so a mean over ranks would count
        that wait as computing. Of ranks that waited equally long it is the mean; a phase that was not recorded is 0.
        """
        times = [name for name in (*(f"{phase}_s" for phase in PHASES), EVALUATION) if name in self.steps]
        order = np.lexsort((self.steps["step"], self.steps["rank"]))  # that of the pitches
        values = np.column_stack([self.steps[times].fillna(0.0).to_numpy()[order], self.pitches["pitch_s"]])
        steps, of = np.unique(self.pitches["step"], return_inverse=True)
        if "data_s" in times:
            data, longest = values[:, times.index("data_s")], np.full(len(steps), -np.inf)
            np.maximum.at(longest, of, data)
            values, of = values[data == longest[of]], of[data == longest[of]]
        sums = np.zeros((len(steps), values.shape[1]))
        np.add.at(sums, of, values)
        names = [*(name.removesuffix("_s") for name in times), "pitch_s"]
        return pd.DataFrame(sums / np.bincount(of)[:, None], index=steps, columns=names)

    @property
    def data_share(self) -> float | None:
        """Part of the time that the rank that waited longest in each step waited for data; None where not recorded."""
        if self.steps["data_s"].isna().all():
            return None
        return float(self.waiting["data"].sum() / self.waiting["pitch_s"].sum())

    def rate(self, column: str) -> float:
        """What a column counts, of all ranks together, over the elapsed time; NaN where a count is not known."""
        return float(self.steps[column].sum(skipna=False) / self.elapsed_s)
