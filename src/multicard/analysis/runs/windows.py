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

    Parameters
    ----------
    steps
        Steps of one window: `step`, `start_s` and `duration_s`, by one clock for each value of the column `of`; and
        `epoch` where there are several.

    Returns
    -------
    DataFrame
        `of`, `stretch`, `step` and `pitch_s`, in the order of `of` and `step`. A stretch is a row of consecutive steps
        of one epoch, numbered from 1 in each rank; of its last step the pitch is the duration. So the pitches of a
        stretch add up to the time from its first start to its last end.
    """
    steps = steps.sort_values([of, "step"], ignore_index=True)
    own = steps.groupby(of)
    follows = own["step"].shift() + 1 == steps["step"]  # on the one before
    if "epoch" in steps:
        follows &= own["epoch"].shift() == steps["epoch"]
    is_followed = follows.groupby(steps[of]).shift(-1, fill_value=False)
    pitch = (own["start_s"].shift(-1) - steps["start_s"]).where(is_followed, steps["duration_s"])
    return steps[[of, "step"]].assign(stretch=(~follows).groupby(steps[of]).cumsum(), pitch_s=pitch)


def elapsed_s(pitches: pd.DataFrame, of: str = "rank") -> float:
    """Sum over stretches of the slowest rank's time from the start of its first to the end of its last step."""
    return float(pitches.groupby(["stretch", of])["pitch_s"].sum().groupby("stretch").max().sum())


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
        rows = self.steps.sort_values(["rank", "step"])[["step", *times]].fillna(0.0)
        rows = rows.assign(pitch_s=self.pitches["pitch_s"].to_numpy())
        if "data_s" in rows:
            rows = rows[rows["data_s"] == rows.groupby("step")["data_s"].transform("max")]
        return rows.groupby("step").mean().rename(columns=lambda name: name if name == "pitch_s" else name[:-2])

    @property
    def data_share(self) -> float | None:
        """Part of the time that the rank that waited longest in each step waited for data; None where not recorded."""
        if self.steps["data_s"].isna().all():
            return None
        return float(self.waiting["data"].sum() / self.waiting["pitch_s"].sum())

    def rate(self, column: str) -> float:
        """What a column counts, of all ranks together, over the elapsed time; NaN where a count is not known."""
        return float(self.steps[column].sum(skipna=False) / self.elapsed_s)
