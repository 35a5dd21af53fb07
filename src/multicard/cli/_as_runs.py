"""Runs, figures and a report of traces that exist already: `multicard analyze --as-runs`."""

import argparse
import filecmp
import shlex
import shutil
import tempfile
from functools import partial
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
    add(
        "--config-out", type=Path, default=CONFIG, metavar="FILE",
        help="configuration to write, an archive of the runs beside it (default: %(default)s)",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="replace a configuration and an archive that differ")
    add("--dry-run", action="store_true", help="show what the traces hold; write nothing")


def make_runs(table: Path, arguments: argparse.Namespace) -> None:
    """Make runs of the traces of a table, draw their figures, and print their results."""
    import yaml

    from multicard.adopt.archive import configuration, gather, write_archive
    from multicard.adopt.table import read_table
    from multicard.archive.matrix import Matrix
    from multicard.cli.run import run_and_print
    from multicard.core.errors import UserError
    from multicard.core.text import printable
    from multicard.experiment.load import check

    path: Path = arguments.config_out
    archive = path.with_suffix(".tar.gz")
    places = {"results": arguments.results or results_of(path), "recorded": [str(archive)]}
    runs = read_table(table, arguments.step_range)
    # Before much is read.
    check(places | configuration(runs, ["device_time"]), "multicard analyze --as-runs", outside=False)
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        traced, errors = gather(runs, None if arguments.dry_run else scratch / "made")
        if traced:
            _print(traced)
        if errors:
            raise UserError(*errors)
        if arguments.dry_run:
            return
        config = places | write_archive(traced, scratch / "made", scratch / archive.name)
        check(config | {"recorded": []}, "multicard analyze --as-runs")
        command = printable(shlex.join(["multicard", "analyze", "--as-runs", str(table)]))
        (scratch / path.name).write_text(
            f"# Written by {command}. The runs are in the archive, and nothing is launched:\n"
            f"#     multicard run {path}\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)}",
            encoding="utf-8",
        )
        _put({scratch / each.name: each for each in (archive, path)}, arguments.overwrite)
    print(f"runs: {archive}\nconfiguration: {path}", flush=True)
    run_and_print(Matrix.plan(check(config, str(path))), path)


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


def _put(files: dict[Path, Path], overwrite: bool) -> None:
    """Copy files to their places, unless something else is there."""
    to_write = {
        made: file
        for made, file in files.items()
        if needs_writing(file, overwrite, partial(filecmp.cmp, made, file, shallow=False))
    }
    for made, file in to_write.items():
        with atomic_write(file) as temporary:
            shutil.copyfile(made, temporary)
