"""Report where the time of a trace goes, or make a report of many traces."""

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import (
    CANNOT_TELL_CODE,
    OVERWRITE_REMEDY,
    UNDERSTAND,
    Command,
    refuse_different,
    refuse_existing,
    refuse_foreign_results,
    refuse_unwritable,
)
from multicard.cli._console import NAME_WIDTH, rows_table, say, text_table
from multicard.core.errors import UserError
from multicard.core.files import atomic_write, unwritable
from multicard.core.text import counted, printable

if TYPE_CHECKING:
    from multicard.api.traces import TraceAnalysis

LONGEST = 10  # number of rows of a table on the terminal
# Configuration file and folder of results that --as-runs writes.
CONFIG = Path("adopted.yaml")
RESULTS = "results-adopted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the trace, and what to make of it."""
    add = parser.add_argument
    add(
        "path", type=Path, nargs="+",
        help="trace (.sqlite, .nsys-rep, .qdrep, .json or .json.gz), or several or a folder of them, one per node or "
        "rank of the same job; with --as-runs, a table of traces",
    )  # fmt: skip
    add("--out", type=Path, metavar="FOLDER", help="folder for the tables, as Parquet and CSV")
    add("--json", action="store_true", help="print the tables as JSON")
    add("--verbose", action="store_true", help="print all tables, per process and device")
    add(
        "--only", type=lambda names: names.split(","), metavar="TABLE,...", help="compute only these tables (faster)"
    )  # fmt: skip
    add("--perfetto", type=Path, metavar="FILE", help="write the events for ui.perfetto.dev: .json or .json.gz")
    add("--overwrite", action="store_true", help=f"replace files that exist; with --as-runs, a different {CONFIG}")
    add("--large", action="store_true", help="also read gzipped files that unpack to very many times their size")
    add(
        "--as-runs", action="store_true",
        help="turn traces into runs, figures and a report; the path is a CSV file with a row per trace and the columns "
        "trace, devices, and your own parameters",
    )  # fmt: skip
    add = parser.add_argument_group("with --as-runs").add_argument
    add("--step-range", metavar="NAME", help="range (NVTX, record_function) around a step (default: detected)")


def run(arguments: argparse.Namespace) -> None:
    """Print a summary of a trace, and write its tables and events if asked to; with --as-runs, make runs of traces.

    Exit with `CANNOT_TELL_CODE` if the trace does not tell where the time goes.
    """
    if arguments.as_runs:
        if len(arguments.path) > 1:
            raise UserError(f"--as-runs: found {len(arguments.path)} paths, expected one table of traces")
        _make_runs(arguments.path[0], arguments.overwrite, arguments.step_range, arguments.large)
        return
    from multicard import read_trace

    out, events = arguments.out, arguments.perfetto
    if out is not None:
        _check_folder(out, arguments.only, arguments.overwrite)
    if events is not None:
        refuse_unwritable("--perfetto", events)
        if not arguments.overwrite:
            refuse_existing("--perfetto", events, remedy=OVERWRITE_REMEDY)
    # Tables are computed from everything that was recorded. Without tables, the answer is about the steps.
    tables = arguments.verbose or arguments.only or arguments.json or out is not None
    trace = read_trace(
        arguments.path,
        tables=arguments.only,
        scope="capture" if tables else "steps",
        find_steps=not arguments.only,
        large=arguments.large,
    )
    is_known = True
    remarks = [*trace.warnings, *trace.notices]
    if arguments.json:
        rows = {name: trace.rows(name) for name in trace}
        print(json.dumps({"tables": rows, "absent": dict(trace.absent)}, indent=2))
    elif arguments.verbose or arguments.only:
        _print_tables(trace)
    else:
        # This prints the warnings, before the answer.
        is_known = _print_answer(trace)
        remarks = list(trace.notices)
    if out is not None:
        written = trace.save(out)
        figure = " and timeline.png" if written and written[-1].suffix == ".png" else ""
        remarks.append(f"tables{figure}: {out}")
    if events is not None:
        trace.write_perfetto(events)
        remarks.append(f"events for ui.perfetto.dev: {events}")
    say(*remarks, stderr=arguments.json)  # with --json, standard output has only JSON
    if not is_known:
        sys.exit(CANNOT_TELL_CODE)


