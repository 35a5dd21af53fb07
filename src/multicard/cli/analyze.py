"""Say where the time of a trace goes, or make a report of many traces."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._as_runs import add_arguments as add_arguments_of_runs
from multicard.cli._as_runs import make_runs
from multicard.cli._command import UNDERSTAND, Command, refuse_unwritable
from multicard.cli._console import NAME_WIDTH, rows_table, say, text_table

if TYPE_CHECKING:
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
    from multicard import read_trace
    from multicard.core.errors import UserError
    from multicard.core.files import unwritable

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
    if arguments.json:
        tables = {name: trace.rows(name) for name in trace}
        print(json.dumps({"tables": tables, "absent": dict(trace.absent)}, indent=2))
    elif arguments.verbose or arguments.only:
        _print_tables(trace)
    else:
        _print_answer(trace)
    said = list(trace.notices)
    if out is not None:
        written = trace.save(out)
        figure = " and timeline.png" if written and written[-1].suffix == ".png" else ""
        said.append(f"tables{figure}: {out}")
    if events is not None:
        trace.write_perfetto(events)
        said.append(f"events for ui.perfetto.dev: {events}")
    say(*said, stderr=arguments.json)  # standard output is JSON alone then


def _print_answer(trace: "TraceAnalysis") -> None:
    found = trace.answer()
    say(found.sentence)
    if found.parts:
        say(text_table("Where the time of a GPU goes", ("Part", "Time", "Share"), found.parts))
    if found.kernels:
        headings = ("Time", "Share of kernels", "Calls", "Class", "Kernel")
        say(text_table(f"Longest kernels of a GPU{found.over}", headings, found.kernels, NAME_WIDTH))
    say(*found.lines, "all tables: --verbose, --json, or as files --out FOLDER")


def _print_tables(trace: "TraceAnalysis") -> None:
    from multicard.trace.summary import SUMMARY
    from multicard.trace.tables import ACTIVITIES

    for name in SUMMARY:
        if name in trace.absent:
            say(f"{name}: cannot tell: {trace.absent[name]}", "")
        elif name in trace:
            rows = trace.summary(name)
            more = f", first {LONGEST} of {len(rows)}" if len(rows) > LONGEST else ""
            of = ACTIVITIES[name].description
            say(rows_table(rows, f"{name}{more}", of, LONGEST) if rows else f"{name}: none", "")


COMMAND = Command(80, UNDERSTAND, "multicard analyze report.nsys-rep", add_arguments, run)
