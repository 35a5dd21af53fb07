"""Results compared: what `multicard compare` prints, and what it writes for CI systems."""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

from multicard.analysis.comparison.changes import (
    BETTER,
    CANNOT_TELL,
    MEASURES,
    REGRESSION,
    UNDECIDED,
    WITHIN,
    Change,
)
from multicard.analysis.comparison.results import Comparison
from multicard.api.results import Results, compare_versions, holds_results, read_results
from multicard.cli._command import refuse_unwritable
from multicard.cli._console import console
from multicard.cli.compare import CANNOT_TELL_CODE
from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.layout import RUN
from multicard.core.terminal import plain
from multicard.core.text import counted, first_of, printable
from multicard.core.units import percent, show
from multicard.experiment.config import ARCHIVE

LONGEST = 20  # names in a line
APART = (
    "the sides ran in different sessions (another hour or node), which may differ by more than repeats do: measure both"
    " in one session, repeat one in another, or state by how much sessions differ, as with --session-spread 2%"
)
REGRESSION_CODE = 1


def compare_results(arguments: argparse.Namespace) -> int:
    """Print what changed from each set of results to the next; give the exit code.

    Raises
    ------
    UserError
        If an option is faulty, or results cannot be read or, with a tolerance, not be compared.
    """
    tolerance = share_of(arguments.fail_above, "--fail-above")
    spread = share_of(arguments.session_spread, "--session-spread")
    measures = list(dict.fromkeys(arguments.measure.split(","))) if arguments.measure else None
    for measure in measures or ():
        if measure not in MEASURES:
            raise UserError(f"--measure: found {measure!r}, expected some of {','.join(MEASURES)}")
    if arguments.junit:
        if tolerance is None:
            raise UserError("--junit: expected --fail-above X% with it")
        refuse_unwritable("--junit", arguments.junit)
    versions = [_read(path, arguments.paths) for path in arguments.paths]
    if tolerance is not None:
        measures = measures or ["iteration_time"]
    found = compare_versions(versions, tolerance, measures, spread)
    if found.hardware and tolerance is not None and not arguments.allow_other_machine:
        listed = "; ".join(f"{what}: {before} and {after}" for what, before, after in found.hardware)
        refused = (
            f"measured on unlike hardware, which no repeats make up for ({listed}): measure all on one machine, or "
            "accept it with --allow-other-machine"
        )
        if arguments.junit:
            _write_junit(arguments.junit, replace(found, changes=[]), [refused])
        raise UserError(refused)
    names = names_of(arguments.paths)
    problems = [] if tolerance is None else _problems(found, arguments.allow_missing)
    if arguments.json:
        print(json.dumps(asdict(found) | {"problems": problems}, indent=2))
    else:
        _print(found, names, arguments.verbose)
    if arguments.junit:
        _write_junit(arguments.junit, found, problems)
    for problem in problems:
        print(printable(problem), file=sys.stderr)
    if tolerance is not None and any(each.versions[1] == len(versions) - 1 for each in found.of(REGRESSION)):
        return REGRESSION_CODE
    return CANNOT_TELL_CODE if problems else 0


