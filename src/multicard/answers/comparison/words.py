"""A comparison of results in lines of text, as `multicard compare` prints them.

First comes a summary, then the changes, what else differs, and what keeps the comparison from an answer. A side is
named by the folder or archive of its results.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from multicard.answers.comparison.changes import (
    BETTER,
    CANNOT_TELL,
    REGRESSION,
    UNDECIDED,
    WITHIN,
    Change,
    ChangeVerdict,
)
from multicard.answers.comparison.pairs import COMPARED_MEASURES, ComparedMeasure
from multicard.answers.comparison.results import Comparison
from multicard.core.text import counted, first_of
from multicard.core.units import percent, show
from multicard.stats.interval import Interval

LONGEST = 20  # most names that a line lists
APART = (
    "the sides ran in different sessions (another hour or node), and sessions may differ by more than repeats do; "
    "measure both on one machine within the hour, or one of them again in a second session, which shows by how much"
)


class SideNames(NamedTuple):
    """Names of the older and of the newer results."""

    before: str
    after: str


# One change -----------------------------------------------------------------------------------------------------------


def change_words(change: Change) -> str:
    """Return by how much a measure changed, with its interval and the repeats behind it; without a ratio the reason.

    >>> from multicard.answers.comparison.changes import judge
    >>> from multicard.answers.comparison.pairs import Pair
    >>> change_words(judge([Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09])], None)[0])
    '10.0% slower (95% CI 7.6% to 12.4%, n=3)'
    """
    interval, measure = change.change, COMPARED_MEASURES.get(change.measure)
    if interval is None or measure is None:
        return change.reason or ""
    value = _share_words(interval.value, measure)
    if interval.low is None or interval.high is None:
        return f"{value}; {change.reason}"
    before, after = change.repeats
    repeats = f"n={before}" if before == after else f"n={before} and {after}"
    reason = f"; {change.reason}" if change.reason else ""
    return f"{value} (95% CI {_bounds_words(interval, interval.low, interval.high, measure)}, {repeats}){reason}"


def _share_words(share: float, measure: ComparedMeasure) -> str:
    """Return a change in words.

    >>> _share_words(-0.1, COMPARED_MEASURES["iteration_time"])
    '10.0% faster'
    """
    direction = measure.worse if share >= 0 else measure.better
    return f"{_size(share)} {direction}"


def _bounds_words(interval: Interval, low: float, high: float, measure: ComparedMeasure) -> str:
    """Return the bounds of a change in words, such as "7.6% to 12.4%".

    If both bounds have the direction of the value, no direction is stated, and the bound nearer to 0 comes first. Else
    each bound is stated with its direction, the lower one first, such as "1.0% faster to 3.0% slower".
    """
    spans_zero = low < 0 < high
    value_differs = interval.value * high < 0
    if spans_zero or value_differs:
        return f"{_share_words(low, measure)} to {_share_words(high, measure)}"
    nearer, farther = sorted((low, high), key=abs)
    return f"{_size(nearer)} to {_size(farther)}"


def _size(share: float) -> str:
    return percent(abs(share), decimals=1)


# The summary, a line per measure --------------------------------------------------------------------------------------


def summary_lines(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each measure: how many of its changes have which verdict.

    Without a tolerance, measures for which no difference is shown share the last line.
    """
    if not comparison.changes:
        yield "cannot tell: no configuration completed in both"
        return
    without_difference = []
    for measure in dict.fromkeys(change.measure for change in comparison.changes):
        verdicts = [change.verdict for change in comparison.changes if change.measure == measure]
        name = measure.replace("_", " ")
        is_judged = set(verdicts) != {CANNOT_TELL}
        is_different = REGRESSION in verdicts or BETTER in verdicts
        if is_judged and not is_different and comparison.tolerance is None:
            without_difference.append(name)
        else:
            yield f"{name}: {_verdict_counts(verdicts, comparison)}"
    if without_difference:
        yield f"no difference shown: {', '.join(without_difference)}"


def _verdict_counts(verdicts: Sequence[ChangeVerdict], comparison: Comparison) -> str:
    """Return in words how many of the changes of one measure have which verdict."""
    configurations = counted(len(verdicts), "configuration")
    unjudged = verdicts.count(CANNOT_TELL)
    if unjudged == len(verdicts):
        return f"{unjudged} of {configurations} cannot be judged"
    counts = [
        f"{verdicts.count(verdict)} {words}"
        for verdict, words in _verdict_words(comparison).items()
        if verdict in verdicts or _is_always_counted(verdict, comparison)
    ]
    remainder = f"; {unjudged} cannot be judged" if unjudged else ""
    return f"{', '.join(counts)} of {configurations}{remainder}"


def _verdict_words(comparison: Comparison) -> dict[ChangeVerdict, str]:
    """Return the words that follow a number of changes with a verdict, in the order in which they are listed."""
    regressions = "regression" if len(comparison.with_verdict(REGRESSION)) == 1 else "regressions"
    return {
        REGRESSION: "worse" if comparison.tolerance is None else regressions,
        BETTER: "better",
        UNDECIDED: UNDECIDED,
        WITHIN: f"within the tolerance of {100 * (comparison.tolerance or 0):g}%",
    }


def _is_always_counted(verdict: ChangeVerdict, comparison: Comparison) -> bool:
    """Return whether a verdict is listed even if no change has it: regressions are if there is a tolerance."""
    return verdict == REGRESSION and comparison.tolerance is not None


