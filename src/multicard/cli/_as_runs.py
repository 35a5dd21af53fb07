"""Runs, figures and a report of traces that exist already: `multicard analyze --as-runs`."""

import argparse
import filecmp
import shlex
import shutil
import tempfile
from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import atomic_write

CONFIG, ARCHIVE, RESULTS = Path("adopted.yaml"), Path("adopted.tar.gz"), "results-adopted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of what is there."""
    parser.add_argument(
        "--overwrite", action="store_true", help=f"with --as-runs: replace {CONFIG} and {ARCHIVE} that differ"
    )


def make_runs(table: Path, overwrite: bool) -> None:
    """Make runs of the traces of a table, draw their figures, and print their results."""
    import yaml

    from multicard.adopt.archive import configuration, gather, write_archive
    from multicard.adopt.table import read_table
    from multicard.archive.matrix import Matrix
    from multicard.cli.run import run_and_print
    from multicard.core.text import printable
    from multicard.experiment.load import check

    places = {"results": RESULTS, "recorded": [str(ARCHIVE)]}
    runs = read_table(table, None)
    # Before much is read.
    check(places | configuration(runs, ["device_time"]), "multicard analyze --as-runs", outside=False)
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        traced, errors = gather(runs, scratch / "made")
        for each in traced:
            steps = f"{each.count} steps by {each.found.source}" if each.steps else "no steps found"
            print(printable("; ".join([f"{each.run.id}: {steps}", *each.notices])), flush=True)
        if errors:
            raise UserError(*errors)
        config = places | write_archive(traced, scratch / "made", scratch / ARCHIVE)
        check(config | {"recorded": []}, "multicard analyze --as-runs")
        command = printable(shlex.join(["multicard", "analyze", "--as-runs", str(table)]))
        (scratch / CONFIG).write_text(
            f"# Written by {command}. The runs are in the archive, and nothing is launched:\n"
            f"#     multicard run {CONFIG}\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)}",
            encoding="utf-8",
        )
        for file in (ARCHIVE, CONFIG):
            if file.exists() and not overwrite and not filecmp.cmp(scratch / file, file, shallow=False):
                raise UserError(f"{file}: exists and holds something else; --overwrite replaces it")
        for file in (ARCHIVE, CONFIG):
            with atomic_write(file) as temporary:
                shutil.copyfile(scratch / file, temporary)
    print(f"runs: {ARCHIVE}\nconfiguration: {CONFIG}", flush=True)
    run_and_print(Matrix.plan(check(config, str(CONFIG))), CONFIG)
