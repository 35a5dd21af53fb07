"""The console command `multicard`.

Commands import what they need when they run, since some libraries take a second to load.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from multicard import __version__
from multicard.core.errors import UserError, reported
from multicard.profilers import PROFILERS

if TYPE_CHECKING:
    from multicard.analysis.evidence import Evidence
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import Run

WIDE = 220  # columns of a table that goes to a file or a pipe


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="multicard", description="Plan and check experiments, read traces.")
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    commands = parser.add_subparsers(required=True)

    runs_command = commands.add_parser(
        "runs", help="list the runs of a configuration, and what cannot run here and why"
    )
    runs_command.set_defaults(function=runs)
    status_command = commands.add_parser(
        "status", help="show how far an experiment is, and check each run's record against its trace"
    )
    status_command.set_defaults(function=status)
    for command in (runs_command, status_command):
        command.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="configuration file")
        command.add_argument(
            "--profile",
            type=Path,
            help="a profile of Snakemake whose cluster to plan for, such as profiles/slurm",
        )

    doctor_command = commands.add_parser("doctor", help="check what this machine has, and say what to do about it")
    doctor_command.add_argument("--config", type=Path, help="configuration file whose runs are to run")
    doctor_command.add_argument("--profile", type=Path, help="profile of Snakemake (profiles/slurm where that exists)")
    doctor_command.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor_command.set_defaults(function=doctor)

    analyze_command = commands.add_parser("analyze", help="say what a trace holds")
    analyze_command.add_argument("path", type=Path, help=".sqlite, .nsys-rep, .json or .json.gz, or a folder of them")
    analyze_command.add_argument("--out", type=Path, help="folder for the tables, as Parquet and CSV")
    analyze_command.add_argument("--json", action="store_true", help="print the tables as JSON")
    analyze_command.add_argument(
        "--only", type=lambda names: names.split(","), metavar="TABLE,…", help="make these tables only: sooner done"
    )
    analyze_command.set_defaults(function=analyze)

    compare_command = commands.add_parser(
        "compare", help="say what got slower or faster from one trace to another, or from one set of results to another"
    )
    what = "a trace as for analyze, a folder of results, or an archive of recorded runs"
    compare_command.add_argument("a", type=Path, help=f"what to compare with: {what}")
    compare_command.add_argument("b", type=Path, help="what to compare: the same")
    compare_command.set_defaults(function=compare)

    archive_command = commands.add_parser(
        "archive", help="pack the runs of an experiment in one file, without names of people, machines and places"
    )
    archive_command.add_argument("out", type=Path, help="file to write: .tar.gz or .zip")
    archive_command.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="configuration file")
    archive_command.set_defaults(function=archive)

    draw_command = commands.add_parser(
        "draw", help="make figures, tables, conclusions and the report of recorded runs, without running anything"
    )
    draw_command.add_argument("source", type=Path, help="an archive, or the results folder of an experiment")
    draw_command.add_argument("--out", type=Path, required=True, help="folder to make, which must be empty if there")
    draw_command.add_argument("--config", type=Path, help="configuration of the experiment, of a results folder")
    draw_command.set_defaults(function=draw)

    figures_command = commands.add_parser("figures", help="say which figures a configuration may ask for")
    figures_command.add_argument("--list", action="store_true", required=True, help="print the catalog of figures")
    figures_command.set_defaults(function=figures)

    claims_command = commands.add_parser("claims", help="hold the papers' claims against what was measured")
    claims_command.add_argument(
        "--claims", type=Path, help="file of the claims and their tests; those of the papers unless stated"
    )
    claims_command.set_defaults(function=claims)
    recommend_command = commands.add_parser(
        "recommend", help="say what holds each configuration back, what to try, and which is best for a goal"
    )
    recommend_command.add_argument(
        "--goal", choices=["throughput", "time_to_accuracy", "energy", "memory"], help="all four unless stated"
    )
    recommend_command.add_argument(
        "--memory-limit-gb", type=float, metavar="X", help="leave out what needs more memory per device, in 10^9 bytes"
    )
    recommend_command.set_defaults(function=recommend)
    for command in (claims_command, recommend_command):
        command.add_argument(
            "results", type=Path, nargs="?", default=Path("results"), help="results folder of an experiment"
        )

    chosen = parser.parse_args(arguments)
    with reported():
        chosen.function(chosen)


def runs(arguments: argparse.Namespace) -> None:
    """Print the run table."""
    from rich.table import Table

    from multicard.archive.recorded import find_recorded, obstacles
    from multicard.core.terminal import plain
    from multicard.experiment.cluster import machine_for
    from multicard.experiment.estimate import gpu_hours
    from multicard.experiment.load import read_experiment
    from multicard.experiment.runs import distinct, expand
    from multicard.experiment.workload import WORKLOADS

    experiment = read_experiment(arguments.config, arguments.profile)
    scenarios = expand(experiment)
    machine = machine_for(experiment.cluster)
    recorded = find_recorded(experiment, distinct(scenarios))
    reasons = obstacles(experiment, distinct(scenarios), machine, recorded)
    columns = ["Scenario", "Run", "Here"]
    memory = {name: _memory_needed(run, machine) for name, run in distinct(scenarios).items()}
    estimated = any(memory.values())
    table = Table(*columns, *(["Memory per GPU"] if estimated else []))
    unique: dict[str, str | None] = {}
    for scenario, expanded in scenarios.items():
        for number, run in enumerate(expanded):
            shared = run.id in unique
            archive = recorded.archives.get(run.id)
            obstacle = unique.setdefault(run.id, reasons[run.id])
            runs_here = "runs" if archive is None else f"recorded in {archive}"
            here = obstacle or (f"{runs_here}, shared with a scenario above" if shared else runs_here)
            workers = run.parameters.loader_workers
            if archive is None and obstacle is None and workers > machine.cpus:
                here += f", but its {workers} loader workers share {machine.cpus} CPUs"
            needed = [memory[run.id]] if estimated else []
            table.add_row(scenario if number == 0 else "", run.id, plain(here), *needed)
        table.add_section()
    console = _console()
    console.print(table)
    lost = sum(obstacle is not None for obstacle in unique.values())
    programs = [n if n in machine.profilers else f"no {n}" for n, profiler in PROFILERS.items() if profiler.program]
    console.print(
        f"{len(unique)} runs, {len(unique) - lost - len(recorded.archives)} can run here"
        f"{f', {len(recorded.archives)} are recorded' if recorded.archives else ''} "
        f"({f'{machine.nodes} nodes with each ' if machine.nodes > 1 else ''}{machine.cpus} CPUs, {machine.gpus} GPUs, "
        f"{', '.join(programs)})",
        highlight=False,
    )
    for name, model in experiment.models.items():
        if model.missing_files():
            console.print(f"fetch the weights of {name} by: {model.download_command}", highlight=False, soft_wrap=True)
    possible = [run for run in distinct(scenarios).values() if run.unsupported_reason(machine.hypothetical()) is None]
    hours, unknown = gpu_hours(possible, experiment.time_limit_min)
    if hours or unknown:
        more = f", and {unknown} runs on data of unknown size" if unknown else ""
        console.print(
            f"about {hours:.3g} GPU hours{more} (assuming of each GPU "
            f"{'; '.join(f'{name}: {work.assumption}' for name, work in WORKLOADS.items())})",
            highlight=False,
        )


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Estimated memory of a run on GPUs, beside what a GPU has; nothing where there is no estimate."""
    needed = run.device_memory_bytes() if run.parameters.device == "cuda" else None
    if needed is None:
        return ""
    from multicard.core.units import BYTES, with_unit

    held = machine.gpu_memory_bytes
    text = f"about {with_unit(needed, BYTES)}"
    if held is None:
        return text
    return f"{text} of {with_unit(held, BYTES)}" + (": unlikely to fit" if needed > held else "")


