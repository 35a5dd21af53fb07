"""Runs, figures and a report of traces that exist already: `multicard analyze --as-runs`."""

import argparse
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import needs_writing, results_of
from multicard.core.files import atomic_write

if TYPE_CHECKING:
    from multicard.adopt.traced import Traced

CONFIG = Path("adopted.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how the runs are made, and where everything goes."""
    add = parser.add_argument_group("with --as-runs").add_argument
    add("--step-range", metavar="NAME", help="range (NVTX, record_function) that is a step (default: found by itself)")
    add("--results", metavar="FOLDER", help="where everything goes (default: results-adopted, by the configuration)")
    add("--config-out", type=Path, default=CONFIG, metavar="FILE", help="configuration to write (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace a configuration that differs")
    add("--dry-run", action="store_true", help="show what the traces hold; write nothing")


def make_runs(table: Path, arguments: argparse.Namespace) -> None:
    """Make runs of the traces of a table, draw their figures, and print their results."""
    import yaml

    from multicard.adopt.configuration import configuration
    from multicard.adopt.table import read_table
    from multicard.adopt.traced import gather
    from multicard.archive.matrix import Matrix
    from multicard.cli.run import run_and_print
    from multicard.core.errors import UserError
    from multicard.core.text import printable
    from multicard.experiment.load import check

    path: Path = arguments.config_out
    runs = read_table(table)
    config = {"results": arguments.results or results_of(path), **configuration(runs)}
    experiment = check(config, "multicard analyze --as-runs", outside=not arguments.dry_run)
    command = printable(shlex.join(["multicard", "analyze", "--as-runs", str(table)]))
    text = (
        f"# Written by {command}. The runs are in the results, and nothing is launched:\n"
        f"#     multicard run {path}\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)}"
    )
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as name:
        made = Path(name)
        traced, errors = gather(runs, None if arguments.dry_run else made, arguments.step_range)
        if traced:
            _print(traced)
        if errors:
            raise UserError(*errors)
        if arguments.dry_run:
            return
        if needs_writing(path, arguments.overwrite, lambda: path.read_text(encoding="utf-8") == text):
            with atomic_write(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        for run in made.iterdir():
            place = Path(experiment.results, "runs", run.name)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(run, place)  # keeps times, by which Snakemake tells what is out of date
    print(f"configuration: {path}", flush=True)
    run_and_print(Matrix.plan(check(config, str(path))), path)


def _print(traced: "list[Traced]") -> None:
    """Print what each run's traces show."""
    from rich.table import Table

    from multicard.cli._console import console
    from multicard.core.terminal import plain

    table = Table("Run", "Traces", "Ranks", "GPUs", "Steps", "Steps from")
    for each in traced:
        devices = each.run.parameters.get("devices", 1)
        table.add_row(
            plain(each.run.id),
            plain(", ".join(path.name for path in each.run.files)),
            ", ".join(map(str, sorted(each.ranks.values()))),
            f"{each.devices}" if each.devices == devices else f"{each.devices} of {devices}",
            f"{each.count}" if each.steps else "none",
            plain(each.source or "nothing tells them"),
        )
    console().print(table)
    for each in traced:
        for notice in each.notices:
            console().print(plain(f"{each.run.id}: {notice}"))
