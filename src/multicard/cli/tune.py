"""`multicard tune`."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import MEASURE, Command, add_profile, duration_s
from multicard.core.errors import UserError

if TYPE_CHECKING:
    from multicard.experiment.runs import Run
    from multicard.search.core import Search
    from multicard.search.scenario import Result, ScenarioSpace

LARGEST_SEED = 2**32 - 1  # that NumPy's generators take
GOALS = ("throughput", "iteration_time", "energy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to search, for what, and for how long."""
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="configuration file")
    add("--scenario", metavar="NAME", help="scenario whose values are searched (default: the only one)")
    add("--goal", choices=GOALS, default=GOALS[0], help="what to optimize (default: %(default)s)")
    add("--budget", required=True, metavar="TIME", help="time of all runs together, such as 90min or 2h30m")
    add(
        "--parallel", type=int, default=1, metavar="N",
        help="runs that may run at once, as on a cluster (default: %(default)s); more of them find less per run",
    )  # fmt: skip
    add("--seed", type=int, default=0, help="another one begins with other configurations (default: %(default)s)")
    add_profile(parser, "to run by")
    add("--dry-run", action="store_true", help="print what is searched and where it begins; run nothing")


def run(arguments: argparse.Namespace) -> None:
    """Search a scenario for its best configuration; exit with 1 if no run completed."""
    from multicard.cli.run import check_start
    from multicard.core.text import counted, listed
    from multicard.experiment.load import read_experiment
    from multicard.search.core import Search
    from multicard.search.scenario import ScenarioSpace

    budget_s = duration_s("--budget", arguments.budget)
    if arguments.parallel < 1:
        raise UserError(f"--parallel: found {arguments.parallel}, expected a number of runs, at least 1")
    experiment = read_experiment(arguments.config, arguments.profile)
    names = list(experiment.scenarios)
    if arguments.scenario not in names and (arguments.scenario or len(names) > 1):
        raise UserError(f"--scenario: found {arguments.scenario or 'none'}, expected one of {', '.join(names)}")
    space = ScenarioSpace(experiment, arguments.scenario or names[0], arguments.goal)
    if not arguments.dry_run and arguments.profile is None:
        check_start(space.matrix)
    if not 0 <= arguments.seed <= LARGEST_SEED:
        raise UserError(f"--seed: found {arguments.seed}, expected a number from 0 to {LARGEST_SEED}")
    search = Search(space.space, space.maximize, space.possible_repeats, budget_s, arguments.seed)
    size, each = counted(len(search.all), "configuration"), counted(search.repeats, "repeat")
    print(f"{space.name}: {size}, {each} of each; goal: {'highest' if space.maximize else 'lowest'} {space.measure}")
    if unlike := space.unlike_learning:
        print(f"not the same training: configurations differ in {listed(unlike)}; the search looks at {arguments.goal}")
    _leave_out(search, space.left_out())
    if not search.left:
        raise UserError(f"{arguments.config}: no configuration of {space.name} is left to try")
    if arguments.dry_run:
        first = [space.named(key) for key in search.screening if key in search.left]
        print("begins with:", *(first or ["any of those left, by chance"]), sep="\n  ")
        return
    _conclude(search, space, _search(search, space, arguments), arguments.config)


