"""Run scenarios whose repeats go on until their comparisons are decided, block by block."""

from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._console import say
from multicard.core.text import counted
from multicard.core.units import hours_and_minutes, number

if TYPE_CHECKING:
    from multicard.config.plan import Plan


def run_until_decided(plan: "Plan", config: Path, profile: Path | None) -> tuple["Plan", int]:
    """Run the repeats that decide the comparisons of a plan's scenarios.

    Return the plan with these repeats, and how many runs were made.

    After each block, one more repeat of all configurations of a group of scenarios, Snakemake starts again with a plan
    that has the next one. A last block, by which scenarios have their most repeats, is left to the caller to run, and
    so is a block that Snakemake did not make. Nothing is run if each scenario has a fixed number of repeats, or is
    known to be decided.
    """
    from multicard.answers.repeats import next_repeats
    from multicard.cli._pipeline import run_pipeline
    from multicard.config.added_repeats import open_scenarios, with_added_repeats, write_added
    from multicard.config.plan import Plan

    made = 0
    while open_scenarios(plan.experiment):
        missing = plan.without_record()
        has_made_all = run_pipeline(config, profile, targets=_tables_to_measure(plan), console="runs")
        made += len(missing) - len(plan.without_record())
        if not has_made_all:
            return plan, made
        added = next_repeats(plan)
        write_added(Path(plan.experiment.results), added)
        for scenario, state in added.items():
            is_decided = state.decided is not None
            say(_state_words(plan, scenario, is_decided))
        plan = Plan.make(with_added_repeats(plan.experiment))
    return plan, made


def _tables_to_measure(plan: "Plan") -> list[str]:
    """Return the tables of the scenarios to which repeats may be added, and of those that share runs with them.

    Made by Snakemake, they need the runs of all these scenarios, so that the runs of a block alternate.
    """
    from multicard.config.added_repeats import open_scenarios
    from multicard.results.results import SCENARIOS
    from multicard.results.tables import MEASURES

    scenarios: set[str] = set()
    for scenario in open_scenarios(plan.experiment):
        scenarios.update(plan.group_of(scenario))
    folder = Path(plan.experiment.results) / SCENARIOS
    return [str(folder / scenario / MEASURES) for scenario in plan.scenarios if scenario in scenarios]


def _state_words(plan: "Plan", scenario: str, is_decided: bool) -> str:
    """Return whether a scenario is decided by the repeats of a plan, else how long further ones take.

    The time is that of the last repeats of all configurations, which is known once they ran.
    """
    repeats = plan.experiment.scenarios[scenario].repeats
    planned = counted(repeats.least, "repeat")
    if is_decided:
        return f"{scenario}: decided after {planned}"
    words = f"{scenario}: not decided after {planned}, one more of {repeats.most} at most"
    block_s = _seconds_of_last_block(plan, scenario)
    if block_s is None:
        return words
    remaining_repeats = repeats.most - repeats.least
    remaining_s = block_s * remaining_repeats
    return f"{words}, about {hours_and_minutes(block_s)} ({hours_and_minutes(remaining_s)} for all)"


def _seconds_of_last_block(plan: "Plan", scenario: str) -> float | None:
    """Return how long the runs of the last repeat of a scenario took together; None if no record says so."""
    from multicard.config.read_run import read_run_if_any

    last_repeat = plan.experiment.scenarios[scenario].repeats.least
    folder = Path(plan.experiment.results) / "runs"
    wall_times_s = []
    for run in plan.scenarios[scenario]:
        if run.parameters.repeat == last_repeat:
            record = read_run_if_any(folder / run.id)
            if record is not None and record.wall_time_s is not None:
                wall_times_s.append(record.wall_time_s)
    return sum(wall_times_s) if wall_times_s else None


def least_and_most(plan: "Plan") -> str | None:
    """Return how many runs a plan has at least and at most, and their time; None if no repeats may be added.

    The time is an estimate where the lengths of all runs are known, else the most that the time limit allows.
    """
    from multicard.config.estimate import estimate_cost

    further_runs = plan.further_runs()
    if not further_runs:
        return None
    least_runs = [plan.runs[run] for run in plan.planned()]
    most_runs = [*least_runs, *further_runs]
    counts = f"until decided: {len(least_runs)} to {len(most_runs)} runs"

    limit_min = plan.experiment.time_limit_min
    least_cost = estimate_cost(least_runs, limit_min, plan.machine.gpus)
    most_cost = estimate_cost(most_runs, limit_min, plan.machine.gpus)
    # Costs leave out runs on CPUs.
    are_on_gpus = all(run.parameters.device == "cuda" for run in most_runs)
    if are_on_gpus and not most_cost.unknown:
        return f"{counts}, about {number(least_cost.wall_h)} to {number(most_cost.wall_h)} h"

    least_limit_h = len(least_runs) * limit_min / 60
    most_limit_h = len(most_runs) * limit_min / 60
    return f"{counts}, which the time limit ends within {number(least_limit_h)} to {number(most_limit_h)} h"
