"""Find the best configuration of a scenario with few of its runs, within a budget."""

import argparse
import importlib.util
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import MEASURE, Command, add_profile
from multicard.cli._next_step import command_line
from multicard.cli.scale import parse_vary
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.layout import SEARCHES
from multicard.core.units import ARGS_PREFIX

if TYPE_CHECKING:
    from multicard.experiment.config import Experiment
    from multicard.experiment.runs import Run
    from multicard.search.core import Search
    from multicard.search.scenario import Result, ScenarioSpace

GOALS = ("throughput", "iteration_time")
AUTO, BATCH_SIZE = "auto", "batch_size"
LARGEST = 65_536
WORDS = {"true": True, "false": False}  # as a configuration states them
OF_ONE_BATCH = ("samples_per_step", "samples_per_device")  # parameters that are right for one batch size only


@dataclass(frozen=True)
class Auto:
    """The parameter whose values are batch sizes to choose from, and the one to begin with."""

    parameter: str
    start: int
    largest: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to search, for what, and for how long."""
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="configuration file")
    add("--scenario", metavar="NAME", help="scenario whose values are searched (default: the only one)")
    add("--goal", choices=GOALS, default=GOALS[0], help="what to optimize (default: %(default)s)")
    add("--budget", required=True, metavar="TIME", help="time of all runs together, such as 90min or 2h30m")
    add(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help=f"other values of a parameter than the scenario's; batch-size={AUTO}: find the largest that fits, and "
        "the smallest that ran within 3%% of the throughput of the fastest",
    )  # fmt: skip
    add("--largest", type=int, metavar="N", help=f"with --vary NAME={AUTO}: largest batch to try (default: {LARGEST})")
    add_profile(parser, "to run by")
    add("--dry-run", action="store_true", help="print what is searched and where it begins; run nothing")


def duration_s(text: str) -> float:
    """Read a duration such as 6h, 90min, 2h30m or 45s, in seconds.

    >>> duration_s("2h30min"), duration_s("1.5h"), duration_s("1d45s")
    (9000.0, 5400.0, 86445.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(rf"(?:{number}d)?(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text)
    parts = found.groups(default="0") if found else ()
    seconds = sum(size * float(part) for size, part in zip((86400, 3600, 60, 1), parts, strict=False))
    if not 0 < seconds < float("inf"):
        raise UserError(f"--budget: found {text!r}, expected a duration such as 6h, 90min, 2h30m or 45s")
    return seconds


def run(arguments: argparse.Namespace) -> None:
    """Search a scenario for its best configuration; exit with 1 if no run completed."""
    import yaml

    from multicard.cli.run import check_start
    from multicard.core.text import counted, listed
    from multicard.experiment.load import check, read_config
    from multicard.search.batch import BatchSearch
    from multicard.search.core import Search
    from multicard.search.scenario import ScenarioSpace

    budget_s, auto = duration_s(arguments.budget), None
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
    stem = space.results / SEARCHES / (f"{name}-{auto.parameter.removeprefix(ARGS_PREFIX)}" if auto else name)
    if arguments.vary:
        arguments.config = stem.with_name(f"{stem.name}.yaml")
        with atomic_write(arguments.config) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    trials, failed = _search(search, space, arguments)
    if search.best is not None or not failed:
        _conclude(search, space, trials, arguments.config, stem)
    if failed:
        raise UserError(failed)


def with_values(
    config: dict[str, Any], experiment: "Experiment", name: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], Auto | None]:
    """A configuration with that scenario alone and the values of `--vary`, and what of it is `auto`.

    Raises `UserError` if the options do not fit together, or the scenario's batch size cannot be chosen.
    """
    from multicard.experiment.figures import FIGURES
    from multicard.experiment.workload import WORKLOADS
    from multicard.runs.parameters import ARGS, flat, nested
    from multicard.search.batch import MOST_REPEATS, sizes

    scenario, fields = config["scenarios"][name], WORKLOADS[experiment.workload(name)].parameters.model_fields
    values: dict[str, list[Any]] = {}
    for parameter, listed in map(parse_vary, arguments.vary):
        own = ARGS in fields and parameter not in fields
        key = f"{ARGS_PREFIX}{parameter}" if own else parameter
        if key in values:
            raise UserError(f"--vary: names {parameter} twice, expected --vary NAME=VALUE,... once for each")
        values[key] = listed if own else [WORDS.get(str(value), value) for value in listed]
    found = [key for key in values if AUTO in values[key] and (key == BATCH_SIZE or key.startswith(ARGS_PREFIX))]
    auto, repeats = None, scenario.get("repeats", 1)
    if found:
        if arguments.goal != "throughput":
            raise UserError(f"--goal: found {arguments.goal}, expected throughput with --vary NAME={AUTO}")
        if len(found) > 1 or values[found[0]] != [AUTO]:
            raise UserError(f"--vary: {AUTO} is to be the only value, and of one parameter")
        auto = _auto(experiment, name, found[0], LARGEST if arguments.largest is None else arguments.largest)
        values[auto.parameter], repeats = sizes(auto.start, auto.largest), max(repeats, MOST_REPEATS)
    elif arguments.largest is not None:
        raise UserError(f"--largest: expected with --vary NAME={AUTO}")
    fixed = {key: value for key, value in flat(scenario.get("fixed") or {}).items() if key not in values}
    vary = flat(scenario.get("vary") or {}) | values
    needs = {figure: FIGURES[figure].axis for figure in scenario["figures"]}
    figures = [figure for figure, axis in needs.items() if not axis or len(vary.get(axis, [])) > 1]
    if auto and (others := [key for key, listed in vary.items() if len(listed) > 1 and key != auto.parameter]):
        option = f"--vary {others[0].removeprefix(ARGS_PREFIX)}={vary[others[0]][0]}"
        raise UserError(f"scenarios.{name}: varies {others[0]} too; choose one value, such as {option}")
    changed = {"fixed": nested(fixed), "vary": nested(vary), "repeats": repeats}
    return config | {"scenarios": {name: scenario | changed | {"figures": figures or ["step_breakdown"]}}}, auto


def _auto(experiment: "Experiment", name: str, parameter: str, largest: int) -> Auto:
    """Where the choice of a batch size begins: at the scenario's own."""
    from multicard.experiment.runs import expand_scenario
    from multicard.runs.parameters import flat

    stated = flat(expand_scenario(experiment, name)[0].parameters.model_dump())
    start = stated.get(parameter)
    if type(start) is not int or start < 1:
        raise UserError(f"--vary {AUTO}: {parameter} of {name} is {start!r}, expected a batch size to begin with")
    if largest < 1:
        raise UserError(f"--largest: found {largest}, expected 1 or more")
    if counts := next((key for key in OF_ONE_BATCH if stated.get(key) is not None), None):
        raise UserError(
            f"scenarios.{name}: {counts} is right for one batch size only; leave it out: PyTorch's loader tells the "
            "samples, or multicard.marks.step(samples=...) in the script"
        )
    return Auto(parameter, min(start, largest), largest)


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
    from multicard.figures.draw import save
    from multicard.figures.search import draw_search
    from multicard.runs.parameters import nested
    from multicard.search.batch import BatchSearch

    if search.best is None:
        raise UserError(
            f"no configuration of {space.name} completed in all of its runs: log.txt in "
            f"{space.results}/runs/{trials[-1]['run']} says why"
        )
    best, tied, value = space.decide(search)
    if isinstance(search, BatchSearch):
        best = search.pays
        used = {row["run"]: row["peak_memory_bytes"] or 0 for row in trials}
        memory = {key: max(used.get(run.id, 0) for run in runs) for key, runs in space.repeats.items()}
        print(*search.conclusion(space.in_words, memory), sep="\n")
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
    print(f"bottlenecks and other choices: {command_line('recommend', config)}")
    print("to use it, set under fixed:")
    stated = yaml.safe_dump(nested(space.values(best)), sort_keys=False)
    print(*(f"  {line}" for line in stated.splitlines()), sep="\n")
    save(*draw_search(pd.DataFrame(trials), space.measure, value, space.scenario.question), stem)
    print(f"figure: {stem}.png, its numbers: {stem}.csv")


COMMAND = Command(MEASURE, "multicard tune config/mine.yaml --budget 2h", add_arguments, run)
