"""Find the best configuration of a scenario with few of its runs, within a budget."""

import argparse
import importlib.metadata
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
    from multicard.config.experiment import Experiment
    from multicard.config.runs import Run
    from multicard.search.core import Search
    from multicard.search.scenario import ScenarioSpace
    from multicard.search.session import SearchLog
    from multicard.search.variation import AutoBatch

GOALS = ("throughput", "iteration_time")
OPTUNA_MAJOR = "5"
# Seconds of each unit of a duration, in the order in which `duration_s` reads the units.
SECONDS_OF = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: what to search, which goal, and for how long."""
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="configuration file")
    add("--scenario", metavar="NAME", help="scenario to search (default: the only one)")
    add("--goal", choices=GOALS, default=GOALS[0], help="what to optimize (default: %(default)s)")
    add("--budget", required=True, metavar="TIME", help="total time of all runs, such as 90min or 2h30m")
    add(
        "--vary", action="append", default=[], metavar="NAME=VALUE,...",
        help="values of a parameter instead of the scenario's; batch-size=auto: find the largest batch that fits, and "
        "the smallest with a throughput within 3%% of the highest",
    )  # fmt: skip
    add("--largest", type=int, metavar="N", help="with --vary NAME=auto: largest batch to try (default: 65536)")
    add_profile(parser, "to run with")
    add("--dry-run", action="store_true", help="print the search space and its first configurations; run nothing")


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as 6h, 90min, 2h30m or 45s; raise `UserError` for any other text.

    >>> duration_s("2h30min"), duration_s("1.5h"), duration_s("1d45s")
    (9000.0, 5400.0, 86445.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}d)?(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text)
    parts = match.groups(default="0") if match else ()
    seconds = sum(size * float(part) for size, part in zip(SECONDS_OF.values(), parts, strict=False))
    if not 0 < seconds < float("inf"):
        raise UserError(f"--budget: found {text!r}, expected a duration such as 6h, 90min, 2h30m or 45s")
    return seconds


def run(arguments: argparse.Namespace) -> None:
    """Search a scenario for its best configuration; exit with 1 if no run completed."""
    from multicard.cli.run import check_start
    from multicard.config.load import check, read_config
    from multicard.search.scenario import ScenarioSpace
    from multicard.search.session import run_search
    from multicard.search.variation import vary_scenario

    budget_s = duration_s(arguments.budget)
    config, source = read_config(arguments.config, arguments.profile)
    experiment = check(config, source)
    name = _chosen_scenario(experiment, arguments.scenario)
    auto = None
    if arguments.vary or arguments.largest is not None:
        vary = [parse_vary(text) for text in arguments.vary]
        variation = vary_scenario(config, experiment, name, vary, arguments.goal, arguments.largest)
        config, auto = variation.config, variation.auto
        experiment = check(config, f"{source} with --vary")
    if auto is None:
        _check_optuna()
    space = ScenarioSpace(experiment, name, arguments.goal)
    if not arguments.dry_run and arguments.profile is None:
        check_start(space.plan)
    search = _begin(space, auto, budget_s, arguments.goal)
    if not search.untried:
        raise UserError(f"{arguments.config}: no configuration of {space.name} is left to try")
    if arguments.dry_run:
        first = [space.describe(key) for key in search.screening if key in search.untried]
        print("starts with:", *(first or ["a random one of the rest"]), sep="\n  ")
        return
    results = space.results / SEARCHES / (f"{name}-{auto.parameter.removeprefix(ARGS_PREFIX)}" if auto else name)
    config_path = arguments.config
    if arguments.vary:
        config_path = results.with_name(f"{results.name}.yaml")
        _write_config(config_path, config)

    def make(runs: "Sequence[Run]") -> None:
        _make(space, runs, config_path, arguments.profile)

    log = run_search(search, space, make, lambda line: print(line, flush=True))
    if search.best is not None or not log.failure:
        _conclude(search, space, log, config_path, results)
    if log.failure:
        raise UserError(log.failure)


def _check_optuna() -> None:
    """Raise `UserError` unless Optuna is there in the major version whose sampler the search calls."""
    try:
        found = importlib.metadata.version("optuna")
    except importlib.metadata.PackageNotFoundError:
        raise UserError('multicard tune needs optuna: pip install "multicard[search]"') from None
    if found.partition(".")[0] != OPTUNA_MAJOR:
        wanted = f'expected optuna {OPTUNA_MAJOR}.x: pip install "multicard[search]"'
        raise UserError(f"multicard tune: found optuna {found}, {wanted}")


def _chosen_scenario(experiment: "Experiment", stated: str | None) -> str:
    """Return the name of the stated scenario, or of the only one; raise `UserError` if there is none such."""
    names = list(experiment.scenarios)
    if stated in names:
        return stated
    if stated or len(names) > 1:
        raise UserError(f"--scenario: found {stated or 'none'}, expected one of {', '.join(names)}")
    return names[0]


def _begin(space: "ScenarioSpace", auto: "AutoBatch | None", budget_s: float, goal: str) -> "Search[str]":
    """Return a new search, and print what is searched and what is left out.

    `auto`: batch sizes to search; None to search the scenario's configurations.
    """
    from multicard.core.text import counted, listed
    from multicard.search.batch import BatchSearch
    from multicard.search.core import Search

    repeats = space.scenario.repeats.least
    search: Search[str]
    if auto is not None:
        search = BatchSearch(space.space, auto.start, space.on_gpus, budget_s, repeats)
        # Only runs show which batch fits into memory, so estimates of memory exclude none.
        left_out = space.cannot_run()
        print(
            f"{space.name}: the largest batch that fits, and the one that pays, from {auto.start} up to {auto.largest}"
        )
        print("a larger batch may need another learning rate: this search considers speed and memory only")
    else:
        search = Search(space.space, space.maximize, repeats, budget_s)
        left_out = space.left_out()
        size = counted(len(search.configurations), "configuration")
        aim = f"{'highest' if space.maximize else 'lowest'} {space.measure}"
        print(f"{space.name}: {size}, {counted(repeats, 'repeat')} of each; goal: {aim}")
        if differences := space.learning_differences:
            print(f"not the same training: configurations differ in {listed(differences)}; the search looks at {goal}")
    search.exclude(left_out)
    for reason, count in Counter(left_out.values()).most_common():
        print(f"left out {count} of {len(search.configurations)}: {reason}")
    return search


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    import yaml

    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _make(space: "ScenarioSpace", runs: "Sequence[Run]", config: Path, profile: Path | None) -> None:
    """Let Snakemake make runs and read their traces; raise `UserError` if a run was not made."""
    from multicard.cli._pipeline import run_pipeline

    if run_pipeline(config, profile, targets=[str(space.target(run)) for run in runs]):
        return
    missing = [run.id for run in runs if not space.target(run).is_file()]
    if missing:
        raise UserError(f"{missing[0]}: failed; see Snakemake's messages above. To continue, run this again")


def _conclude(search: "Search[str]", space: "ScenarioSpace", log: "SearchLog", config: Path, results: Path) -> None:
    """Print the best configuration and the cost of finding it, and draw the search.

    `results`: path of the figure and its table, without the suffixes. Raises `UserError` if no configuration completed
    in all of its runs.
    """
    import pandas as pd
    import yaml

    from multicard.figures.draw import save
    from multicard.figures.search import draw_search
    from multicard.runs.parameters import nested
    from multicard.search.batch import BatchSearch
    from multicard.search.conclusion import batch_lines, best_lines, cost_line, memory_by_configuration

    trials = log.trials
    decision = space.decide(search)
    if decision is None:
        raise UserError(
            f"no configuration of {space.name} completed in all of its runs; see log.txt in "
            f"{space.results}/runs/{trials[-1].run}"
        )
    best = decision.best
    if isinstance(search, BatchSearch):
        # The smallest batch that is about as fast as the fastest. If any batch fits there is one, at least the fastest.
        best = search.pays or best
        print(*batch_lines(search, space.format, memory_by_configuration(space, trials)), sep="\n")
    else:
        print(*best_lines(search, space, decision), sep="\n")
    print(cost_line(search, trials))
    print(f"bottlenecks and other choices: {command_line('recommend', config)}")
    print("to use it, set under fixed:")
    stated = yaml.safe_dump(nested(space.values(best)), sort_keys=False)
    print(*(f"  {line}" for line in stated.splitlines()), sep="\n")
    table = pd.DataFrame([trial.row(space) for trial in trials])
    save(*draw_search(table, space.measure, decision.value, space.scenario.question), results)
    print(f"figure: {results}.png, its numbers: {results}.csv")


COMMAND = Command(MEASURE, "multicard tune config/mine.yaml --budget 2h", add_arguments, run)
