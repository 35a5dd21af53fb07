"""`multicard check`."""

import argparse
import json
import math
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import Command, refuse_unwritable
from multicard.core.errors import UserError
from multicard.core.text import counted, first_of, printable

if TYPE_CHECKING:
    from multicard.analysis.comparison.regressions import Judgement, RegressionCheck
    from multicard.api.results import Results

LONGEST = 20  # lines of remarks of a kind
OTHER_SESSIONS = (
    "cannot tell: results of different sessions, and no repeats show how much sessions differ: repeat one side an hour "
    "later or on another node, or state the difference, as with --session-spread 2%"
)
CANNOT_TELL_CODE = 2  # as for a faulty command line; 1 is a regression
REGRESSION_CODE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sides, what is checked, what is accepted and where else to report it."""
    what = "a results folder, or an archive of recorded runs"
    add = parser.add_argument
    add("baseline", type=Path, help=f"results to compare with: {what}")
    add("new", type=Path, help="results to check, likewise")
    add_judging(parser, "check", "NAME,...")
    add("--allow-missing", action="store_true", help="accept that configurations of the baseline were not run")
    add("--json", action="store_true", help="print what was found as JSON")
    add("--junit", type=Path, metavar="FILE", help="also write it as JUnit's XML, which CI systems show")


def add_judging(parser: argparse.ArgumentParser, verb: str, names: str) -> None:
    """Add how much worse is accepted, of what, and whether on unlike machines."""
    add = parser.add_argument
    add("--tolerance", default="3%", metavar="X%", help="by how much a measure may be worse (default: %(default)s)")
    add(
        "--measure", default="iteration_time", metavar=names,
        help=f"what to {verb}: iteration_time (default), throughput, memory, energy",
    )  # fmt: skip
    add(
        "--session-spread", metavar="X%",
        help="by how much sessions (days, nodes) differ (standard deviation); needed where no repeats span sessions",
    )  # fmt: skip
    add("--allow-other-machine", action="store_true", help=f"{verb} although the hardware differs")


def tolerance_of(text: str, option: str = "--tolerance") -> float:
    """Read a tolerance such as 3% as a share.

    Raises
    ------
    UserError
        If it is anything else.
    """
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or float(text[:-1]) >= 100:
        raise UserError(f"{option}: found {text!r}, expected a percentage below 100% such as 3%")
    return float(text[:-1]) / 100


def session_spread_of(arguments: argparse.Namespace) -> float | None:
    """The stated spread of sessions as a share; None where it is not stated."""
    text = arguments.session_spread
    return None if text is None else tolerance_of(text, "--session-spread")


def run(arguments: argparse.Namespace) -> None:
    """Print what became worse; exit with 1 for a regression, with 2 where there are no intervals."""
    try:
        code = _check(arguments)
    except UserError as error:  # whose usual code is that of a regression
        print(error, file=sys.stderr)
        code = CANNOT_TELL_CODE
    if code:
        sys.exit(code)


def read_runs(path: Path) -> "Results":
    """Read results, with their runs.

    Raises
    ------
    UserError
        If there are none.
    """
    from multicard import read_results
    from multicard.api.results import holds_results
    from multicard.core.layout import RUN

    if not holds_results(path):
        raise UserError(f"{path}: expected results: a folder with runs/*/{RUN}, or an archive of recorded runs")
    return read_results(path)


def worded(judgement: "Judgement") -> str:
    """By how much a measure changed, with its interval and the repeats behind it.

    >>> from multicard.analysis.comparison.regressions import Pair, judge
    >>> worded(judge([Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09])], 0.03, 0.0)[0])
    '10.0% slower (95% CI 7.6% to 12.4%, n=3)'
    """
    from multicard.analysis.comparison.regressions import MEASURES
    from multicard.core.units import percent

    if judgement.change.value is None:
        return judgement.reason or ""
    measure, change = MEASURES[judgement.measure], judgement.change

    def one(share: float) -> str:
        return f"{percent(abs(share), decimals=1)} {measure.worse if share >= 0 else measure.better}"

    before, after = judgement.repeats
    repeats = f"n={before}" if before == after else f"n={before} and {after}"
    if change.low is None or change.high is None:
        return f"{one(change.value)}; {judgement.reason}"
    ends = [change.low, change.high]
    if math.copysign(1, ends[0]) == math.copysign(1, ends[1]) == math.copysign(1, change.value):
        interval = " to ".join(percent(abs(end), decimals=1) for end in sorted(ends, key=abs))
    else:
        interval = " to ".join(map(one, ends))
    why = f"; {judgement.reason}" if judgement.reason else ""
    return f"{one(change.value)} (95% CI {interval}, {repeats}){why}"


def _check(arguments: argparse.Namespace) -> int:
    from multicard.analysis.comparison.regressions import MEASURES, REGRESSION

    tolerance = tolerance_of(arguments.tolerance)
    measures = list(dict.fromkeys(arguments.measure.split(",")))
    for measure in measures:
        if measure not in MEASURES:
            raise UserError(f"--measure: found {measure!r}, expected some of {','.join(MEASURES)}")
    if arguments.junit:
        refuse_unwritable("--junit", arguments.junit)
    found = read_runs(arguments.baseline).check(
        read_runs(arguments.new), tolerance, measures, session_spread_of(arguments)
    )
    try:
        refuse_other_hardware(found.hardware, arguments)
    except UserError as error:
        if arguments.junit:
            _write_junit(arguments.junit, replace(found, judgements=[]), [str(error)])
        raise
    problems = _problems(found, arguments)
    if arguments.json:
        print(json.dumps(asdict(found) | {"problems": problems}, indent=2))
    else:
        _print(found, arguments)
    if arguments.junit:
        _write_junit(arguments.junit, found, problems)
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    if found.of(REGRESSION):
        return REGRESSION_CODE
    return CANNOT_TELL_CODE if problems else 0


def refuse_other_hardware(hardware: list[tuple[str, str, str]], arguments: argparse.Namespace) -> None:
    """Refuse what was measured on unlike hardware, unless that is accepted.

    Raises
    ------
    UserError
        Naming what differs.
    """
    if hardware and not arguments.allow_other_machine:
        listed = "; ".join(f"{what}: {before} and {after}" for what, before, after in hardware)
        raise UserError(
            f"measured on unlike hardware, which no repeats make up for ({listed}): measure all on one machine, or "
            "accept it with --allow-other-machine"
        )


def _problems(found: "RegressionCheck", arguments: argparse.Namespace) -> list[str]:
    """What keeps the check from telling, a line each."""
    lines = []
    if not found.judgements:
        lines.append(
            "cannot tell: no configuration that completed in the baseline is in the new results: a configuration is "
            "all parameters but the repeat"
        )
    lines += [f"cannot tell: no configuration has an interval of {measure}" for measure in found.undecidable]
    if found.missing and not arguments.allow_missing:
        lines.append(
            f"{counted(len(found.missing), 'configuration')} of the baseline not in the new results: "
            f"{first_of(found.missing, LONGEST)}; run what is missing, or accept it with --allow-missing"
        )
    return lines


def line_of(judgement: "Judgement") -> str:
    """A judgement in one line: its verdict, in capitals if it is a regression, first, then the configuration."""
    from multicard.analysis.comparison.regressions import REGRESSION

    verdict = judgement.verdict.upper() if judgement.verdict == REGRESSION else judgement.verdict
    return f"{verdict} {judgement.configuration}: {worded(judgement)}"


def _print(found: "RegressionCheck", arguments: argparse.Namespace) -> None:
    from multicard.analysis.comparison.regressions import CANNOT_TELL, REGRESSION, UNDECIDED, WITHIN
    from multicard.cli._console import console
    from multicard.core.terminal import plain

    hidden = found.in_one_session
    doubts = [f"in doubt: {side} {run}: {why}" for side, run, why in found.doubts]
    if len(doubts) > LONGEST:
        doubts[LONGEST:] = [f"in doubt: {len(doubts) - LONGEST} more runs"]
    lines = [
        *(
            line_of(each)
            for kind in (REGRESSION, UNDECIDED, CANNOT_TELL)
            for each in found.of(kind)
            if each not in hidden or each.change.low > found.tolerance
        ),
        *(f"not compared {name}: {why}" for name, why in found.not_compared.items()),
        *(f"differs: {what}: {a} in the baseline, {b} now" for what, a, b in [*found.hardware, *found.environment]),
        *doubts,
    ]
    if found.missing and arguments.allow_missing:
        lines.append(f"missing: {first_of(found.missing, LONGEST)}")
    if found.added:
        lines.append(f"not in the baseline: {first_of(found.added, LONGEST)}")
    words = {UNDECIDED: UNDECIDED, WITHIN: f"within the tolerance of {arguments.tolerance}", CANNOT_TELL: CANNOT_TELL}
    counts = [f"{len(found.of(kind))} {word}" for kind, word in words.items() if found.of(kind)]
    summary = [counted(len(found.of(REGRESSION)), "regression"), *counts]
    compared = len({each.configuration for each in found.judgements})
    if hidden:
        lines.append(OTHER_SESSIONS)
    lines.append(f"{counted(compared, 'configuration')} compared by {arguments.measure}: {', '.join(summary)}")
    terminal = console()
    for line in lines:
        terminal.print(plain(line), soft_wrap=True)


def _write_junit(path: Path, found: "RegressionCheck", problems: list[str]) -> None:
    """Write a test case per configuration and measure: a regression fails, what is not decided is skipped."""
    from xml.etree import ElementTree

    from multicard.analysis.comparison.regressions import REGRESSION, WITHIN
    from multicard.core.files import atomic_write

    suite = ElementTree.Element(
        "testsuite", name="multicard check", tests=str(len(found.judgements) + len(problems)),
        failures=str(len(found.of(REGRESSION))), errors=str(len(problems)),
        skipped=str(sum(each.verdict not in (REGRESSION, WITHIN) for each in found.judgements)),
    )  # fmt: skip
    for each in found.judgements:
        case = ElementTree.SubElement(suite, "testcase", classname=printable(each.configuration), name=each.measure)
        text = printable(line_of(each))
        if each.verdict == REGRESSION:
            ElementTree.SubElement(case, "failure", message=text)
        elif each.verdict != WITHIN:
            ElementTree.SubElement(case, "skipped", message=text)
    for problem in problems:
        case = ElementTree.SubElement(suite, "testcase", classname="multicard check", name="results")
        ElementTree.SubElement(case, "error", message=printable(problem))
    with atomic_write(path) as temporary:
        ElementTree.ElementTree(suite).write(temporary, encoding="utf-8", xml_declaration=True)


COMMAND = Command(
    "check",
    52,
    "tell whether results are slower than a baseline by more than a tolerance, for CI: exit code 1 if they are",
    add_arguments,
    run,
)