def status(arguments: argparse.Namespace) -> None:
    """Print outcomes and disagreements; exit with 1 when a run failed or disagrees with its trace."""
    from rich.table import Table

    from multicard.archive.recorded import find_recorded, obstacles
    from multicard.core.terminal import plain
    from multicard.experiment.cluster import machine_for
    from multicard.experiment.load import read_experiment
    from multicard.experiment.runs import distinct, expand

    experiment = read_experiment(arguments.config, arguments.profile)
    unique = distinct(expand(experiment))
    reasons = obstacles(experiment, unique, machine_for(experiment.cluster), find_recorded(experiment, unique))
    outcomes: Counter[str] = Counter()
    table = Table("Run", "Outcome", "Remarks")
    all_sound = True
    for run in unique.values():
        outcome, remarks, sound = _run_status(reasons[run.id], Path(experiment.results) / "runs" / run.id)
        all_sound = all_sound and sound
        outcomes[outcome] += 1
        if remarks:
            table.add_row(run.id, outcome, plain("; ".join(remarks)))
    console = _console()
    if table.row_count:
        console.print(table)
    console.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), highlight=False)
    if not all_sound:
        sys.exit(1)


def _run_status(obstacle: str | None, folder: Path) -> tuple[str, list[str], bool]:
    """Outcome of a run, remarks on it, and whether nothing is wrong; `obstacle`: why it cannot be had here."""
    from multicard.core.files import read_json
    from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN

    if not (folder / RUN).exists():
        return ("cannot run here", [obstacle], True) if obstacle else ("waiting", [], True)
    record = read_json(folder / RUN)
    remarks = [record["reason"]] if record["reason"] else []
    if record["outcome"] != "completed" or not (folder / ACTIVITY / ACTIVITY_INDEX).exists():
        return record["outcome"], remarks, record["outcome"] != "failed"

    from multicard.analysis.consistency import check_run

    faults = check_run(folder).faults()
    missing = read_json(folder / ACTIVITY / ACTIVITY_INDEX)["tables"]["phases"]["absent"]
    if missing:
        remarks.append(f"no trace: {missing}")
    return record["outcome"], remarks + faults, not faults


