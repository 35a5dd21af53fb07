"""A comparison in words: each kind of line, and which lines are left out until they are asked for."""

from collections.abc import Sequence
from typing import Any

from multicard.answers.comparison.results import Comparison, Doubt, compare
from multicard.answers.comparison.words import (
    APART,
    SideNames,
    change_lines,
    problem_lines,
    remark_lines,
    summary_lines,
)
from sides import make_side

STEADY = (2.0, 2.02, 1.98)
SLOWER = (3.0, 3.02, 2.98)
NAMES = SideNames("old", "new")


def at(hour: int, name: str = "n1", processor: str = "EPYC") -> dict[str, Any]:
    """Fields of the records of runs on a machine in an hour of one day."""
    return {
        "started": f"2026-11-22T{hour}:00:00+00:00",
        "ended": f"2026-11-22T{hour}:10:00+00:00",
        "host": {"name": name},
        "hardware": {"processor": processor},
    }


def compared(
    tolerance: float | None, a: Sequence[float], b: Sequence[float], before: dict[str, Any], after: dict[str, Any]
) -> Comparison:
    """Compare a configuration that became slower or not with one that did not."""
    old = make_side(record=before, job=a, other=STEADY)
    new = make_side(record=after, job=b, other=STEADY)
    return compare(old, new, tolerance)


def test_the_summary_counts_verdicts_and_the_regression_is_a_line() -> None:
    comparison = compared(0.03, STEADY, SLOWER, at(10), at(10))
    assert list(summary_lines(comparison)) == [
        "iteration time: 1 regression, 1 within the tolerance of 3% of 2 configurations"
    ]
    [line] = change_lines(comparison, verbose=False)
    assert line.startswith("REGRESSION job: 2.00 s → 3.00 s, 50.0% slower (95% CI ") and line.endswith(", n=3)")
    regression, within = change_lines(comparison, verbose=True)
    assert regression == line and within.startswith("within tolerance other: ")
    assert problem_lines(comparison) == []


def test_without_a_tolerance_a_change_is_worse_or_better_and_the_others_are_one_line() -> None:
    worse = compared(None, STEADY, SLOWER, at(10), at(10))
    assert list(summary_lines(worse)) == ["iteration time: 1 worse, 1 undecided of 2 configurations"]
    assert next(change_lines(worse, verbose=False)).startswith("worse job: 2.00 s → 3.00 s, 50.0% slower")
    better = compared(None, SLOWER, STEADY, at(10), at(10))
    assert next(change_lines(better, verbose=False)).startswith("better job: 3.00 s → 2.00 s, 33.3% faster")
    equal = compared(None, STEADY, STEADY, at(10), at(10))
    assert list(summary_lines(equal)) == ["no difference shown: iteration time"]
    assert list(change_lines(equal, verbose=False)) == []


def test_an_interval_that_spans_no_change_says_which_end_is_which() -> None:
    lines = list(change_lines(compared(None, STEADY, (2.0, 2.04, 1.98), at(10), at(10)), verbose=True))
    [line] = [line for line in lines if " job: " in line]
    assert "0.3% slower (95% CI " in line and "% faster to " in line


def test_changes_between_two_sessions_are_one_line_but_for_those_that_may_be_findings() -> None:
    comparison = compared(0.03, STEADY, SLOWER, at(10), at(14))
    assert list(summary_lines(comparison)) == ["iteration time: 2 of 2 configurations cannot be judged"]
    slower, last = change_lines(comparison, verbose=False)
    assert slower.startswith("cannot tell job: 2.00 s → 3.00 s, 50.0% slower (95% CI ")
    assert last == f"cannot tell: {APART}"
    assert len(list(change_lines(comparison, verbose=True))) == 3
    # Without a tolerance there are verdicts, and the doubt is a caveat.
    assert f"caveat: {APART}" in remark_lines(compared(None, STEADY, SLOWER, at(10), at(14)), NAMES, verbose=False)


def test_a_machine_without_a_name_is_named_by_its_results_where_sessions_count() -> None:
    line = "the machine of new is not recorded, so its runs count as another session"
    unknown = at(10, name="host-1")
    assert line in remark_lines(compared(0.03, STEADY, STEADY, at(10), unknown), NAMES, verbose=False)
    assert line not in remark_lines(compared(0.03, STEADY, STEADY, at(10), at(14)), NAMES, verbose=False)


def test_other_hardware_keeps_from_an_answer_and_is_the_only_problem() -> None:
    comparison = compared(0.03, STEADY, SLOWER, at(10), at(10, processor="Xeon"))
    [problem] = problem_lines(comparison)
    assert problem == (
        "cannot tell: measured on different hardware (processor: EPYC and Xeon); measure both on one machine"
    )
    assert list(change_lines(comparison, verbose=False)) == []
    assert "differs: processor: EPYC in old, Xeon in new" in remark_lines(comparison, NAMES, verbose=False)


def test_missing_and_added_configurations_are_listed_and_a_missing_one_is_a_problem() -> None:
    comparison = compare(make_side(a=STEADY, b=STEADY), make_side(a=STEADY, c=STEADY), 0.03)
    remarks = list(remark_lines(comparison, NAMES, verbose=False))
    assert "1 configuration in old only: b" in remarks and "1 configuration in new only: c" in remarks
    assert "1 configuration of the baseline not in the new results: b; run what is missing" in problem_lines(comparison)


def test_nothing_in_common_is_said_first() -> None:
    comparison = compare(make_side(a=STEADY), make_side(b=STEADY), 0.03)
    assert list(summary_lines(comparison)) == ["cannot tell: no configuration completed in both"]
    assert problem_lines(comparison)[0].startswith("cannot tell: no configuration that completed in the baseline is in")


def test_a_measure_without_any_interval_is_a_problem() -> None:
    comparison = compare(make_side(record=at(10), a=[1.0]), make_side(record=at(10), a=[1.5]), 0.03)
    assert problem_lines(comparison) == ["cannot tell: no configuration has an interval for iteration_time"]


def in_doubt(*doubts: Doubt) -> Comparison:
    """Return a comparison of nothing with runs in doubt."""
    return Comparison(0.03, [], [], [], [], [], list(doubts), apart=False, unknown_machines=[])


def test_a_run_in_doubt_is_a_line_and_several_are_one_until_asked_for() -> None:
    one = in_doubt(Doubt("b", "run_r1", "disturbed: x"))
    assert list(remark_lines(one, NAMES, verbose=False)) == ["in doubt: new run_r1: disturbed: x"]
    several = in_doubt(Doubt("a", "run_r1", "disturbed: x"), Doubt("a", "run_r2", "disturbed: y"))
    assert list(remark_lines(several, NAMES, verbose=False)) == [
        "in doubt: 2 runs of old (--verbose lists them), such as run_r1: disturbed: x"
    ]
    assert list(remark_lines(several, NAMES, verbose=True)) == [
        "in doubt: old run_r1: disturbed: x",
        "in doubt: old run_r2: disturbed: y",
    ]


def test_of_results_that_are_compared_with_themselves_a_doubt_is_said_once() -> None:
    same = in_doubt(Doubt("a", "run_r1", "disturbed: x"), Doubt("b", "run_r1", "disturbed: x"))
    assert list(remark_lines(same, SideNames("old", "old"), verbose=False)) == ["in doubt: old run_r1: disturbed: x"]
