"""List what got slower or faster between two traces or results, and judge it for CI (--fail-above)."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from multicard.cli._command import (
    CANNOT_TELL_CODE,
    FAILURE_CODE,
    UNDERSTAND,
    Command,
    refuse_existing,
    refuse_unwritable,
)
from multicard.cli._compare_traces import compare_traces
from multicard.cli._console import say
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.system import read_or_none
from multicard.core.text import counted, printable

if TYPE_CHECKING:
    from multicard.answers.comparison.results import Comparison
    from multicard.answers.comparison.words import SideNames
    from multicard.api.results import ExperimentResults


# Name of the test suites in JUnit files of this command.
SUITES_NAME = "multicard compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: what is compared and, for results, what counts as worse."""
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH",
        help="two traces, as for analyze; or results folders or archives, oldest first: each is compared with the one "
        "before",
    )  # fmt: skip
    add = parser.add_argument_group("for results").add_argument
    add(
        "--fail-above", metavar="X%",
        help="exit with 1 if a measure is worse by more, else with 2 if some configuration cannot be judged",
    )  # fmt: skip
    add("--junit", type=Path, metavar="FILE", help="with --fail-above: write the result as JUnit XML, for CI systems")
    add(
        "--measure", metavar="NAME,...",
        help="some of iteration_time, throughput, speedup, memory, energy, accuracy, loss (default: all, throughput "
        "only without iteration_time; with --fail-above: iteration_time)",
    )  # fmt: skip
    add("--verbose", action="store_true", help="also list undecided changes, and each run in doubt")
    add("--json", action="store_true", help="print the comparison as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print what differs; exit with 1 for a regression beyond --fail-above, else with 2 if something cannot be told."""
    from multicard.api.results import holds_results

    are_results = any(map(holds_results, arguments.paths))
    if len(arguments.paths) < 2 or (len(arguments.paths) > 2 and not are_results):
        raise UserError(f"PATH: found {counted(len(arguments.paths), 'path')}, expected two traces, or two results")
    code = compare_results(arguments) if are_results else compare_traces(*arguments.paths)
    if code:
        sys.exit(code)


# Results --------------------------------------------------------------------------------------------------------------


def compare_results(arguments: argparse.Namespace) -> int:
    """Print what changed from each set of results to the next; return the exit code.

    It is 1 if any comparison has a regression, else 2 if any cannot tell, else 0. Raises `UserError` if an option is
    faulty, or results cannot be read.
    """
    from multicard.answers.comparison.words import SideNames

    tolerance = _tolerance(arguments.fail_above)
    measures = _measures(arguments.measure, tolerance)
    if arguments.junit:
        if tolerance is None:
            raise UserError("--junit: expected --fail-above X% with it")
        refuse_unwritable("--junit", arguments.junit)
        if not _is_own_junit(arguments.junit):
            refuse_existing("--junit", arguments.junit)
    results = _read_all(arguments.paths)
    suites = ElementTree.Element("testsuites", name=SUITES_NAME)
    codes = []
    for before, after in pairwise(results):
        comparison = before.compare(after, tolerance, measures)
        names = SideNames(str(before.path), str(after.path))
        if len(results) > 2 and not arguments.json:
            say(" → ".join(names))
        problems = _problems(comparison)
        _print(comparison, problems, names, arguments)
        _add_suite(suites, comparison, " → ".join(names), problems)
        codes.append(_exit_code(comparison, problems))
    if arguments.junit:
        with atomic_write(arguments.junit) as temporary:
            ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
    return FAILURE_CODE if FAILURE_CODE in codes else max(codes)


def _tolerance(text: str | None) -> float | None:
    """Return the share that a percentage such as "3%" states, 0.03; None without a text."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or float(text[:-1]) >= 100:
        raise UserError(f"--fail-above: found {text!r}, expected a percentage below 100% such as 3%")
    return float(text[:-1]) / 100


def _measures(text: str | None, tolerance: float | None) -> list[str] | None:
    """Return the measures to compare; None for all that were measured.

    Without --measure they are all measures or, with a tolerance, only the iteration time.
    """
    from multicard.answers.comparison.pairs import COMPARED_MEASURES

    if not text:
        return None if tolerance is None else ["iteration_time"]
    measures = list(dict.fromkeys(text.split(",")))
    for measure in measures:
        if measure not in COMPARED_MEASURES:
            raise UserError(f"--measure: found {measure!r}, expected some of {','.join(COMPARED_MEASURES)}")
    return measures


def _read_all(paths: Sequence[Path]) -> list["ExperimentResults"]:
    """Return the results at some paths; raise `UserError` if one of the paths is something else."""
    from multicard.api.results import holds_results, read_results
    from multicard.core.layout import RUN

    results = [path for path in paths if holds_results(path)]
    for path in paths:
        if path not in results:
            raise UserError(f"{path}: expected results as in {results[0]}: a folder with runs/*/{RUN}, or an archive")
    return [read_results(path) for path in paths]


def _problems(comparison: "Comparison") -> list[str]:
    """Return what keeps the comparison from an answer; nothing without a tolerance, because then none is asked for."""
    from multicard.answers.comparison.words import problem_lines

    return [] if comparison.tolerance is None else problem_lines(comparison)


def _print(
    comparison: "Comparison", problems: Sequence[str], names: "SideNames", arguments: argparse.Namespace
) -> None:
    """Print a comparison as text or as JSON, and its problems on standard error."""
    from multicard.answers.comparison.words import change_lines, remark_lines, summary_lines

    if arguments.json:
        print(json.dumps(asdict(comparison) | {"problems": problems}, indent=2))
    else:
        verbose = arguments.verbose
        say(
            *summary_lines(comparison),
            *change_lines(comparison, verbose),
            *remark_lines(comparison, names, verbose),
        )
    for problem in problems:
        print(printable(problem), file=sys.stderr)


def _exit_code(comparison: "Comparison", problems: Sequence[str]) -> int:
    from multicard.answers.comparison.changes import CANNOT_TELL, REGRESSION

    is_judged = comparison.tolerance is not None
    if is_judged and comparison.with_verdict(REGRESSION):
        return FAILURE_CODE
    has_unjudged = is_judged and comparison.with_verdict(CANNOT_TELL)
    return CANNOT_TELL_CODE if problems or has_unjudged or not comparison.changes else 0


def _is_own_junit(file: Path) -> bool:
    """True if a file begins as the JUnit files that this command writes, which CI has it write at each call."""
    if not file.is_file():
        return False
    content = read_or_none(file.read_bytes) or b""
    return f'<testsuites name="{SUITES_NAME}"'.encode() in content[:200]


def _add_suite(suites: ElementTree.Element, comparison: "Comparison", name: str, problems: Sequence[str]) -> None:
    """Add a suite with a test case per configuration and measure.

    A case within the tolerance passes, a regression is a failure, and a case that cannot be told is an error. Any other
    case is skipped. Each of `problems` is a case with an error.
    """
    from multicard.answers.comparison.changes import CANNOT_TELL, REGRESSION, WITHIN
    from multicard.answers.comparison.words import change_words

    suite = ElementTree.SubElement(suites, "testsuite", name=printable(name))
    tags = {REGRESSION: "failure", CANNOT_TELL: "error"}
    for change in comparison.changes:
        case = ElementTree.SubElement(suite, "testcase", classname=printable(change.configuration), name=change.measure)
        if change.verdict != WITHIN:
            tag = tags.get(change.verdict, "skipped")
            ElementTree.SubElement(case, tag, message=printable(change_words(change)))
    for problem in problems:
        case = ElementTree.SubElement(suite, "testcase", classname=SUITES_NAME, name="results")
        ElementTree.SubElement(case, "error", message=printable(problem))


COMMAND = Command(UNDERSTAND, "multicard compare v1.tar.gz results --fail-above 3%", add_arguments, run)