def doctor(arguments: argparse.Namespace) -> None:
    """Print what this machine has and lacks; exit with 1 when something is wrong."""
    from multicard.doctor.examine import examine, print_checks

    if not print_checks(examine(arguments.config, arguments.profile), arguments.json, _console()):
        sys.exit(1)


def analyze(arguments: argparse.Namespace) -> None:
    """Print what a trace says."""
    from multicard.analyze import analyze

    analyze(arguments.path, arguments.out, arguments.json, arguments.only, _console())


def compare(arguments: argparse.Namespace) -> None:
    """Print what differs between two traces, or two sets of results."""
    from multicard.compare_results import holds_results, print_comparison

    if holds_results(arguments.a) or holds_results(arguments.b):
        print_comparison(arguments.a, arguments.b, _console())
        return

    from multicard.analyze import compare_traces

    compare_traces(arguments.a, arguments.b, _console())


def archive(arguments: argparse.Namespace) -> None:
    """Pack the runs of an experiment, and say which were left out."""
    from multicard.archive.pack import pack
    from multicard.core.terminal import plain
    from multicard.core.units import BYTES, with_unit
    from multicard.experiment.load import read_experiment

    packed = pack(read_experiment(arguments.config), arguments.out)
    console = _console()
    for run in packed.not_whole:
        console.print(plain(f"left out, since it is not whole: {run}"))
    size = with_unit(arguments.out.stat().st_size, BYTES)
    console.print(plain(f"runs: {len(packed.runs)}, {size}: {arguments.out}"))


def draw(arguments: argparse.Namespace) -> None:
    """Draw recorded runs, and say where the report is."""
    from multicard.core.terminal import plain
    from multicard.draw import draw

    drawn = draw(arguments.source, arguments.out, arguments.config)
    _console().print(plain(f"runs: {drawn.runs}, figures: {drawn.figures}, report: {drawn.report}"), soft_wrap=True)


def figures(arguments: argparse.Namespace) -> None:
    """Print the catalog of figures."""
    from rich.table import Table

    from multicard.experiment.figures import FIGURES

    table = Table("Figure", "Asks", "Shows", "Needs", "Paper")
    for name, figure in FIGURES.items():
        table.add_row(name, figure.question, figure.caption, ", ".join(figure.needs), figure.answers or "")
    table.show_lines = True
    _console().print(table, highlight=False)


def claims(arguments: argparse.Namespace) -> None:
    """Print the verdict on each claim, with the numbers."""
    from multicard.analysis.claims import SHIPPED, judge, read_claims
    from multicard.core.terminal import plain

    console = _console()
    judged = judge(read_claims(arguments.claims or SHIPPED), _evidence(arguments.results))
    for each in judged:
        console.print(f"[bold]{each.claim.id}[/bold]: {each.verdict}", highlight=False)
        said = (each.claim.claim, each.finding, each.conditions, each.aside)
        for text in filter(None, said):
            console.print(plain(f"  {text}"), soft_wrap=True)
    counts = Counter(each.verdict for each in judged)
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)


def recommend(arguments: argparse.Namespace) -> None:
    """Print recommendations as Markdown."""
    from multicard.analysis.best import GOALS
    from multicard.analysis.recommend import as_markdown

    limit = arguments.memory_limit_gb
    if limit is not None and not 0 < limit < float("inf"):
        raise UserError(f"--memory-limit-gb: found {limit:g}, expected a number above 0")
    goals = (arguments.goal,) if arguments.goal else GOALS
    print(as_markdown(_evidence(arguments.results), goals, limit), end="")


def _evidence(results: Path) -> "Evidence":
    """All that a results folder measured."""
    from multicard.analysis.evidence import read_evidence

    evidence = read_evidence(results)
    if not evidence.scenarios:
        raise UserError(f"{results}: found no scenarios/*/measures.csv, expected the results folder of an experiment")
    return evidence


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE)
