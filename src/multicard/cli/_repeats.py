"""Run scenarios whose repeats go on until their comparisons are decided, block by block."""

from pathlib import Path
from typing import TYPE_CHECKING

from multicard.core.text import counted
from multicard.core.units import number

if TYPE_CHECKING:
    from multicard.config.plan import Plan


def run_until_decided(plan: "Plan", config: Path, profile: Path | None) -> "Plan":
    """Run the repeats that decide the comparisons of a plan's scenarios; return the plan with these repeats.

    After each block, one more repeat of all configurations of a group of scenarios, Snakemake starts again with a plan
    that has the next one. A last block, by which scenarios have their most repeats, is left to the caller to run, and
    so is a block that Snakemake did not make. Nothing is run if each scenario has a fixed number of repeats, or is
    known to be decided.
    """
    from multicard.answers.repeats import next_repeats
    from multicard.cli._pipeline import run_pipeline
    from multicard.config.added_repeats import open_scenarios, with_added_repeats, write_added
    from multicard.config.plan import Plan

    results = Path(plan.experiment.results)
    while names := open_scenarios(plan.experiment):
        # Scenarios of a group run together, so that their runs alternate.
        together = {name for run in _runs_of(plan, names) for name in plan.order[run].group}
        targets = [str(results / "scenarios" / name / "measures.csv") for name in plan.scenarios if name in together]
        if not run_pipeline(config, profile, targets=targets, console="runs"):
            return plan
        added = next_repeats(plan)
        write_added(results, added)
        for name, state in added.items():
            print(_state_words(plan, name, state.decided is not None), flush=True)
        plan = Plan.make(with_added_repeats(plan.experiment))
    return plan


def _runs_of(plan: "Plan", scenarios: list[str]) -> list[str]:
    return [run.id for name in scenarios for run in plan.scenarios[name]]


def _state_words(plan: "Plan", scenario: str, is_decided: bool) -> str:
    """Return whether a scenario is decided by the repeats of a plan, else how long further ones take.

    The time is that of the last repeats of all configurations, which is known once they ran.
    """
    repeats = plan.experiment.scenarios[scenario].repeats
    if is_decided:
        return f"{scenario}: decided after {counted(repeats.least, 'repeat')}"
    words = f"{scenario}: not decided after {counted(repeats.least, 'repeat')}, one more of {repeats.most} at most"
    block_s = _seconds_of_last_block(plan, scenario)
    if block_s == 0:
        return words
    most_s = block_s * (repeats.most - repeats.least)
    return f"{words}, about {block_s / 60:.2g} minutes ({most_s / 60:.2g} for all)"


def _seconds_of_last_block(plan: "Plan", scenario: str) -> float:
    """Return how long the runs of the last repeat of a scenario took together; 0 if no record says so."""
    from multicard.config.read_run import read_run_if_any

    last = plan.experiment.scenarios[scenario].repeats.least
    folder = Path(plan.experiment.results) / "runs"
    records = [read_run_if_any(folder / run.id) for run in plan.scenarios[scenario] if run.parameters.repeat == last]
    return sum(record.wall_time_s or 0.0 for record in records if record is not None)


def least_and_most(plan: "Plan") -> str | None:
    """Return how many runs a plan has at least and at most, and their time; None if no repeats may be added.

    The time is an estimate where the lengths of all runs are known, else the most that the time limit allows.
    """
    from multicard.config.estimate import estimate_cost

    further = plan.further_runs()
    if not further:
        return None
    planned = [plan.runs[run] for run in plan.planned()]
    limit_min = plan.experiment.time_limit_min
    least, most = (estimate_cost(runs, limit_min, plan.machine.gpus) for runs in (planned, [*planned, *further]))
    counts = f"until decided: {len(planned)} to {len(planned) + len(further)} runs"
    are_on_gpus = all(run.parameters.device == "cuda" for run in [*planned, *further])
    if are_on_gpus and not most.unknown:
        return f"{counts}, about {number(least.wall_h)} to {number(most.wall_h)} h"
    limit_h = [limit_min * len(runs) / 60 for runs in (planned, [*planned, *further])]
    return f"{counts}, which the time limit ends within {number(limit_h[0])} to {number(limit_h[1])} h"
