"""`multicard compare`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import UNDERSTAND, Command
from multicard.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 20  # outlying steps in a line
LONGEST_TABLE = 30  # differences between two traces
CANNOT_TELL_CODE = 2  # as for a faulty command line; 1 is a regression


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is compared, and for results what counts as worse and where else to report it."""
    add = parser.add_argument
    add(
        "paths", type=Path, nargs="+", metavar="PATH",
        help="two traces as for analyze; or results folders and archives of recorded runs, the oldest first",
    )  # fmt: skip
    results = parser.add_argument_group("of results").add_argument
    results("--fail-above", metavar="X%", help="exit with 1 if a measure is worse by more, with 2 if that is unknown")
    results(
        "--measure", metavar="NAME,...",
        help="some of iteration_time, throughput, speedup, memory, energy, accuracy, loss (default: all; with "
        "--fail-above: iteration_time)",
    )  # fmt: skip
    results(
        "--session-spread", metavar="X%",
        help="by how much sessions (days, nodes) differ (standard deviation); needed where no repeats span sessions",
    )  # fmt: skip
    results("--allow-other-machine", action="store_true", help="judge although the hardware differs")
    results("--allow-missing", action="store_true", help="accept that configurations of the baseline were not run")
    results("--verbose", action="store_true", help="also list what is undecided, and each run in doubt")
    results("--json", action="store_true", help="print what was found as JSON")
    results("--junit", type=Path, metavar="FILE", help="also write it as JUnit's XML, which CI systems show")


def run(arguments: argparse.Namespace) -> None:
    """Print what differs; with --fail-above exit with 1 for a regression, with 2 where that cannot be told."""
    from multicard.api.results import holds_results

    try:
        if len(arguments.paths) < 2:
            raise UserError("expected two paths or more, the oldest first")
        if any(map(holds_results, arguments.paths)):
            from multicard.cli._compared_results import compare_results

            code = compare_results(arguments)
        else:
            if len(arguments.paths) > 2:
                raise UserError(f"expected two traces, found {len(arguments.paths)}")
            compare_traces(*arguments.paths)
            code = 0
    except UserError as error:
        if arguments.fail_above is None:
            raise
        print(error, file=sys.stderr)  # whose usual code is that of a regression
        code = CANNOT_TELL_CODE
    if code:
        sys.exit(code)


def compare_traces(a: Path, b: Path) -> None:
    """Print what differs between two traces: the step period first, then the largest difference."""
    from multicard import read_trace
    from multicard.analysis.comparison.trace_comparison import COMPARED
    from multicard.cli._console import console, rows_table
    from multicard.core.terminal import plain

    before, after = (read_trace(path, tables=COMPARED, scope="steps", find_steps=True) for path in (a, b))
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


COMMAND = Command(
    "compare",
    70,
    "list what got slower or faster between traces, or results; --fail-above judges it for CI",
    add_arguments,
    run,
    UNDERSTAND,
    "multicard compare v1.tar.gz results --fail-above 3%",
)