def _search(search: "Search", space: "ScenarioSpace", arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what the search asks for until it ends; a row for each run."""
    from multicard.core.text import listed

    trials, told, machines = [], 0, []
    there = [run for runs in space.repeats.values() for run in runs if space.record(run).is_file()]
    if there:  # made again where its data have changed
        _make(space, there, arguments)
    while asked := search.ask(arguments.parallel):
        runs = {each: space.run(*each) for each in asked}
        if missing := [run for run in runs.values() if run not in there]:
            _make(space, missing, arguments)
        for (key, repeat), run in runs.items():
            result = space.result(run)
            search.tell(key, repeat, result.value, result.cost_s)
            trials.append(_row(search, space, key, repeat, result))
            print(_line(search, space, key, repeat, result), flush=True)
            if result.machine and result.machine not in machines:
                machines.append(result.machine)
                if len(machines) > 1:
                    print(f"in doubt: runs of {listed(machines)} are compared as if of one machine", flush=True)
        told = _say_ended(search, told)
    _say_ended(search, told)
    return trials


def _make(space: "ScenarioSpace", runs: "list[Run]", arguments: argparse.Namespace) -> None:
    """Let Snakemake make runs, and read their traces."""
    from multicard.cli._pipeline import run_pipeline

    made = run_pipeline(arguments.config, arguments.profile, targets=[str(space.target(run)) for run in runs])
    if not made and (missing := [run.id for run in runs if not space.target(run).is_file()]):
        raise UserError(f"{missing[0]}: not made; Snakemake's messages above say why. To go on, run this again")


def _leave_out(search: "Search", reasons: dict[str, str]) -> None:
    """Exclude configurations, with a line for each reason."""
    search.exclude(reasons)
    for reason, count in Counter(reasons.values()).most_common():
        print(f"left out {count} of {len(search.all)}: {reason}", flush=True)


def _say_ended(search: "Search", told: int) -> int:
    for what, why in list(zip(("new configurations", "repeats"), search.ended, strict=False))[told:]:
        print(f"no further {what}: {why}", flush=True)
    return len(search.ended)


def _line(search: "Search", space: "ScenarioSpace", key: str, repeat: int, result: "Result") -> str:
    """What came of a run, and the best so far."""
    found = space.in_words(result.value) if result.value else result.outcome.replace("_", " ")
    found += f" (disturbed: {result.disturbance})" if result.disturbance else ""
    which = f"repeat {repeat} of " if repeat > 1 else ""
    line, best = f"tried {which}{space.named(key)}: {found}", search.best
    if best is None:
        return line
    runs = len(search.completed[best])
    among = f" of those with {runs} runs" if runs > 1 else ""
    mean = space.in_words(search.mean(best))
    if best == key:
        return f"{line}, the best so far{among}" + (f": {mean} in the mean" if runs > 1 else "")
    return f"{line}; best so far{among} {mean}"


def _row(search: "Search", space: "ScenarioSpace", key: str, repeat: int, result: "Result") -> dict[str, Any]:
    return {
        "run": space.run(key, repeat).id,
        "repeat": repeat,
        **space.values(key),
        "outcome": result.outcome,
        space.measure: result.value,
        "best_so_far": None if search.best is None else search.mean(search.best),
        "cost_s": result.cost_s,
        "spent_s": search.spent,
        "synthetic": result.synthetic,
    }


def _conclude(search: "Search", space: "ScenarioSpace", trials: list[dict[str, Any]], config: Path) -> None:
    """Print the best configuration and what it took to find, and draw the search."""
    import pandas as pd
    import yaml

    from multicard.core.layout import SEARCHES
    from multicard.core.text import counted
    from multicard.figures.draw import save
    from multicard.figures.search import draw_search

    if search.best is None:
        raise UserError(
            f"no configuration of {space.name} completed in all of its runs: log.txt in "
            f"{space.results}/runs/{trials[-1]['run']} says why"
        )
    best, tied, value = space.decide(search)
    spread = "" if value.low is None else f"95% CI {space.in_words(value.low)} to {space.in_words(value.high)}, "
    print(f"best: {space.named(best)}: {space.in_words(value.value)} ({spread}n = {value.repeats})")
    for key in tied:
        print(f"not distinguished from it: {space.named(key)}: {space.in_words(search.mean(key))}")
    for key, tried in search.tried.items():
        if tried.values and tried.failed:
            print(f"not counted, since a repeat did not complete: {space.named(key)}")
    if value.low is None:
        print(f"without an interval: repeats: 3 or more in scenarios.{space.name}, and a budget for them, give one")
    print(_effort(search, len(trials)))
    searched = {trial["run"] for trial in trials}
    others = [run for runs in space.repeats.values() for run in runs if run.id not in searched]
    if finished := sum(space.target(run).is_file() for run in others):
        print(f"not in this search: {counted(finished, 'finished run')} of {space.name} that it did not ask for")
    print(f"bottlenecks and trade-offs of these runs: multicard recommend {config}")
    print("to use it, state under fixed:")
    print(*(f"  {line}" for line in yaml.safe_dump(space.stated(best), sort_keys=False).splitlines()), sep="\n")
    stem = space.results / SEARCHES / space.name
    save(*draw_search(pd.DataFrame(trials), space.measure, value, space.scenario.question), stem)
    print(f"figure: {stem}.png, its numbers: {stem}.csv")


def _effort(search: "Search", runs: int) -> str:
    """What so many runs took, and the share of all in that; of all of them there is no share to guess."""
    from multicard.core.text import counted
    from multicard.core.units import SECONDS, percent, with_unit

    took = f"{counted(runs, 'run')} of {counted(len(search.tried), 'configuration')} in "
    took += with_unit(search.spent, SECONDS)
    all_runs = len(search.all) * search.repeats
    if runs == all_runs:
        return f"{took}, all that there are"
    share = percent(search.spent / (search.typical_cost * all_runs))
    return f"{took}, about {share} of all {all_runs} runs; what is not said here was not tried"


COMMAND = Command(
    "tune",
    30,
    "find the best configuration of a scenario with few of its runs, within a budget",
    add_arguments,
    run,
    MEASURE,
    "multicard tune config/mine.yaml --budget 2h",
)
