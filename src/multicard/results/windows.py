"""A window of steps: its elapsed time, the times of its steps, and its throughput.

The period of a step is the time from its start to the start of the next one, so it includes the time between steps.

Throughput is the work of a window divided by its elapsed time on the slowest rank. This is the harmonic mean of the
steps' rates, weighted by their work, as T. Hoefler and R. Belli demand ("Scientific Benchmarking of Parallel Computing
Systems", SC15, rule 3: arithmetic means for costs, harmonic means for rates). The rate of the median step would leave
out the waits for a loader, because a loader delivers in bursts, and most steps do not wait.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from multicard.core.layout import PHASES

# Column of steps.csv with the seconds of evaluation within a step's period.
EVALUATION = "evaluation_s"


def step_periods(steps: pd.DataFrame, process: str = "rank") -> pd.DataFrame:
    """Return the seconds from the start of each step to that of the next one.

    `steps`: the steps of one window, with the columns `step`, `start_s` and `duration_s`, and `epoch` if there may be
    several. `process`: the column that identifies the process of a step. Only starts of the same process are compared.

    The result has the columns `process`, `step`, `stretch` and `period_s`. Its rows are ordered by process and step. A
    stretch is a sequence of consecutive steps of one epoch. The stretches of each process are numbered from 1. The last
    step of a stretch has no next one, so its period is its duration. So the periods of a stretch add up to the time
    from the start of its first step to the end of its last. Below, the steps 1 and 2 are a stretch, and step 5 is
    another:

    >>> steps = pd.DataFrame({"rank": 0, "step": [1, 2, 5], "start_s": [0.0, 1.5, 9.0], "duration_s": [1.0, 1.0, 2.0]})
    >>> step_periods(steps)[["stretch", "step", "period_s"]].values.tolist()
    [[1.0, 1.0, 1.5], [1.0, 2.0, 1.0], [2.0, 5.0, 2.0]]
    """
    order = np.lexsort((steps["step"], steps[process]))
    process_of_step = steps[process].to_numpy()[order]
    number = steps["step"].to_numpy()[order]
    start_s = steps["start_s"].to_numpy()[order]
    duration_s = steps["duration_s"].to_numpy()[order]

    is_next = (np.diff(process_of_step) == 0) & (np.diff(number) == 1)
    if "epoch" in steps:
        epoch = steps["epoch"].to_numpy()[order]
        is_next &= np.diff(epoch) == 0
    follows = np.zeros(len(steps), dtype=bool)
    follows[1:] = is_next

    period_s = duration_s.astype(float)
    period_s[:-1] = np.where(is_next, np.diff(start_s), period_s[:-1])

    stretch_of_all = (~follows).cumsum()
    first_of_process = np.searchsorted(process_of_step, process_of_step)
    stretches_before = stretch_of_all[first_of_process] - 1
    return pd.DataFrame(
        {
            process: process_of_step,
            "step": number,
            "stretch": stretch_of_all - stretches_before,
            "period_s": period_s,
        }
    )


def elapsed_s(periods: pd.DataFrame, process: str = "rank") -> float:
    """Return the seconds that steps took: the time of each stretch on its slowest process, summed over the stretches.

    `periods`: as `step_periods` returns them for the same `process`. The slowest process may be another one in each
    stretch. Here it is rank 1 with 3 s, then rank 0 with 2 s:

    >>> periods = {"rank": [0, 0, 1, 1], "stretch": [1, 2, 1, 2], "period_s": [1.0, 2.0, 3.0, 1.0]}
    >>> elapsed_s(pd.DataFrame(periods))
    5.0
    """
    stretch = periods["stretch"].to_numpy()
    is_new_stretch = np.diff(stretch, prepend=0) != 0
    is_new_process = np.diff(periods[process], prepend=0) != 0
    first_rows = np.flatnonzero(is_new_stretch | is_new_process)
    # The seconds of each stretch on each process, and the index of the stretch.
    seconds = np.add.reduceat(periods["period_s"].to_numpy(), first_rows)
    stretch_index = stretch[first_rows] - 1
    slowest = np.zeros(stretch.max())
    np.maximum.at(slowest, stretch_index, seconds)
    return float(slowest.sum())


@dataclass(frozen=True)
class Window:
    """The steps of one window on all ranks: one or more rows of steps.csv. Times are in seconds."""

    steps: pd.DataFrame

    @cached_property
    def periods(self) -> pd.DataFrame:
        """The periods of all steps, as `step_periods` returns them."""
        return step_periods(self.steps)

    @cached_property
    def elapsed_s(self) -> float:
        """The sum of the times of each stretch of steps on its slowest rank; see the function `elapsed_s`."""
        return elapsed_s(self.periods)

    @cached_property
    def slowest_periods_s(self) -> np.ndarray:
        """The periods of the rank whose periods have the largest sum, in the order of its steps."""
        by_rank = self.periods.groupby("rank")["period_s"]
        slowest_rank = by_rank.sum().idxmax()
        return by_rank.get_group(slowest_rank).to_numpy(dtype=float)

    @property
    def count(self) -> int:
        """The number of different step numbers, which is the number of steps of a rank."""
        return int(self.steps["step"].nunique())

    @property
    def iteration_time_s(self) -> float:
        """Elapsed time divided by the number of steps."""
        return self.elapsed_s / self.count

    @property
    def median_iteration_time_s(self) -> float:
        """Median over steps of the duration of each step on its slowest rank, without the time between steps."""
        return float(self.steps.groupby("step")["duration_s"].max().median())

    @property
    def mean_iteration_time_s(self) -> float:
        """Mean over steps and ranks of the duration, without the time between steps."""
        return float(self.steps["duration_s"].mean())

    @cached_property
    def waiting(self) -> pd.DataFrame:
        """The times of each step on the rank that waited for data and evaluated longest: a row per step, by its number.

        Columns: a phase for each of its columns in `steps` (`data` for `data_s`), `evaluation` if `steps` has it, and
        `period_s`; all in seconds. A phase that a step lacks is 0. If several ranks did so equally long, the row is
        their mean. If neither was recorded, it is the mean of all ranks.

        The other ranks wait in their backward pass for the rank that waits for data, or that evaluates alone. So a mean
        over all ranks would count this waiting as computing.
        """
        phase_columns = [f"{phase}_s" for phase in PHASES]
        columns = [name for name in (*phase_columns, EVALUATION) if name in self.steps]
        # Rows are put in the order of `periods`, by rank and step.
        order = np.lexsort((self.steps["step"], self.steps["rank"]))
        phases_s = self.steps[columns].fillna(0.0).to_numpy()[order]
        times_s = np.column_stack([phases_s, self.periods["period_s"]])
        # For each row, `step_index` has the position of its step in `numbers`.
        numbers, step_index = np.unique(self.periods["step"], return_inverse=True)
        delaying = [columns.index(name) for name in ("data_s", EVALUATION) if name in columns]
        if delaying:
            waited_longest = _is_highest_of_step(times_s[:, delaying].sum(axis=1), step_index)
            times_s = times_s[waited_longest]
            step_index = step_index[waited_longest]
        means_s = _means_of_steps(times_s, step_index)
        names = [name.removesuffix("_s") for name in columns]
        return pd.DataFrame(means_s, index=numbers, columns=[*names, "period_s"])

    @property
    def data_share(self) -> float | None:
        """The share of time spent waiting for data, from 0 to 1; None if no step has a recorded wait.

        In each step, only the rank of `waiting` counts. The share is the sum of its waits divided by the sum
        of the periods of the same ranks. Two steps with waits of 0.5 and 0.25 s and periods of 2 and 1 s have
        0.75 / 3 = 0.25.
        """
        if self.steps["data_s"].isna().all():
            return None
        wait_s = self.waiting["data"].sum()
        period_s = self.waiting["period_s"].sum()
        return float(wait_s / period_s)

    def rate(self, column: str) -> float:
        """Return the sum of a column of counts over steps and ranks, per elapsed second; NaN if a count is empty."""
        return float(self.steps[column].sum(skipna=False) / self.elapsed_s)


def _is_highest_of_step(values: np.ndarray, step_index: np.ndarray) -> np.ndarray:
    """Return for each row whether its value is the highest of its step. Several rows of a step may have that value.

    `step_index`: the step of each row, counted from 0.

    >>> _is_highest_of_step(np.array([1.0, 3.0, 3.0, 2.0]), np.array([0, 0, 0, 1])).tolist()
    [False, True, True, True]
    """
    # There are at most as many steps as rows.
    highest = np.full(len(step_index), -np.inf)
    np.maximum.at(highest, step_index, values)
    is_highest: np.ndarray = values == highest[step_index]
    return is_highest


def _means_of_steps(times: np.ndarray, step_index: np.ndarray) -> np.ndarray:
    """Return the mean of the rows of each step. Each step has a row.

    `step_index`: the step of each row, counted from 0.

    >>> _means_of_steps(np.array([[1.0, 10.0], [3.0, 20.0], [5.0, 30.0]]), np.array([0, 0, 1])).tolist()
    [[2.0, 15.0], [5.0, 30.0]]
    """
    row_counts = np.bincount(step_index)
    sums = np.zeros((len(row_counts), times.shape[1]))
    np.add.at(sums, step_index, times)
    return sums / row_counts[:, np.newaxis]
