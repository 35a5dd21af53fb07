"""Runs, figures and a report of traces that exist already: `multicard analyze --as-runs`."""

import argparse
import filecmp
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.core.errors import UserError
from multicard.core.files import atomic_write

if TYPE_CHECKING:
    from multicard.adopt.traced import Traced

CONFIG, ARCHIVE, RESULTS = Path("adopted.yaml"), Path("adopted.tar.gz"), "results-adopted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of what is there."""
    add = parser.add_argument_group("with --as-runs").add_argument
    add("--overwrite", action="store_true", help=f"replace {CONFIG} and {ARCHIVE} that differ")
    add("--dry-run", action="store_true", help="show what the traces hold; write nothing")


def make_runs(table: Path, overwrite: bool, dry_run: bool) -> None:
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
        traced, errors = gather(runs, None if dry_run else scratch / "made")
        if traced:
            _print(traced)
        if errors:
            raise UserError(*errors)
        if dry_run:
            return
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


def _print(traced: "list[Traced]") -> None:
    """Print what each run's traces show."""
    from rich.table import Table

    from multicard.cli._console import console
    from multicard.core.terminal import plain
    from multicard.core.units import SECONDS, with_unit

    table = Table("Run", "Traces", "Ranks", "GPUs", "Duration", "Steps", "Steps from")
    for each in traced:
        devices = each.run.parameters.get("devices", 1)
        table.add_row(
            plain(each.run.id),
            plain(", ".join(path.name for path, _ in each.run.files)),
            ", ".join(map(str, sorted(each.ranks.values()))),
            f"{each.devices}" if each.devices == devices else f"{each.devices} of {devices}",
            with_unit(max(each.found.span_s.values()), SECONDS),
            f"{each.count}" if each.steps else "none",
            plain(each.found.source or "nothing tells them"),
        )
    console().print(table)
    for each in traced:
        for notice in each.notices:
            console().print(plain(f"{each.run.id}: {notice}"))