def _check_folder(out: Path, tables: list[str] | None, overwrite: bool) -> None:
    """Raise `UserError` if tables cannot be written to a folder, or if files there would be replaced unasked.

    `tables`: names of the tables that are computed; None for all.
    """
    from multicard.api.traces import table_files
    from multicard.trace.tables import ACTIVITIES

    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file, expected a folder")
    if reason := unwritable(out):
        raise UserError(f"--out: cannot write to {out}: {reason}")
    if not overwrite:
        refuse_existing("--out", *table_files(out, tables or ACTIVITIES), remedy=OVERWRITE_REMEDY)


def _print_answer(trace: "TraceAnalysis") -> bool:
    """Print where the time of a trace goes; return False if the trace does not tell."""
    answer = trace.answer()
    say(*answer.warnings, answer.sentence)
    if answer.parts:
        part_headings = ("Part", "Time", "Share", "In calls of")
        say(text_table("Where the time of a GPU goes", part_headings, answer.parts))
    for cause in answer.causes:
        say(f"cause: {cause.cause}", f"  try: {cause.remedy}")
    if answer.kernels:
        kernel_headings = ("Time", "Share of kernels", "Calls", "Class", "Kernel")
        say(text_table(f"Longest kernels of a GPU{answer.over}", kernel_headings, answer.kernels, NAME_WIDTH))
    say(*answer.lines, "all tables: --verbose, --json, or as files --out FOLDER")
    return answer.is_known


def _print_tables(trace: "TraceAnalysis") -> None:
    from multicard.trace.summary import SUMMARY
    from multicard.trace.tables import ACTIVITIES

    for name in SUMMARY:
        if name in trace.absent:
            say(f"{name}: cannot tell: {trace.absent[name]}", "")
        elif name in trace:
            rows = trace.summary(name)
            more = f", first {LONGEST} of {len(rows)}" if len(rows) > LONGEST else ""
            description = ACTIVITIES[name].description
            say(rows_table(rows, f"{name}{more}", description, LONGEST) if rows else f"{name}: none", "")


def _make_runs(table: Path, overwrite: bool, step_range: str | None, large: bool) -> None:
    """Make runs from the traces in a table, write their configuration, draw their figures, and print their results."""
    import yaml

    from multicard.adopt.configuration import configuration
    from multicard.adopt.table import read_table
    from multicard.adopt.traced import gather
    from multicard.cli.run import run_and_print
    from multicard.config.load import check
    from multicard.config.plan import Plan

    runs = read_table(table)
    config = {"results": RESULTS, **configuration(runs)}
    experiment = check(config, "multicard analyze --as-runs")
    if not CONFIG.exists():
        refuse_foreign_results(Path(RESULTS), "rename it, or work in another folder")
    command = printable(shlex.join(["multicard", "analyze", "--as-runs", str(table)]))
    text = (
        f"# Written by {command}. The runs are in the results, and nothing is launched:\n"
        f"#     multicard run {CONFIG}\n{yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)}"
    )
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        traced_runs, errors = gather(runs, scratch, step_range, large)
        for traced in traced_runs:
            steps = f"{counted(traced.count, 'step')} by {traced.source}" if traced.steps else "no steps found"
            print(printable("; ".join([f"{traced.run.id}: {steps}", *traced.notices])), flush=True)
        if errors:
            raise UserError(*errors)
        if not overwrite:
            refuse_different(CONFIG, text, OVERWRITE_REMEDY)
        with atomic_write(CONFIG) as temporary:
            temporary.write_text(text, encoding="utf-8")
        for run in scratch.iterdir():
            target = Path(experiment.results, "runs", run.name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(run, target)  # keeps the files' times, which tell Snakemake what is out of date
    print(f"configuration: {CONFIG}", flush=True)
    run_and_print(Plan.make(check(config, str(CONFIG))), CONFIG)


COMMAND = Command(UNDERSTAND, "multicard analyze report.nsys-rep", add_arguments, run)