# The changes, a line each ---------------------------------------------------------------------------------------------


def change_lines(comparison: Comparison, verbose: bool) -> Iterator[str]:
    """Yield a line for each listed change: the configuration, the values, and how much they differ.

    Regressions and improvements are listed. With a tolerance, changes that are undecided or cannot be judged are, too.
    `verbose` lists all changes. Otherwise changes for which one line explains why they cannot be judged have no line of
    their own.
    """
    hidden = [] if verbose else _explained_for_all(comparison)
    for verdict in _listed_verdicts(comparison, verbose):
        for change in comparison.with_verdict(verdict):
            if change not in hidden:
                yield _change_line(change, comparison)
    if comparison.in_one_session:
        yield f"cannot tell: {APART}"


def _listed_verdicts(comparison: Comparison, verbose: bool) -> list[ChangeVerdict]:
    verdicts: list[ChangeVerdict] = [REGRESSION, BETTER]
    if verbose or comparison.tolerance is not None:
        verdicts += [UNDECIDED, CANNOT_TELL]
    if verbose:
        verdicts.append(WITHIN)
    return verdicts


def _explained_for_all(comparison: Comparison) -> list[Change]:
    """Return the changes that cannot be judged because the sessions or the hardware of both sides differ.

    A change whose whole interval is worse than the tolerance is not among them: it is a finding that a further session
    may confirm, so it keeps its line.
    """
    tolerance = comparison.tolerance or 0.0
    of_sessions = [change for change in comparison.in_one_session if not _is_beyond(change, tolerance)]
    return [*of_sessions, *comparison.on_other_hardware]


def _is_beyond(change: Change, tolerance: float) -> bool:
    """Return whether the whole interval of a change is worse than the tolerance."""
    interval = change.change
    return interval is not None and interval.low is not None and interval.low > tolerance


def _change_line(change: Change, comparison: Comparison) -> str:
    label: str = change.verdict
    if change.verdict == REGRESSION:
        label = "worse" if comparison.tolerance is None else REGRESSION.upper()
    values = ""
    if change.column is not None and change.a is not None and change.b is not None:
        values = f"{show(change.column, change.a)} → {show(change.column, change.b)}, "
    return f"{label} {change.configuration}: {values}{change_words(change)}"


# What else differs ----------------------------------------------------------------------------------------------------


def remark_lines(comparison: Comparison, names: SideNames, verbose: bool) -> Iterator[str]:
    """Yield what may explain the changes or cast doubt on them: sessions, environments, missing runs, notices."""
    if comparison.needed is not None:
        yield f"repeats of each side: {comparison.needed.words()}"
    if comparison.apart:
        yield f"caveat: {APART}"
    for difference in (*comparison.hardware, *comparison.environment):
        yield f"differs: {difference.fact}: {difference.a} in {names.before}, {difference.b} in {names.after}"
    if comparison.apart or comparison.in_one_session:
        yield from _unknown_machine_lines(comparison, names)
    for configurations, name in ((comparison.missing, names.before), (comparison.added, names.after)):
        if configurations:
            count = counted(len(configurations), "configuration")
            yield f"{count} in {name} only: {first_of(configurations, LONGEST)}"
    yield from _doubt_lines(comparison, names, verbose)


def _unknown_machine_lines(comparison: Comparison, names: SideNames) -> Iterator[str]:
    for name, sides in _sides_by_name(names).items():
        if any(side in comparison.unknown_machines for side in sides):
            yield f"the machine of {name} is not recorded, so its runs count as another session"


def _doubt_lines(comparison: Comparison, names: SideNames, verbose: bool) -> Iterator[str]:
    for name, sides in _sides_by_name(names).items():
        side = sides[-1]
        doubts = [f"{doubt.run}: {doubt.why}" for doubt in comparison.doubts if doubt.side == side]
        if verbose or len(doubts) == 1:
            yield from (f"in doubt: {name} {doubt}" for doubt in doubts)
        elif doubts:
            yield f"in doubt: {len(doubts)} runs of {name} (--verbose lists them), such as {doubts[0]}"


def _sides_by_name(names: SideNames) -> dict[str, str]:
    """Return the sides that have a name: both, if one set of results is compared with itself.

    >>> _sides_by_name(SideNames("old", "new")), _sides_by_name(SideNames("old", "old"))
    ({'old': 'a', 'new': 'b'}, {'old': 'ab'})
    """
    if names.before == names.after:
        return {names.before: "ab"}
    return {names.before: "a", names.after: "b"}


# What keeps the comparison from an answer -----------------------------------------------------------------------------


def problem_lines(comparison: Comparison) -> list[str]:
    """Return what keeps the comparison from an answer, a line each; empty if nothing does."""
    if comparison.hardware:
        facts = "; ".join(f"{difference.fact}: {difference.a} and {difference.b}" for difference in comparison.hardware)
        return [f"cannot tell: measured on different hardware ({facts}); measure both on one machine"]
    lines = []
    if not comparison.changes:
        lines.append(
            "cannot tell: no configuration that completed in the baseline is in the new results (a configuration is "
            "all parameters but the repeat)"
        )
    lines += [f"cannot tell: no configuration has an interval for {measure}" for measure in comparison.undecidable]
    if comparison.missing:
        lines.append(
            f"{counted(len(comparison.missing), 'configuration')} of the baseline not in the new results: "
            f"{first_of(comparison.missing, LONGEST)}; run what is missing"
        )
    return lines
