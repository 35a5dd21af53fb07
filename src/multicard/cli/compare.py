"""`multicard compare`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import Command
from multicard.core.text import counted, first_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

LONGEST = 20  # names in a list on the terminal
LONGEST_TABLE = 30  # differences between two traces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sides."""
    what = "a trace as for analyze, a results folder, or an archive of recorded runs"
    parser.add_argument("a", type=Path, help=f"baseline: {what}")
    parser.add_argument("b", type=Path, help="what to compare with the baseline, of the same kind")


def run(arguments: argparse.Namespace) -> None:
    """Print what differs between two traces, or two sets of results."""
    from multicard.api.results import holds_results

    if holds_results(arguments.a) or holds_results(arguments.b):
        compare_results(arguments.a, arguments.b)
    else:
        compare_traces(arguments.a, arguments.b)


def compare_traces(a: Path, b: Path) -> None:
    """Print what differs between two traces: the step period first, then the largest difference."""
    from multicard import read_trace
    from multicard.analysis.comparison.trace_comparison import COMPARED
    from multicard.cli._console import console, rows_table
    from multicard.core.terminal import plain

    before, after = (read_trace(path, tables=COMPARED, scope="steps") for path in (a, b))
    found = before.compare(after)
    if found.empty:
        console().print("cannot tell: the two traces have no table in common")
        return
    for line in (*_periods(found), *before.notices, *after.notices):
        console().print(plain(line), "")
    of = found.attrs["basis"].replace("whole", "of the whole")
    caption = (
        f"Times and numbers of calls are {of}. The step period is the median time from start to start; rows of "
        "timeline count every moment of a device once; the others are means over processes, in which durations that "
        "overlap add up. The interval covers what varies within the two captures, not from one run to another."
    )
    rows = found.astype(object).where(found.notna(), None).to_dict("records")
    console().print(rows_table(rows, plain(f"a: {a}, b: {b}"), caption, LONGEST_TABLE))


def _periods(found: "pd.DataFrame") -> list[str]:
    """The answer in lines: how many times as fast, outlying steps, and numbers of collectives that differ."""
    import pandas as pd

    from multicard.analysis.comparison.trace_comparison import PERIOD
    from multicard.core.units import number, percent, show

    periods = found[found["name"] == PERIOD]
    lines = [] if len(periods) else ["step period: cannot tell, since the traces do not both show two steps"]
    for row in periods.itertuples():
        change, times = percent(row.ratio - 1, signed=True), f"{show('a_s', row.a_s)} in a, {show('b_s', row.b_s)} in b"
        if pd.isna(row.low):
            line = f"{change}; too few steps for an interval"
        else:
            line = f"{change} (95% CI {percent(row.low - 1, signed=True)} to {percent(row.high - 1, signed=True)})"
            line = f"inconclusive: {line}" if row.low <= 1 <= row.high else line
        if not line.startswith("inconclusive") and row.ratio:
            line += f"; b is {1 / row.ratio:.2f} times as fast as a, if a step does the same work"
        lines.append(f"median step period: {times}: {line}")
    for side, periods in found.attrs["periods"].items():
        outliers = found.attrs["outlying"][side]
        if outliers:
            named = ", ".join(f"step {at} ({show('a_s', periods[at - 1])})" for at in outliers[:LONGEST])
            more = f" and {len(outliers) - LONGEST} more" if len(outliers) > LONGEST else ""
            lines.append(
                f"outlying in {side}: {named}{more}; with them the mean is {show('a_s', sum(periods) / len(periods))}"
            )
    collectives = found[found["table"] == "collectives"][["a_calls", "b_calls"]].astype(float).sum()
    if abs(collectives["a_calls"] - collectives["b_calls"]) > 0.005 * collectives.max():
        one, other = (number(collectives[name]) for name in ("a_calls", "b_calls"))
        of = found.attrs["basis"].replace("whole", "in the whole")
        lines.append(f"NCCL calls {of}: {one} → {other}")
    return lines


def compare_results(a: Path, b: Path) -> None:
    """Print what changed per configuration from the results `a` to the results `b`, and what else differs."""
    from multicard import read_results
    from multicard.api.results import holds_results
    from multicard.cli._console import console, text_table
    from multicard.core.errors import UserError
    from multicard.core.layout import RUN
    from multicard.core.terminal import plain

    for path, other in ((a, b), (b, a)):
        if not holds_results(path):
            raise UserError(f"{path}: expected results as in {other}: a folder with runs/*/{RUN}, or an archive")
    found = read_results(a).compare(read_results(b))
    terminal = console()
    terminal.print(plain(f"a: {a}, b: {b}"), "")
    if len(found.changes):
        terminal.print(_changes(found.changes), "")
    else:
        terminal.print("cannot tell: no configuration completed in both", "")
    for title, table in (
        ("Other differences, of the runs in both", found.environment),
        ("Runs with different outcomes", found.outcomes),
        (f"Runs whose numbers are in doubt: {len(found.notices)}, up to {LONGEST} are shown", found.notices[:LONGEST]),
    ):
        if len(table):
            headings = ["" if name == "what" else name for name in table]
            terminal.print(text_table(title, headings, table.to_numpy().tolist()), "")
    for side, runs in (("a", found.only_a), ("b", found.only_b)):
        if runs:
            terminal.print(plain(f"{counted(len(runs), 'run')} in {side} only: {first_of(runs, LONGEST)}"), "")


def _changes(changes: "pd.DataFrame") -> "Table":
    import pandas as pd
    from rich.table import Table

    from multicard.analysis.comparison.result_comparison import CANNOT_TELL
    from multicard.core.terminal import plain
    from multicard.core.units import heading, show

    caption = (
        "Geometric means over repeats, and their ratio b/a with its 95% CI by the scatter of all configurations. "
        "The last column is corrected for the number of rows (Holm's method, 5%); time and rate "
        "of the same work are one. "
    )
    if (changes["verdict"] == CANNOT_TELL).any():
        caption += "One repeat gives no interval, so a difference may be noise."
    table = Table(caption=caption, title_justify="left", caption_justify="left")
    for name in ("configuration", "measure", "a", "b", "b/a", "interval", "repeats", "b is"):
        table.add_column(name, justify="right" if name in ("a", "b", "b/a", "repeats") else "left")
    last = None
    for change in changes.itertuples():
        table.add_row(
            plain("" if change.configuration == last else change.configuration),
            heading(change.measure),
            *("" if pd.isna(value) else show(change.measure, value) for value in (change.a, change.b)),
            "" if pd.isna(change.ratio) else f"{change.ratio:.3f}",
            "" if pd.isna([change.low, change.high]).any() else f"{change.low:.3f} to {change.high:.3f}",
            f"{change.repeats_a} / {change.repeats_b}",
            change.verdict,
        )
        last = change.configuration
    return table


COMMAND = Command(
    "compare",
    50,
    "list what got slower or faster from one trace to another, or from one set of results to another",
    add_arguments,
    run,
)
