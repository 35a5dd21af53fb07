"""One step of every rank of a run, phase by phase, as the page draws it."""

from dataclasses import dataclass

import pandas as pd

from multicard.core.layout import EVALUATION, PHASES
from multicard.core.units import SECONDS, duration, number, unit_for
from multicard.figures.series import configuration_names
from multicard.results.results import Results

MOST_RANKS = 16  # number of ranks that are drawn; further ones are left out
OTHER = "other"


@dataclass(frozen=True)
class Segment:
    """The time of one phase in the step of a rank. `start` and `share` are parts of the longest rank's step, 0 to 1."""

    phase: str
    start: float
    share: float
    time: str  # in words


@dataclass(frozen=True)
class RankStep:
    """The step of a rank: its phases in the order in which a step has them."""

    rank: int
    time: str  # in words
    segments: list[Segment]


@dataclass(frozen=True)
class StepTimeline:
    """A measured step of a run that has a typical duration, on each of its ranks."""

    run: str
    configuration: str
    step: int
    ranks: list[RankStep]
    omitted_ranks: int
    phases: list[str]  # those that any rank has
    ticks: list[tuple[float, str]]  # positions, 0 to 1, and times in words


def step_timeline(results: Results) -> StepTimeline | None:
    """Return a step of the first of the runs with most ranks; None if no run recorded phases on several ranks.

    Of the measured steps that all ranks have, it is the one with the median duration of the slowest rank: of an even
    number, the shorter one of the two in the middle.
    """
    steps = results.table("steps")
    measured = steps[(steps["window"] == "measured") & steps["duration_s"].gt(0)]
    measured = measured.dropna(subset=[f"{phase}_s" for phase in PHASES], how="all")
    completed = results.completed().frame()
    rank_counts = measured.groupby("run")["rank"].nunique().reindex(completed.get("run", [])).fillna(0)
    if rank_counts.empty or rank_counts.max() < 2:
        return None
    run = str(rank_counts.idxmax())
    step, rows = _typical_step(measured[measured["run"] == run], int(rank_counts[run]))
    if rows.empty:
        return None
    shown = rows.sort_values("rank").head(MOST_RANKS)
    phases_s = shown[[f"{phase}_s" for phase in (*PHASES, EVALUATION)]].sum(axis=1)
    # Phases are measured one by one, so that they may add up to a little more than the step.
    longest_s = float(max(shown["duration_s"].max(), phases_s.max()))
    factor, unit = unit_for([longest_s], SECONDS)
    ranks = [_rank_step(row, longest_s) for _, row in shown.iterrows()]
    with_time = {segment.phase for rank in ranks for segment in rank.segments}
    of_run = completed[completed["run"] == run]
    return StepTimeline(
        run=run,
        configuration=configuration_names(results.frame(), of_run)[0],
        step=step,
        ranks=ranks,
        omitted_ranks=len(rows) - len(shown),
        phases=[phase for phase in (*PHASES, EVALUATION, OTHER) if phase in with_time],
        ticks=[(part / 4, f"{number(factor * longest_s * part / 4)} {unit}") for part in range(5)],
    )


def _typical_step(steps: pd.DataFrame, rank_count: int) -> tuple[int, pd.DataFrame]:
    """Return the number and the rows of the step with the median duration; no rows if no step has all ranks."""
    by_step = steps.groupby("step")
    slowest_s = by_step["duration_s"].max()[by_step["rank"].nunique() == rank_count].sort_values(kind="stable")
    if slowest_s.empty:
        return 0, steps.head(0)
    step = int(slowest_s.index[(len(slowest_s) - 1) // 2])
    return step, steps[steps["step"] == step]


def _rank_step(row: pd.Series, longest_s: float) -> RankStep:
    times = {phase: row[f"{phase}_s"] for phase in (*PHASES, EVALUATION)}
    known = {phase: float(time) for phase, time in times.items() if pd.notna(time) and time > 0}
    duration_s = float(row["duration_s"])
    rest_s = duration_s - sum(known.values())
    if rest_s > 0:
        known[OTHER] = rest_s
    segments = []
    start_s = 0.0
    for phase, time_s in known.items():
        segments.append(Segment(phase, start_s / longest_s, time_s / longest_s, duration(time_s)))
        start_s += time_s
    return RankStep(int(row["rank"]), duration(duration_s), segments)
