"""Where the warm-up of a run ends that leaves this to its step times (`warmup_steps: auto`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.runs.windows import step_pitches

BATCH = 5  # steps whose median is one observation
LEAST_REST = 5  # observations, since of one or two the variance says nothing


def transient_steps(times: np.ndarray) -> int:
    """Steps to leave out at the beginning: a multiple of 5, at most half of all, and with 25 or more steps left.

    The rule is MSER (K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69(6), 1997): leave out so many that the standard error of the mean of the rest, were they independent,
    is smallest. It is applied in batches of 5 (MSER-5: K. P. White, M. J. Cobb and S. C. Spratt, "A comparison of five
    steady-state truncation heuristics for simulation", WSC 2000), but to their medians rather than their means, which
    is this project's choice: with means it cuts where the rare long steps of a steady run end, so that the run looks
    faster than it was. Where the rule would leave out more than half, there are too few steps for it, and half are
    left out.

    >>> transient_steps(np.array([3.0] * 10 + [1.0] * 30))
    10
    """
    medians = np.median(times[: len(times) // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    longest = min(len(medians) // 2, len(medians) - LEAST_REST)
    rests = [medians[left_out:] for left_out in range(longest + 1)]
    return BATCH * int(np.argmin([rest.var() / len(rest) for rest in rests])) if rests else 0


def warmup_is_found(parameters: Mapping[str, Any]) -> bool:
    """Whether a run with these parameters leaves its warm-up to its step times."""
    return parameters.get("warmup_steps") == "auto"


def without_transient(steps: pd.DataFrame, parameters: dict[str, Any]) -> pd.DataFrame:
    """Steps of a run with those of its warm-up said to be `warmup`; as they are unless the run leaves it to them.

    Parameters
    ----------
    steps
        Rows of steps.csv.
    parameters
        Of the run, as run.json has them.
    """
    if not warmup_is_found(parameters):
        return steps
    measured = steps[steps["window"] == "measured"]
    times = step_pitches(measured).groupby("step")["pitch_s"].max().sort_index()
    transient = times.index[: transient_steps(times.to_numpy())]
    window = steps["window"].mask((steps["window"] == "measured") & steps["step"].isin(transient), "warmup")
    return steps.assign(window=window)
