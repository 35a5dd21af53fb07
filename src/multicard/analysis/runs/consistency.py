"""Whether the trace of a run shows the steps that its record has."""

import pandas as pd

from multicard.analysis.runs.run_files import RunFiles

TOLERANCE = 0.05


def disagreement(run: RunFiles, steps: pd.DataFrame) -> str | None:
    """How the steps of the trace last otherwise than those of the record, in words; None where they do not."""
    ratio = trace_to_record(run, steps)
    if ratio is None or abs(ratio - 1) <= TOLERANCE:
        return None
    return f"the trace's steps last {ratio:.1%} of the record's"


def trace_to_record(run: RunFiles, steps: pd.DataFrame) -> float | None:
    """Time of profiled steps by the trace over that by the record, `steps`; None where no step is in both.

    Both are by the GPU where there is one. What a record omits, it omits from every step, while a busy machine may
    delay a process between any two marks: of a rank the step nearest to 1 counts, of the run the rank farthest from 1.
    """
    profiled = steps[steps["window"] == "profiled"]
    ratios = (_in_order(run.traced_steps) / _in_order(profiled)).dropna()
    if ratios.empty:
        return None
    nearest = ratios.groupby("rank").agg(lambda group: group.iloc[(group - 1).abs().argmin()])
    return float(nearest.iloc[(nearest - 1).abs().argmax()])


def _in_order(steps: pd.DataFrame) -> pd.Series:
    """Durations by rank and place within the rank: steps are numbered differently in the trace."""
    steps = steps.sort_values(["rank", "step"])
    return steps["duration_s"].set_axis([steps["rank"], steps.groupby("rank").cumcount()])
