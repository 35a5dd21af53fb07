"""List what got slower or faster between two traces, or results; --fail-above judges it for CI."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from multicard.cli._command import CANNOT_TELL_CODE, FAILURE_CODE, UNDERSTAND, Command, refuse_unwritable
from multicard.cli._compare_traces import compare_traces
from multicard.cli._console import say
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import counted, first_of, printable
from multicard.core.units import percent, show

if TYPE_CHECKING:
    from multicard.analysis.comparison.changes import Change
    from multicard.analysis.comparison.results import Comparison

LONGEST = 20  # names in a line
APART = (
    "the sides ran in different sessions (another hour or node), and sessions may differ by more than repeats do: "
    "measure both on one machine within the hour, or one of them again in a second session, which shows by how much"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is compared, and for results what counts as worse."""
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH",
        help="two traces as for analyze; or results folders or archives of recorded runs, the oldest first, each of "
        "which is compared with the one before",
    )  # fmt: skip
    add = parser.add_argument_group("of results").add_argument
    add(
        "--fail-above", metavar="X%",
        help="exit with 1 if a measure is worse by more, else with 2 if that cannot be told of some configuration",
    )  # fmt: skip
    add("--junit", type=Path, metavar="FILE", help="with --fail-above: write it as JUnit's XML, which CI systems show")
    add(
        "--measure", metavar="NAME,...",
        help="some of iteration_time, throughput, speedup, memory, energy, accuracy, loss (default: all, throughput "
        "only without iteration_time; with --fail-above: iteration_time)",
    )  # fmt: skip
    add("--verbose", action="store_true", help="also list what is undecided, and each run in doubt")
    add("--json", action="store_true", help="print what was found as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print what differs; exit with 1 for a regression beyond --fail-above, else with 2 where something is not told."""
    from multicard.api.results import holds_results

    is_of_results = any(map(holds_results, arguments.paths))
    if len(arguments.paths) < 2 or (len(arguments.paths) > 2 and not is_of_results):
        raise UserError(f"PATH: found {counted(len(arguments.paths), 'path')}, expected two traces, or two results")
    code = compare_results(arguments) if is_of_results else compare_traces(*arguments.paths)
    if code:
        sys.exit(code)


# Results --------------------------------------------------------------------------------------------------------------


def compare_results(arguments: argparse.Namespace) -> int:
    """Print what changed from one set of results to the next; give the exit code.

    Raises `UserError` if an option is faulty, or results cannot be read.
    """
    from multicard.analysis.comparison.changes import MEASURES
    from multicard.api.results import holds_results, read_results
    from multicard.core.layout import RUN

    tolerance = _share_of(arguments.fail_above)
    measures = list(dict.fromkeys(arguments.measure.split(","))) if arguments.measure else None
    for measure in measures or ():
        if measure not in MEASURES:
            raise UserError(f"--measure: found {measure!r}, expected some of {','.join(MEASURES)}")
    if tolerance is not None:
        measures = measures or ["iteration_time"]
    if arguments.junit:
        if tolerance is None:
            raise UserError("--junit: expected --fail-above X% with it")
        refuse_unwritable("--junit", arguments.junit)
    if wrong := next((path for path in arguments.paths if not holds_results(path)), None):
        other = next(filter(holds_results, arguments.paths))
        raise UserError(f"{wrong}: expected results as in {other}: a folder with runs/*/{RUN}, or an archive")
    results = [(path, read_results(path)) for path in arguments.paths]
    suites = ElementTree.Element("testsuites")
    codes = []
    for (path, before), (newer, after) in pairwise(results):
        found = before.compare(after, tolerance, measures)
        if len(results) > 2 and not arguments.json:
            say(f"{path} → {newer}")
        codes.append(_compared(found, (path, newer), arguments, suites))
    if arguments.junit:
        with atomic_write(arguments.junit) as temporary:
            ElementTree.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)
    return FAILURE_CODE if FAILURE_CODE in codes else max(codes)


