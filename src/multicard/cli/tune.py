"""Find the best configuration of a scenario with few of its runs, within a budget."""

import argparse
import importlib.util
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._batch import batch_lines
from multicard.cli._command import MEASURE, Command, add_profile
from multicard.cli._vary import add_vary, with_values, write_config
from multicard.core.errors import UserError
from multicard.core.layout import SEARCHES

if TYPE_CHECKING:
    from multicard.experiment.runs import Run
    from multicard.search.core import Search
    from multicard.search.scenario import Result, ScenarioSpace

GOALS = ("throughput", "iteration_time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to search, for what, and for how long."""
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="configuration file")
    add("--scenario", metavar="NAME", help="scenario whose values are searched (default: the only one)")
    add("--goal", choices=GOALS, default=GOALS[0], help="what to optimize (default: %(default)s)")
    add("--budget", required=True, metavar="TIME", help="time of all runs together, such as 90min or 2h30m")
    add_vary(parser)
    add_profile(parser, "to run by")
    add("--dry-run", action="store_true", help="print what is searched and where it begins; run nothing")


def duration_s(option: str, text: str) -> float:
    """Read a duration such as 6h, 90min, 2h30m or 45s, in seconds.

    >>> duration_s("--budget", "2h30min"), duration_s("--budget", "1.5h"), duration_s("--budget", "1d45s")
    (9000.0, 5400.0, 86445.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(rf"(?:{number}d)?(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text)
    parts = found.groups(default="0") if found else ()
    seconds = sum(size * float(part) for size, part in zip((86400, 3600, 60, 1), parts, strict=False))
    if not 0 < seconds < float("inf"):
        raise UserError(f"{option}: found {text!r}, expected a duration such as 6h, 90min, 2h30m or 45s")
    return seconds


def run(arguments: argparse.Namespace) -> None:
    """Search a scenario for its best configuration; exit with 1 if no run completed."""
    from multicard.cli.run import check_start
    from multicard.core.text import counted, listed
    from multicard.experiment.load import check, read_config
    from multicard.search.batch import BatchSearch
    from multicard.search.core import Search
    from multicard.search.scenario import ScenarioSpace

    budget_s, auto = duration_s("--budget", arguments.budget), None
    config, source = read_config(arguments.config, arguments.profile)
    experiment = check(config, source)
    names = list(experiment.scenarios)
    if arguments.scenario not in names and (arguments.scenario or len(names) > 1):
        raise UserError(f"--scenario: found {arguments.scenario or 'none'}, expected one of {', '.join(names)}")
    name = arguments.scenario or names[0]
    if arguments.vary or arguments.largest is not None:
        config, auto = with_values(config, experiment, name, arguments)
        experiment = check(config, f"{source} with --vary")
    if not auto and importlib.util.find_spec("sklearn") is None:
        raise UserError('multicard tune needs sklearn: pip install "multicard[search]"')
    space = ScenarioSpace(experiment, name, arguments.goal)
    if not arguments.dry_run and arguments.profile is None:
        check_start(space.matrix)
    if auto:
        search: Search = BatchSearch(space.space, auto.start, space.on_gpus, budget_s, space.scenario.repeats)
        print(f"{name}: the largest batch that fits, and the one that pays, from {auto.start} up to {auto.largest}")
        print("a larger batch may need another learning rate: this is about speed and memory only")
    else:
        search = Search(space.space, space.maximize, space.scenario.repeats, budget_s)
        size, each = counted(len(search.all), "configuration"), counted(search.repeats, "repeat")
        print(f"{name}: {size}, {each} of each; goal: {'highest' if space.maximize else 'lowest'} {space.measure}")
        if unlike := space.unlike_learning:
            differ = f"configurations differ in {listed(unlike)}"
            print(f"not the same training: {differ}; the search looks at {arguments.goal}")
    left_out = space.cannot_run() if auto else space.left_out()  # what fits is to be found, not estimated
    search.exclude(left_out)
    for reason, count in Counter(left_out.values()).most_common():
        print(f"left out {count} of {len(search.all)}: {reason}")
    if not search.left:
        raise UserError(f"{arguments.config}: no configuration of {space.name} is left to try")
    if arguments.dry_run:
        first = [space.named(key) for key in search.screening if key in search.left]
        print("starts with:", *(first or ["a random one of the rest"]), sep="\n  ")
        return
    stem = space.results / SEARCHES / (auto.stem(name) if auto else name)
    if arguments.vary:
        arguments.config = write_config(config, stem)
    trials, failed = _search(search, space, arguments)
    if search.best is not None or not failed:
        _conclude(search, space, trials, arguments.config, stem)
    if failed:
        raise UserError(failed)


def _search(
    search: "Search", space: "ScenarioSpace", arguments: argparse.Namespace
) -> tuple[list[dict[str, Any]], str | None]:
    """Run what the search asks for until it ends; a row for each run, and the failure that ended it, if one did."""
    trials: list[dict[str, Any]] = []
    there = [run for runs in space.repeats.values() for run in runs if space.record(run).is_file()]
    if there:  # made again where its data have changed
        _make(space, there, arguments)
    told, asked = 0, search.ask()
    while asked:
        runs = {each: space.run(*each) for each in asked}
        if missing := [run for run in runs.values() if run not in there]:
            _make(space, missing, arguments)
        for (key, repeat), run in runs.items():
            result = space.result(run)
            if result.outcome in search.fatal:
                folder, why = space.record(run).parent, f": {result.reason}" if result.reason else ""
                what = f"{space.named(key)}: {result.outcome.replace('_', ' ')}{why}"
                return trials, f"{what}; see {folder}/log.txt, and remove that folder to try it again"
            search.tell(key, repeat, result.value, result.cost_s)
            best = None if search.best is None else search.mean(search.best)
            trials.append(
                {"run": run.id, "repeat": repeat, **space.values(key), "outcome": result.outcome}
                | {space.measure: result.value, "best_so_far": best, "cost_s": result.cost_s}
                | {"spent_s": search.spent, "synthetic": result.synthetic, "peak_memory_bytes": result.memory_bytes}
            )
            print(_line(search, space, key, repeat, result), flush=True)
        asked = search.ask()
        for what, why in list(zip(("new configurations", "repeats"), search.ended, strict=False))[told:]:
            print(f"no further {what}: {why}", flush=True)
        told = len(search.ended)
    return trials, None


def _make(space: "ScenarioSpace", runs: "list[Run]", arguments: argparse.Namespace) -> None:
    """Let Snakemake make runs, and read their traces."""
    from multicard.cli._pipeline import run_pipeline

    made = run_pipeline(arguments.config, arguments.profile, targets=[str(space.target(run)) for run in runs])
    if not made and (missing := [run.id for run in runs if not space.target(run).is_file()]):
        raise UserError(f"{missing[0]}: failed; see Snakemake's messages above. To continue, run this again")


def _line(search: "Search", space: "ScenarioSpace", key: str, repeat: int, result: "Result") -> str:
    """What came of a run, and the best so far."""
    found = space.in_words(result.value) if result.value else result.outcome.replace("_", " ")
    which = f"repeat {repeat} of " if repeat > 1 else ""
    line, best = f"tried {which}{space.named(key)}: {found}", search.best
    if best is None:
        return line
    runs, mean = len(search.completed[best]), space.in_words(search.mean(best))
    among = f" of those with {runs} runs" if runs > 1 else ""
    return f"{line}, the best so far{among}" if best == key else f"{line}; best so far{among} {mean}"


def _conclude(search: "Search", space: "ScenarioSpace", trials: list[dict[str, Any]], config: Path, stem: Path) -> None:
    """Print the best configuration and what it took to find, and draw the search."""
    import pandas as pd
    import yaml

    from multicard.core.text import counted
    from multicard.core.units import SECONDS, percent, with_unit
    from multicard.experiment.parameters import nested
    from multicard.figures.draw import save
    from multicard.figures.search import draw_search
    from multicard.search.batch import BatchSearch

    if search.best is None:
        raise UserError(
            f"no configuration of {space.name} completed in all of its runs: log.txt in "
            f"{space.results}/runs/{trials[-1]['run']} says why"
        )
    best, tied, value = space.decide(search)
    if isinstance(search, BatchSearch):
        best = search.pays
        print(*batch_lines(search, space, trials), sep="\n")
    else:
        spread = "" if value.low is None else f"95% CI {space.in_words(value.low)} to {space.in_words(value.high)}, "
        print(f"best: {space.named(best)}: {space.in_words(value.value)} ({spread}n = {value.repeats})")
        for key in tied:
            print(f"not significantly worse: {space.named(key)}: {space.in_words(search.mean(key))}")
        for key, tried in search.tried.items():
            if tried.values and tried.failed:
                print(f"skipped, since a repeat did not complete: {space.named(key)}")
        if value.low is None:
            print(f"no interval: for one, set repeats: 3 or more in scenarios.{space.name}, and a budget for them")
    all_runs = len(search.all) * search.repeats
    share = percent(search.spent / (search.typical_cost * all_runs)) if search.typical_cost else ""
    took = f"{counted(len(trials), 'run')} of {counted(len(search.tried), 'configuration')} in "
    took += with_unit(search.spent, SECONDS)
    rest = "all that there are" if len(trials) == all_runs else f"about {share} of all {all_runs} runs"
    print(took if isinstance(search, BatchSearch) else f"{took}, {rest}")
    print(f"bottlenecks and other choices: multicard recommend {config}")
    print("to use it, set under fixed:")
    stated = yaml.safe_dump(nested(space.values(best)), sort_keys=False)
    print(*(f"  {line}" for line in stated.splitlines()), sep="\n")
    save(*draw_search(pd.DataFrame(trials), space.measure, value, space.scenario.question), stem)
    print(f"figure: {stem}.png, its numbers: {stem}.csv")


COMMAND = Command(30, MEASURE, "multicard tune config/mine.yaml --budget 2h", add_arguments, run)
