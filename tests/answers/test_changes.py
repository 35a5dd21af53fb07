"""Regressions against SciPy's tests, and over simulated families whose truth is known."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binom, ttest_ind
from scipy.stats import t as student

from factories import make_run
from multicard.answers.comparison.changes import judge
from multicard.answers.comparison.pairs import COMPARED_MEASURES, Pair
from multicard.answers.comparison.results import compare
from multicard.answers.comparison.sessions import sessions_of
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.provenance import Provenance
from multicard.runs.record import RunRecord
from sides import make_side

TOLERANCE = 0.03
SPREAD = (1.0, 1.01, 0.99)  # of repeats
TOGETHER = ([1, 1, 1], [1, 1, 1])  # in one session


def pair(times: float, name: str = "a", measure: str = "iteration_time") -> Pair:
    """Return the repeats of a measure, and the same so many times as large, all of one session."""
    return Pair(name, measure, SPREAD, [times * value for value in SPREAD], TOGETHER)


@pytest.mark.parametrize(
    ("times", "verdict"),
    # 1.02 is below the tolerance, and the end of its interval is not.
    [
        (1.2, "regression"),
        (1.04, "undecided"),
        (1.02, "undecided"),
        (1.0, "within tolerance"),
        (0.7, "within tolerance"),
    ],
)
def test_a_change_beyond_the_tolerance_is_told_from_one_within_it(times: float, verdict: str) -> None:
    [change] = judge([pair(times)], TOLERANCE)
    logs = np.log(SPREAD)
    bounds = np.exp(ttest_ind(logs + np.log(times), logs, equal_var=False).confidence_interval()) - 1
    assert change.verdict == verdict
    assert change.change.value == pytest.approx(times - 1)
    assert (change.change.low, change.change.high) == pytest.approx(tuple(bounds))


def test_less_throughput_is_worse_and_more_is_not() -> None:
    less, more = judge([pair(0.8, "less", "throughput"), pair(1.25, "more", "throughput")], TOLERANCE)
    assert (less.verdict, more.verdict) == ("regression", "within tolerance")
    assert (less.change.value, more.change.value) == pytest.approx((0.2, -0.25))
    assert less.change.low < 0.2 < less.change.high
    # A loss of exactly the tolerance is not beyond it.
    assert judge([pair(0.97, measure="throughput")], TOLERANCE)[0].change.p_value == 1


def test_one_of_many_needs_more_evidence_than_one_alone() -> None:
    shift = 1.0545
    alone = judge([pair(shift)], TOLERANCE)
    among = judge([pair(shift), *(pair(1.03, str(n)) for n in range(19))], TOLERANCE)
    assert (alone[0].verdict, among[0].verdict) == ("regression", "undecided")
    logs = np.log(SPREAD)
    p_value = ttest_ind(logs + np.log(shift / 1.03), logs, equal_var=False).pvalue
    assert alone[0].change.p_value == pytest.approx(p_value)
    # By Holm's method the smallest of 20, by the scatter of all, which has 80 degrees of freedom at most.
    least = 20 * 2 * student.sf(np.log(shift / 1.03) / (np.std(logs, ddof=1) * np.sqrt(2 / 3)), 80)
    assert least <= among[0].change.p_value < 20 * p_value
    assert "chance among 20 comparisons, while the interval is of this one alone" in among[0].reason


@pytest.mark.parametrize(
    ("measure", "a", "b", "reason"),
    [
        ("iteration_time", SPREAD, [9.0], "one repeat (b)"),
        ("energy", SPREAD, [], "energy was not measured in b"),
        ("energy", [], SPREAD, "energy was not measured in a"),
        ("energy", SPREAD, [0.0, 1.0, 1.0], "energy is 0 in a repeat"),
    ],
)
def test_without_an_interval_nothing_is_told(measure: str, a: Sequence[float], b: Sequence[float], reason: str) -> None:
    [change] = judge([Pair("a", measure, a, b, ([1] * len(a), [1] * len(b)))], TOLERANCE)
    assert change.verdict == "cannot tell" and reason in change.reason
    assert (change.a is None, change.b is None) == (not a, not b)


def test_equal_values_are_within_every_tolerance() -> None:
    [change] = judge([Pair("a", "memory", [5.0, 5.0], [5.0, 5.0])], 0.0)
    assert change.verdict == "within tolerance"


def test_runs_that_begin_to_fail_are_a_regression_beside_others_that_complete() -> None:
    before, after = make_side(a=[1.0, 1.001], b=[1.0]), make_side(lost=["a_r1", "b_r3"], b=[1.0, 1.001])
    lost, beside, _ = compare(before, after).changes
    assert (lost.configuration, lost.measure, lost.verdict) == ("a", "outcome", "regression")
    assert lost.reason == "out_of_memory in 1 of 1 run; 2 completed before"
    assert beside.verdict == "regression" and "out_of_memory in 1 of 3 runs" in beside.reason
    assert compare(after, make_side(a=[1.0], b=[1.0]), TOLERANCE).with_verdict("regression") == []


@pytest.mark.parametrize(("times", "verdict"), [(1.5, "regression"), (1 / 1.5, "better"), (1.002, "undecided")])
def test_without_a_tolerance_every_difference_counts(times: float, verdict: str) -> None:
    before, after = make_side(a=SPREAD), make_side(a=[times * seconds for seconds in SPREAD])
    [change] = compare(before, after).changes
    assert (change.verdict, change.change.value) == (verdict, pytest.approx(times - 1))


def test_verdicts_without_a_tolerance_leave_out_that_sessions_may_differ() -> None:
    # Neither side states when it ran, so sessions may differ as much.
    assert compare(make_side(a=SPREAD), make_side(a=SPREAD)).apart


def test_throughput_is_that_of_what_the_workload_counts() -> None:
    names = ("throughput_samples_per_s", "tokens_per_s", "energy_per_sample_j", "energy_per_token_j")
    run = MeasuredRun("a_r1", {"outcome": "completed"} | dict.fromkeys(names, 1.0), Provenance())
    columns = [
        [
            COMPARED_MEASURES[measure].column_of(Configuration({"workload": work}, Provenance(), (run,)))
            for work in ("vision", "llm")
        ]
        for measure in ("throughput", "energy")
    ]
    assert columns == [["throughput_samples_per_s", "tokens_per_s"], ["energy_per_sample_j", "energy_per_token_j"]]


def reported(old: np.ndarray, new: np.ndarray, sessions: int = 1, together: bool = False) -> list[str]:
    """Return the verdicts on configurations whose repeats ran in so many sessions of each side, in turn.

    The sessions of both sides are the same if they ran `together`.
    """
    sessions_a = [number % sessions for number in range(old.shape[1])]
    sessions_b = sessions_a if together else [session + sessions for session in sessions_a]
    pairs = [Pair(str(n), "iteration_time", old[n], new[n], (sessions_a, sessions_b)) for n in range(len(old))]
    return [change.verdict for change in judge(pairs, TOLERANCE)]


def in_sessions(rng: np.random.Generator, count: int, repeats: int, sessions: int, offset: float) -> np.ndarray:
    """Return times of configurations, each of which is off by so much in each session."""
    offsets = rng.normal(0, offset, (count, sessions))
    return np.exp(rng.normal(0, 0.005, (count, repeats)) + offsets[:, np.arange(repeats) % sessions])


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "repeats"), [(1, 3), (2, 4)])
def test_offsets_of_sessions_are_no_regressions(sessions: int, repeats: int) -> None:
    rng = np.random.default_rng(2)
    wrong, families = 0, 60
    for _ in range(families):
        sides = [in_sessions(rng, 20, repeats, sessions, 0.02) for _ in range(2)]
        wrong += "regression" in reported(*sides, sessions=sessions)
    # By the scatter within a session these are 49 to 73%.
    assert wrong <= (0 if sessions == 1 else binom.ppf(0.999, families, 0.05))


def test_a_new_session_is_judged_by_a_baseline_that_spans_several() -> None:
    rng = np.random.default_rng(3)
    old, new = in_sessions(rng, 20, 4, 4, 0.02), in_sessions(rng, 20, 4, 1, 0.02)
    new[0] *= 1.3
    pairs = [Pair(str(n), "iteration_time", old[n], new[n], ([1, 2, 3, 4], [5] * 4)) for n in range(20)]
    verdicts = [change.verdict for change in judge(pairs, TOLERANCE)]
    assert verdicts[0] == "regression" and "regression" not in verdicts[1:]


def test_sessions_of_unlike_sides_tell_nothing_where_none_is_repeated() -> None:
    rng = np.random.default_rng(4)
    old, new = in_sessions(rng, 20, 3, 1, 0.02), in_sessions(rng, 20, 3, 1, 0.02)
    new[0] *= 1.3
    assert set(reported(old, new)) == {"cannot tell"}
    [unknown] = judge([Pair("a", "iteration_time", old[0], new[0])], TOLERANCE)
    assert unknown.verdict == "cannot tell" and unknown.change.low > 0.2
    # What a program allocates does not depend on the day.
    [memory] = judge([Pair("a", "memory", [5.0, 5.0], [6.0, 6.0])], TOLERANCE)
    assert memory.verdict == "regression"


def test_a_session_counts_as_much_with_one_repeat_as_with_two_equal_ones() -> None:
    others = [Pair(str(n), "iteration_time", [1.0, 1.01 + 0.001 * n], [1.0, 1.02], ([1, 2], [1, 2])) for n in range(3)]
    single = Pair("a", "iteration_time", [1.0, 1.02], [1.2], ([1, 2], [1]))
    double = Pair("a", "iteration_time", [1.0, 1.02], [1.2, 1.2], ([1, 2], [1, 1]))
    by_one, by_two = (judge([pair, *others], TOLERANCE)[0].change for pair in (single, double))
    assert by_one.freedom == by_two.freedom
    assert (by_one.value, by_one.low, by_one.p_value) == (by_two.value, by_two.low, by_two.p_value)


def test_a_session_ends_with_a_pause_or_at_another_node() -> None:
    def run(host: str, start: str, end: str) -> RunRecord:
        return on({"name": host}, start=start, end=end)

    old = {"a": run("n1", "10:00", "12:00"), "b": run("n1", "12:30", "12:40")}
    old |= {"c": run("n2", "12:30", "12:40"), "d": make_run()}
    new = {"e": run("n1", "13:30", "13:40"), "f": run("n1", "14:50", "15:00")}
    before, after = sessions_of([old, new])
    assert before["a"] == before["b"] == after["e"]
    assert len({before["a"], before["c"], after["f"]}) == 3 and "d" not in before


def on(*hosts: dict[str, str], start: str = "10:00", end: str = "10:10") -> RunRecord:
    """Return the record of a run on these nodes, at these hours of one day."""
    return make_run(
        started=f"2026-11-22T{start}:00+00:00",
        ended=f"2026-11-22T{end}:00+00:00",
        host=hosts[0],
        nodes=[{"host": host} for host in hosts] if len(hosts) > 1 else None,
    )


def test_a_run_that_ends_while_another_goes_on_does_not_end_the_session() -> None:
    node = {"name": "n1"}
    runs = {"long": on(node, end="14:00"), "short": on(node, start="10:30", end="10:40")}  # on other GPUs of the node
    runs |= {"next": on(node, start="14:10", end="14:20")}
    [sessions] = sessions_of([runs])
    assert len(set(sessions.values())) == 1


def test_machines_are_known_by_their_digests_else_by_names_that_are_no_numbers_of_an_archive() -> None:
    def is_one_session(one: RunRecord, other: RunRecord) -> bool:
        sessions, other_sessions = sessions_of([{"a": one}, {"b": other}])
        return sessions["a"] == other_sessions["b"]

    first = {"name": "n1", "machine_digest": "1" * 32}
    assert is_one_session(on(first), on(first | {"name": "host-1"}))
    assert not is_one_session(on(first), on(first | {"machine_digest": "2" * 32}))
    assert is_one_session(on({"name": "n1"}), on({"name": "n1"}))
    # The host of an archive without digests, and of a record without a host.
    for unknown in ({"name": "host-1"}, {}):
        assert not is_one_session(on(unknown), on(unknown))
        [sessions] = sessions_of([{"a": on(unknown), "b": on(unknown)}])
        assert sessions["a"] == sessions["b"]
    # A job on two nodes is not in the session of one on the first of them and on a third.
    second, third = ({"name": name, "machine_digest": digit * 32} for name, digit in (("n2", "2"), ("n3", "3")))
    assert is_one_session(on(first, second), on(second, first))
    assert not is_one_session(on(first, second), on(first, third))


@pytest.mark.slow
def test_families_without_a_regression_rarely_show_one() -> None:
    rng = np.random.default_rng(6)
    families, wrong = 100, 0
    for _ in range(families):
        old, new = np.exp(rng.normal(0, 0.02, (2, 20, 3)))
        # The largest change that is none: fewer are wrong where less changed.
        wrong += "regression" in reported(old, new * (1 + TOLERANCE), together=True)
    assert binom.sf(wrong - 1, families, 0.05) > 1e-3
