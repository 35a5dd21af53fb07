"""`multicard analyze`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._as_runs import add_arguments as add_arguments_of_runs
from multicard.cli._as_runs import make_runs
from multicard.cli._command import UNDERSTAND, Command, refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from multicard.api.traces import TraceAnalysis

LONGEST = 10  # rows of a table on the terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the trace, and what to make of it."""
    add = parser.add_argument
    add(
        "path", type=Path,
        help="trace (.sqlite, .nsys-rep, .json or .json.gz), or a folder of them; with --as-runs a table of traces",
    )  # fmt: skip
    add("--out", type=Path, metavar="FOLDER", help="folder for the tables, as Parquet and CSV")
    add("--json", action="store_true", help="print the tables as JSON")
    add("--verbose", action="store_true", help="print all tables, per process and device")
    add(
        "--only", type=lambda names: names.split(","), metavar="TABLE,...", help="compute only these tables (faster)"
    )  # fmt: skip
    add("--perfetto", type=Path, metavar="FILE", help="write the events for ui.perfetto.dev: .json or .json.gz")
    add(
        "--as-runs", action="store_true",
        help="make runs, figures and a report of traces: the path is a CSV with a row per trace, whose columns are "
        "trace, devices and parameters of your own",
    )  # fmt: skip
    add_arguments_of_runs(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print a summary of a trace; write its tables and events where that is asked for. Or make runs of traces."""
    if arguments.as_runs:
        make_runs(arguments.path, arguments.overwrite, arguments.step_range)
        return
    from rich.console import Console

    from multicard import read_trace
    from multicard.cli._console import console
    from multicard.core.errors import UserError
    from multicard.core.files import unwritable
    from multicard.core.terminal import plain

    out, events = arguments.out, arguments.perfetto
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UserError(f"--out: {out} is a file, expected a folder")
        if reason := unwritable(out):
            raise UserError(f"--out: cannot write to {out}: {reason}")
    if events is not None:
        refuse_unwritable("--perfetto", events)
    # Tables are of everything recorded, the answer is about the steps.
    tables = arguments.verbose or arguments.only or arguments.json or out is not None
    trace = read_trace(
        arguments.path, tables=arguments.only, scope="capture" if tables else "steps", find_steps=not arguments.only
    )
    terminal = console()
    if arguments.json:
        tables = {name: trace.rows(name) for name in trace}
        print(json.dumps({"tables": tables, "absent": dict(trace.absent)}, indent=2))
    elif arguments.verbose or arguments.only:
        _print_tables(trace, terminal)
    else:
        _print_answer(trace, terminal)
    notices = Console(stderr=True) if arguments.json else terminal  # standard output is JSON alone then
    for notice in trace.notices:
        notices.print(plain(notice), soft_wrap=True)
    if out is not None:
        written = trace.save(out)
        figure = " and timeline.png" if written and written[-1].suffix == ".png" else ""
        notices.print(plain(f"tables{figure}: {out}"), soft_wrap=True)
    if events is not None:
        trace.write_perfetto(events)
        notices.print(plain(f"events for ui.perfetto.dev: {events}"), soft_wrap=True)


def _print_answer(trace: "TraceAnalysis", terminal: "Console") -> None:
    from multicard.cli._console import NAME_WIDTH, text_table
    from multicard.core.terminal import plain

    found = trace.answer()
    terminal.print(plain(found.sentence), soft_wrap=True)
    if found.parts:
        terminal.print(text_table("Where the time of a GPU goes", ("Part", "Time", "Share"), found.parts))
    if found.kernels:
        headings = ("Time", "Share of kernels", "Calls", "Class", "Kernel")
        terminal.print(text_table(f"Longest kernels of a GPU{found.over}", headings, found.kernels, NAME_WIDTH))
    for line in found.lines:
        terminal.print(plain(line), soft_wrap=True)
    terminal.print("all tables: --verbose, --json, or as files --out FOLDER", highlight=False)


def _print_tables(trace: "TraceAnalysis", terminal: "Console") -> None:
    from multicard.cli._console import rows_table
    from multicard.core.terminal import plain
    from multicard.trace.summary import SUMMARY
    from multicard.trace.tables import ACTIVITIES

    for name in SUMMARY:
        if name in trace.absent:
            terminal.print(plain(f"{name}: cannot tell: {trace.absent[name]}"), "\n")
        elif name in trace:
            rows = trace.summary(name)
            if not rows:
                terminal.print(plain(f"{name}: none"), "\n")
                continue
            more = f", first {LONGEST} of {len(rows)}" if len(rows) > LONGEST else ""
            terminal.print(rows_table(rows, plain(f"{name}{more}"), ACTIVITIES[name].description, LONGEST), "")


COMMAND = Command(
    "analyze",
    80,
    "say where the time of a trace goes, or make a report of many traces",
    add_arguments,
    run,
    UNDERSTAND,
    "multicard analyze report.nsys-rep",
)