def _compared(
    found: "Comparison", paths: Sequence[Path], arguments: argparse.Namespace, suites: ElementTree.Element
) -> int:
    """Print a comparison, and add it to the suites of tests; give the exit code."""
    from multicard.analysis.comparison.changes import CANNOT_TELL, REGRESSION

    judged = found.tolerance is not None
    problems = _problems(found) if judged else []
    if arguments.json:
        print(json.dumps(asdict(found) | {"problems": problems}, indent=2))
    else:
        verbose = arguments.verbose
        say(*_summary(found), *_changes(found, verbose), *_remarks(found, paths, verbose))
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    _add_suite(suites, found, " → ".join(map(str, paths)), problems)
    if judged and found.of(REGRESSION):
        return FAILURE_CODE
    is_untold = problems or (judged and found.of(CANNOT_TELL)) or not found.changes
    return CANNOT_TELL_CODE if is_untold else 0


def _add_suite(suites: ElementTree.Element, found: "Comparison", name: str, problems: Sequence[str]) -> None:
    """Add a test case per configuration and measure.

    A regression is a failure, what cannot be told an error, and what is undecided is skipped, as by the exit code.
    """
    from multicard.analysis.comparison.changes import CANNOT_TELL, REGRESSION, WITHIN

    suite = ElementTree.SubElement(suites, "testsuite", name=printable(name))
    for each in found.changes:
        case = ElementTree.SubElement(suite, "testcase", classname=printable(each.configuration), name=each.measure)
        if each.verdict != WITHIN:
            kind = {REGRESSION: "failure", CANNOT_TELL: "error"}.get(each.verdict, "skipped")
            ElementTree.SubElement(case, kind, message=printable(worded(each)))
    for problem in problems:
        case = ElementTree.SubElement(suite, "testcase", classname="multicard compare", name="results")
        ElementTree.SubElement(case, "error", message=printable(problem))


