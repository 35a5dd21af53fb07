"""Whether the record of a run agrees with itself and with its trace."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from multicard.analysis.runs.run_files import RunFiles
from multicard.core.layout import PHASES, STEPS
from multicard.experiment.workload import WORKLOADS

TOLERANCE = 0.05


@dataclass(frozen=True)
class Consistency:
    """Two checks on a completed run.

    Each is a ratio per step. What a record omits, it omits from every step, while a busy machine may delay a process
    between any two marks: a rank is judged by its step nearest to 1, the run by its rank farthest from 1.

    `phase_coverage`: sum of the phases over step time, of measured steps; None where phases need not cover a step.
    `trace_to_record`: step time by the trace over the same by the record, of profiled steps, both by the GPU where
    there is one; None when none can be compared.
    `uncompared`: ranks of which no profiled step has a duration in both.
    """

    phase_coverage: float | None
    trace_to_record: float | None
    uncompared: tuple[int, ...] = ()

    def faults(self) -> list[str]:
        """What is off by more than `TOLERANCE`, in words."""
        found = []
        if self.phase_coverage is not None and abs(self.phase_coverage - 1) > TOLERANCE:
            found.append(f"the phases add up to {self.phase_coverage:.1%} of the step time")
        if self.trace_to_record is not None and abs(self.trace_to_record - 1) > TOLERANCE:
            found.append(f"the trace's steps last {self.trace_to_record:.1%} of the record's")
        return found


def check_run(run: Path | RunFiles, steps: pd.DataFrame | None = None) -> Consistency:
    """Check one completed run, given its folder or its files; `steps`: its steps.csv, if that was read before."""
    run = RunFiles.of(run)
    if steps is None:
        steps = run.table(STEPS, ("rank", "step", "duration_s", *(f"{phase}_s" for phase in PHASES)))
    measured = steps[steps["window"] == "measured"].set_index("rank")
    coverage = measured[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / measured["duration_s"]

    profiled = steps[steps["window"] == "profiled"]
    covered = WORKLOADS[run.record["parameters"]["workload"]].phases_cover_steps
    ratios = (_in_order(run.traced_steps) / _in_order(profiled)).dropna()
    uncompared = set(profiled["rank"]) - set(ratios.index.get_level_values("rank"))
    return Consistency(
        _judged(coverage) if covered else None, _judged(ratios) if len(ratios) else None, tuple(sorted(uncompared))
    )


def _in_order(steps: pd.DataFrame) -> pd.Series:
    """Durations by rank and place within the rank: steps are numbered differently in the trace."""
    steps = steps.sort_values(["rank", "step"])
    return steps["duration_s"].set_axis([steps["rank"], steps.groupby("rank").cumcount()])


def _judged(ratios: pd.Series) -> float:
    """Of each rank the ratio nearest to 1; of these the one farthest from 1."""
    nearest = ratios.groupby("rank").agg(lambda group: group.iloc[(group - 1).abs().argmin()])
    return float(nearest.iloc[(nearest - 1).abs().argmax()])
