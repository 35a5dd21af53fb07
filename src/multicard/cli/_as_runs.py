"""Runs, figures and a report of traces that exist already: `multicard analyze --as-runs`."""

import argparse
import shlex
import shutil
import tempfile
from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import atomic_write

CONFIG, RESULTS = Path("adopted.yaml"), "results-adopted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how the runs are made."""
    add = parser.add_argument_group("with --as-runs").add_argument
    add("--step-range", metavar="NAME", help="range (NVTX, record_function) that is a step (default: found by itself)")
    add("--overwrite", action="store_true", help=f"replace an {CONFIG} that differs")


def make_runs(table: Path, overwrite: bool, step_range: str | None) -> None:
    """Make runs of the traces of a table, draw their figures, and print their results."""
    import yaml

    from multicard.adopt.configuration import configuration
    from multicard.adopt.table import read_table
    from multicard.adopt.traced import gather
    from multicard.archive.matrix import Matrix
    from multicard.cli.run import run_and_print
    from multicard.core.text import printable
    from multicard.experiment.load import check

    runs = read_table(table)
    config = {"results": RESULTS, **configuration(runs)}
    experiment = check(config, "multicard analyze --as-runs")
    command = printable(shlex.join(["multicard", "analyze", "--as-runs", str(table)]))
    text = (
        f"# Written by {command}. The runs are in the results, and nothing is launched:\n"
        f"#     multicard run {CONFIG}\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)}"
    )
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as name:
        made = Path(name)
        traced, errors = gather(runs, made, step_range)
        for each in traced:
            steps = f"{each.count} steps by {each.source}" if each.steps else "no steps found"
            print(printable("; ".join([f"{each.run.id}: {steps}", *each.notices])), flush=True)
        if errors:
            raise UserError(*errors)
        if CONFIG.exists() and not overwrite and CONFIG.read_text(encoding="utf-8") != text:
            raise UserError(f"{CONFIG}: exists and differs; --overwrite replaces it")
        with atomic_write(CONFIG) as temporary:
            temporary.write_text(text, encoding="utf-8")
        for run in made.iterdir():
            place = Path(experiment.results, "runs", run.name)
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(run, place)  # keeps times, by which Snakemake tells what is out of date
    print(f"configuration: {CONFIG}", flush=True)
    run_and_print(Matrix.plan(check(config, str(CONFIG))), CONFIG)
