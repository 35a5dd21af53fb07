"""Where the warm-up of a run ends that leaves this to its step times (`warmup_steps: auto`)."""

from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.windows import step_pitches

BATCH = 5  # steps whose mean is one observation


def transient_steps(times: np.ndarray) -> int:
    """Steps to leave out at the beginning: a multiple of 5, at most half of all.

    The rule is MSER (K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69(6), 1997): leave out so many that the standard error of the mean of the rest, were they independent,
    is smallest. It is applied to means of 5, which single outliers sway less (MSER-5: K. P. White, M. J. Cobb and
    S. C. Spratt, "A comparison of five steady-state truncation heuristics for simulation", WSC 2000). Where the rule
    would leave out more than half, there are too few steps for it, and half are left out.

    >>> transient_steps(np.array([3.0] * 10 + [1.0] * 30))
    10
    """
    means = times[: len(times) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    rests = [means[left_out:] for left_out in range(len(means) // 2 + 1)]
    errors = [rest.var() / len(rest) for rest in rests if len(rest)]
    return BATCH * int(np.argmin(errors)) if errors else 0


def without_transient(steps: pd.DataFrame, parameters: dict[str, Any]) -> pd.DataFrame:
    """Steps of a run with those of its warm-up said to be `warmup`; as they are unless the run leaves it to them.

    Parameters
    ----------
    steps
        Rows of steps.csv.
    parameters
        Of the run, as run.json has them.
    """
    if parameters.get("warmup_steps") != "auto":
        return steps
    measured = steps[steps["window"] == "measured"]
    times = step_pitches(measured).groupby("step")["pitch_s"].max().sort_index()
    transient = times.index[: transient_steps(times.to_numpy())]
    window = steps["window"].mask((steps["window"] == "measured") & steps["step"].isin(transient), "warmup")
    return steps.assign(window=window)