def _share_of(text: str | None) -> float | None:
    """Read a percentage such as 3% as a share; None where it is not given."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or float(text[:-1]) >= 100:
        raise UserError(f"--fail-above: found {text!r}, expected a percentage below 100% such as 3%")
    return float(text[:-1]) / 100


def worded(change: "Change") -> str:
    """By how much a measure changed, with its interval and the repeats behind it.

    >>> from multicard.analysis.comparison.changes import Pair, judge
    >>> worded(judge([Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09])], None)[0])
    '10.0% slower (95% CI 7.6% to 12.4%, n=3)'
    """
    from multicard.analysis.comparison.changes import MEASURES

    found, measure = change.change, MEASURES.get(change.measure)
    if found is None or measure is None:
        return change.reason or ""

    def one(share: float) -> str:
        return f"{percent(abs(share), decimals=1)} {measure.worse if share >= 0 else measure.better}"

    before, after = change.repeats
    repeats = f"n={before}" if before == after else f"n={before} and {after}"
    if found.low is None or found.high is None:
        return f"{one(found.value)}; {change.reason}"
    ends = [percent(abs(end), decimals=1) for end in sorted((found.low, found.high), key=abs)]
    if found.low < 0 < found.high or found.value * found.high < 0:
        ends = [one(found.low), one(found.high)]
    interval = " to ".join(ends)
    why = f"; {change.reason}" if change.reason else ""
    return f"{one(found.value)} (95% CI {interval}, {repeats}){why}"


def _summary(found: "Comparison") -> Iterable[str]:
    """A line for each measure."""
    from multicard.analysis.comparison.changes import BETTER, CANNOT_TELL, REGRESSION, UNDECIDED, WITHIN

    if not found.changes:
        yield "cannot tell: no configuration completed in both"
        return
    tolerance = found.tolerance
    regressions = "regression" if len(found.of(REGRESSION)) == 1 else "regressions"
    words = {
        REGRESSION: "worse" if tolerance is None else regressions,
        BETTER: "better",
        UNDECIDED: UNDECIDED,
        WITHIN: f"within the tolerance of {100 * (tolerance or 0):g}%",
    }
    alike = []
    for measure in dict.fromkeys(each.measure for each in found.changes):
        own = [each.verdict for each in found.changes if each.measure == measure]
        named, configurations = measure.replace("_", " "), counted(len(own), "configuration")
        untold = own.count(CANNOT_TELL)
        if untold == len(own):
            yield f"{named}: {untold} of {configurations} cannot be judged"
            continue
        if tolerance is None and not {REGRESSION, BETTER} & set(own):
            alike.append(named)
            continue
        shown = [kind for kind in words if kind in own or (kind == REGRESSION and tolerance is not None)]
        counts = ", ".join(f"{own.count(kind)} {words[kind]}" for kind in shown)
        more = f"; {untold} cannot be judged" if untold else ""
        yield f"{named}: {counts} of {configurations}{more}"
    if alike:
        yield f"no difference shown: {', '.join(alike)}"


def _is_beyond(change: "Change", tolerance: float) -> bool:
    """True if the whole interval of a change is worse than the tolerance."""
    interval = change.change
    return interval is not None and interval.low is not None and interval.low > tolerance


def _changes(found: "Comparison", verbose: bool) -> Iterable[str]:
    """A line for each change that is told: its verdict, the configuration, the values, and by how much they differ."""
    from multicard.analysis.comparison.changes import BETTER, CANNOT_TELL, REGRESSION, UNDECIDED, WITHIN

    judged = found.tolerance is not None
    in_doubt = [each for each in found.in_one_session if not _is_beyond(each, found.tolerance or 0.0)]
    hidden = [*in_doubt, *found.on_other_hardware]
    kinds = [REGRESSION, BETTER, *([UNDECIDED, CANNOT_TELL] if verbose or judged else []), *([WITHIN] * verbose)]
    for each in (change for kind in kinds for change in found.of(kind)):
        if each not in hidden or verbose:
            values = [show(each.column, value) for value in (each.a, each.b) if value is not None]
            both = f"{' → '.join(values)}, " if len(values) == 2 else ""
            regression = REGRESSION.upper() if judged else "worse"
            verdict = regression if each.verdict == REGRESSION else each.verdict
            yield f"{verdict} {each.configuration}: {both}{worded(each)}"
    if found.in_one_session:
        yield f"cannot tell: {APART}"


def _remarks(found: "Comparison", paths: Sequence[Path], verbose: bool) -> Iterable[str]:
    if found.apart:
        yield f"caveat: {APART}"
    before, after = paths
    differences = [*found.hardware, *found.environment]
    yield from (f"differs: {what}: {a} in {before}, {b} in {after}" for what, a, b in differences)
    # Of one set of results, given twice, a line says it.
    for path in dict.fromkeys(path for side, path in (("a", before), ("b", after)) if side in found.unknown_machines):
        if found.apart or found.in_one_session:
            yield f"the machine of {path} is not recorded, so its runs count as those of another session"
    for listed, where in ((found.missing, f"in {before} only"), (found.added, f"in {after} only")):
        if listed:
            yield f"{counted(len(listed), 'configuration')} {where}: {first_of(listed, LONGEST)}"
    for path, side in {before: "a", after: "b"}.items():
        doubts = [f"{run}: {why}" for of, run, why in found.doubts if of == side]
        if verbose or len(doubts) == 1:
            yield from (f"in doubt: {path} {each}" for each in doubts)
        elif doubts:
            yield f"in doubt: {len(doubts)} runs of {path} (--verbose lists them); the first: {doubts[0]}"


def _problems(found: "Comparison") -> list[str]:
    """What keeps the comparison from telling, a line each."""
    lines = []
    if found.hardware:
        listed = "; ".join(f"{what}: {one} and {other}" for what, one, other in found.hardware)
        lines.append(f"cannot tell: measured on different hardware ({listed}): measure both on one machine")
        return lines
    if not found.changes:
        lines.append(
            "cannot tell: no configuration that completed in the baseline is in the new results: a configuration is "
            "all parameters but the repeat"
        )
    lines += [f"cannot tell: no configuration has an interval of {measure}" for measure in found.undecidable]
    if found.missing:
        lines.append(
            f"{counted(len(found.missing), 'configuration')} of the baseline not in the new results: "
            f"{first_of(found.missing, LONGEST)}; run what is missing"
        )
    return lines


COMMAND = Command(UNDERSTAND, "multicard compare v1.tar.gz results --fail-above 3%", add_arguments, run)