def share_of(text: str | None, option: str) -> float | None:
    """Read a percentage such as 3% as a share; None where it is not given.

    Raises
    ------
    UserError
        If it is anything else.
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or float(text[:-1]) >= 100:
        raise UserError(f"{option}: found {text!r}, expected a percentage below 100% such as 3%")
    return float(text[:-1]) / 100


def _read(path: Path, paths: Sequence[Path]) -> Results:
    if holds_results(path):
        return read_results(path)
    other = next(each for each in paths if holds_results(each))
    raise UserError(f"{path}: expected results as in {other}: a folder with runs/*/{RUN}, or an archive")


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names of versions: those of their archives or folders, or whole paths where these are alike.

    >>> names_of([Path("old/v1.tar.gz"), Path("v2.tar.gz"), Path("results")])
    ['v1', 'v2', 'results']
    >>> names_of([Path("v1/results"), Path("v2/results")])
    ['v1/results', 'v2/results']
    """
    names = [path.resolve().name.removesuffix(ARCHIVE) for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def worded(change: Change) -> str:
    """By how much a measure changed, with its interval and the repeats behind it.

    >>> from multicard.analysis.comparison.changes import Pair, judge
    >>> worded(judge([Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09])], 0.03, 0.0)[0])
    '10.0% slower (95% CI 7.6% to 12.4%, n=3)'
    """
    found = change.change
    if found.value is None:
        return change.reason or ""
    measure = MEASURES[change.measure]

    def one(share: float) -> str:
        return f"{percent(abs(share), decimals=1)} {measure.worse if share >= 0 else measure.better}"

    before, after = change.repeats
    repeats = f"n={before}" if before == after else f"n={before} and {after}"
    if found.low is None or found.high is None:
        return f"{one(found.value)}; {change.reason}"
    ends = [found.low, found.high]
    if math.copysign(1, ends[0]) == math.copysign(1, ends[1]) == math.copysign(1, found.value):
        interval = " to ".join(percent(abs(end), decimals=1) for end in sorted(ends, key=abs))
    else:
        interval = " to ".join(map(one, ends))
    why = f"; {change.reason}" if change.reason else ""
    return f"{one(found.value)} (95% CI {interval}, {repeats}){why}"


def line_of(change: Change, regression: str = REGRESSION.upper()) -> str:
    """A change in one line: its verdict first, then the configuration, the two values, and by how much they differ."""
    values = [show(change.column, each) for each in (change.a, change.b) if each is not None]
    verdict = regression if change.verdict == REGRESSION else change.verdict
    both = f"{' → '.join(values)}, " if len(values) == 2 else ""
    return f"{verdict} {change.configuration}: {both}{worded(change)}"


def _print(found: Comparison, names: Sequence[str], verbose: bool) -> None:
    """The answer in a line for each measure, then what is behind it."""
    terminal = console()
    for line in (*_summary(found), *_changes(found, names, verbose), *_remarks(found, names[-2:], verbose)):
        terminal.print(plain(line), soft_wrap=True)


def _summary(found: Comparison) -> Iterable[str]:
    if not found.changes:
        yield "cannot tell: no configuration completed in both"
        return
    tolerance = found.tolerance
    regressed = len(found.of(REGRESSION))
    words = {
        REGRESSION: "worse" if tolerance is None else ("regression" if regressed == 1 else "regressions"),
        BETTER: "better",
        UNDECIDED: UNDECIDED,
        WITHIN: f"within the tolerance of {100 * (tolerance or 0):g}%",
        CANNOT_TELL: CANNOT_TELL,
    }
    alike = []
    for measure in dict.fromkeys(each.measure for each in found.changes):
        own = [each.verdict for each in found.changes if each.measure == measure]
        if tolerance is None and not {REGRESSION, BETTER} & set(own):
            alike.append(measure.replace("_", " "))
            continue
        shown = [kind for kind in words if kind in own or (kind == REGRESSION and tolerance is not None)]
        counts = ", ".join(f"{own.count(kind)} {words[kind]}" for kind in shown)
        yield f"{measure.replace('_', ' ')}: {counts} of {counted(len(own), 'configuration')}"
    if alike:
        yield f"no difference shown: {', '.join(alike)}"


def _changes(found: Comparison, names: Sequence[str], verbose: bool) -> Iterable[str]:
    hidden = [each for each in found.in_one_session if not each.change.low > (found.tolerance or 0.0)]
    several, judged = len(names) > 2, found.tolerance is not None
    kinds = [REGRESSION, BETTER, *([UNDECIDED, CANNOT_TELL] if verbose or (judged and not several) else [])]
    for kind in [*kinds, *([WITHIN] if verbose else [])]:
        told = set()
        for each in found.of(kind):
            before, after = each.versions
            # What is worse than the version before is not said again of the first.
            if (each in hidden and not verbose) or (each.configuration, each.measure, after) in told:
                continue
            told.add((each.configuration, each.measure, after))
            line = line_of(each) if judged else line_of(each, "worse")
            yield f"{names[before]} to {names[after]}: {line}" if several else line
    if found.in_one_session:
        yield f"cannot tell: {APART}"


def _remarks(found: Comparison, names: Sequence[str], verbose: bool) -> Iterable[str]:
    before, after = names
    if found.apart:
        yield f"mind: {APART}"
    yield from (f"not compared {name}: {why}" for name, why in found.not_compared.items())
    differences = [*found.hardware, *found.environment]
    yield from (f"differs: {what}: {a} in {before}, {b} in {after}" for what, a, b in differences)
    for listed, where in ((found.missing, f"in {before} only"), (found.added, f"in {after} only")):
        if listed:
            yield f"{counted(len(listed), 'configuration')} {where}: {first_of(listed, LONGEST)}"
    for side, name in (("a", before), ("b", after)):
        doubts = [f"{run}: {why}" for of, run, why in found.doubts if of == side]
        if verbose or len(doubts) == 1:
            yield from (f"in doubt: {name} {each}" for each in doubts)
        elif doubts:
            yield f"in doubt: {len(doubts)} runs of {name} (--verbose lists them); the first: {doubts[0]}"


def _problems(found: Comparison, allow_missing: bool) -> list[str]:
    """What keeps the comparison from telling, a line each."""
    lines = []
    if not found.changes:
        lines.append(
            "cannot tell: no configuration that completed in the baseline is in the new results: a configuration is "
            "all parameters but the repeat"
        )
    lines += [f"cannot tell: no configuration has an interval of {measure}" for measure in found.undecidable]
    if found.missing and not allow_missing:
        lines.append(
            f"{counted(len(found.missing), 'configuration')} of the baseline not in the new results: "
            f"{first_of(found.missing, LONGEST)}; run what is missing, or accept it with --allow-missing"
        )
    return lines


def _write_junit(path: Path, found: Comparison, problems: list[str]) -> None:
    """Write a test case per configuration and measure: a regression fails, what is not decided is skipped."""
    suite = ElementTree.Element(
        "testsuite", name="multicard compare", tests=str(len(found.changes) + len(problems)),
        failures=str(len(found.of(REGRESSION))), errors=str(len(problems)),
        skipped=str(sum(each.verdict not in (REGRESSION, WITHIN) for each in found.changes)),
    )  # fmt: skip
    for each in found.changes:
        case = ElementTree.SubElement(suite, "testcase", classname=printable(each.configuration), name=each.measure)
        text = printable(line_of(each))
        if each.verdict == REGRESSION:
            ElementTree.SubElement(case, "failure", message=text)
        elif each.verdict != WITHIN:
            ElementTree.SubElement(case, "skipped", message=text)
    for problem in problems:
        case = ElementTree.SubElement(suite, "testcase", classname="multicard compare", name="results")
        ElementTree.SubElement(case, "error", message=printable(problem))
    with atomic_write(path) as temporary:
        ElementTree.ElementTree(suite).write(temporary, encoding="utf-8", xml_declaration=True)
