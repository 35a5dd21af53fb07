"""Tables of steps of ranks that wait for each other in their backward passes, made from what each rank computes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from factories import STEADY, Row, make_results, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.results.results import Results

# Number of the first measured step.
FIRST = 11
REPEATS = range(len(STEADY))

# The numbers of the steps of `even_steps`, and their shape.
SHAPE = (100, 2)
NUMBERS = np.arange(FIRST, FIRST + SHAPE[0])

# Seconds of each step (rows) on each rank (columns).
Times = np.ndarray


def steps_of(
    at: int, forward_s: Times, backward_s: Times, outside_s: Times | float = 0.0, **columns: np.ndarray
) -> list[Row]:
    """Return the rows of a run's steps. `backward_s`: what ranks compute in backward passes, before they wait.

    All ranks leave a step when the last one has computed. `columns`: further columns, of the same shape.
    """
    own_s = forward_s + outside_s
    # Times of `outside_s` may be those of a phase among `columns`, such as evaluation.
    durations_s = (own_s + backward_s).max(axis=1, keepdims=True) + 0.0 * forward_s
    columns |= {"forward_s": forward_s, "backward_s": durations_s - own_s, "duration_s": durations_s}
    starts_s = durations_s.cumsum(axis=0) - durations_s
    return [
        {
            "at": at, "rank": rank, "epoch": 1, "step": FIRST + step, "window": "measured",
            "start_s": float(starts_s[step, rank]),
            **{name: values[step, rank].item() for name, values in columns.items()},
        }
        for step in range(len(forward_s))
        for rank in range(forward_s.shape[1])
    ]  # fmt: skip


def even_steps(outside_s: Times, **columns: np.ndarray) -> list[Row]:
    """Return the steps of two ranks that compute for 30 ms, and what is outside of phases in addition."""
    return steps_of(0, 0.010 * np.ones(SHAPE), 0.020 * np.ones(SHAPE), outside_s, **columns)


def long_steps(every: int, seconds: float, ranks: list[int]) -> Times:
    """Return the seconds by which every so many steps are longer on these ranks."""
    seconds_s = np.zeros(SHAPE)
    seconds_s[np.ix_(NUMBERS % every == 0, ranks)] = seconds
    return seconds_s


def noise(seed: int, steps: int = 100, ranks: int = 2, scatter: float = 0.1) -> Times:
    """Return factors around 1, as other processes make times of steps differ."""
    return np.exp(np.random.default_rng(seed).normal(0, scatter, (steps, ranks)))


def results_of(
    folder: Path,
    repeats: list[list[Row]],
    step_s: float,
    host_work: Iterable[Row] = (),
    code_lines: Iterable[Row] = (),
    **columns: Any,
) -> Results:
    """Return the results of a run with the steps of each repeat, which `steps_of` made; `columns`: of its measures."""
    ranks = max(row["rank"] for row in repeats[0]) + 1
    times = {"iteration_time_s": step_s, "mean_iteration_time_s": step_s, "measured_steps": len(repeats[0]) // ranks}
    runs = vision_runs(100.0, STEADY[: len(repeats)], devices=ranks, device="cpu", **times)
    runs = [run | columns for run in runs]
    steps = [row for rows in repeats for row in rows]
    tables = {"steps": steps, "host_work": list(host_work), "code_lines": list(code_lines)}
    return make_results(folder, runs, gpu=None, tables=tables)


def causes(results: Results) -> list[Diagnosis]:
    """Return all causes of the only configuration."""
    return causes_of(results.configurations()[0], results)
