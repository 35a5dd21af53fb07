"""Whether the record of a run agrees with itself and with its trace."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from multicard.analysis.measures import trace_steps
from multicard.record.names import PHASES, STEPS

TOLERANCE = 0.05


@dataclass(frozen=True)
class Consistency:
    """Two checks on a completed run.

    `phase_coverage`: sum of the phases over step time, its median over measured steps and ranks.
    `trace_to_record`: median step time by the trace over the same by the record, in the profiled window, of
    the rank where they differ most; None when the trace shows no steps.
    """

    phase_coverage: float
    trace_to_record: float | None

    def faults(self) -> list[str]:
        """What is off by more than `TOLERANCE`, in words."""
        found = []
        if abs(self.phase_coverage - 1) > TOLERANCE:
            found.append(f"the phases add up to {self.phase_coverage:.1%} of the step time")
        if self.trace_to_record is not None and abs(self.trace_to_record - 1) > TOLERANCE:
            found.append(f"the trace's steps last {self.trace_to_record:.1%} of the record's")
        return found


def check_run(folder: Path) -> Consistency:
    """Check one completed run."""
    steps = pd.read_csv(folder / STEPS)
    measured = steps[steps["window"] == "measured"]
    coverage = measured[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / measured["duration_s"]

    traced = trace_steps(folder).groupby("rank")["duration_s"].median()
    recorded = steps[steps["window"] == "profiled"].groupby("rank")["duration_s"].median()
    ratios = (traced / recorded).dropna()
    worst = float(ratios.loc[(ratios - 1).abs().idxmax()]) if len(ratios) else None
    return Consistency(float(coverage.median()), worst)
