"""The order of what is recommended for a job, and which of it is an answer."""

import pytest

from multicard.analysis.choice.advice import NO_THROUGHPUT, JobAdvice

HOW_MANY, WHICH, CHANGE = "How many devices", "Which configuration", "If you may change"


@pytest.mark.parametrize(
    ("has_speedups", "first", "more"),
    [
        (True, [HOW_MANY, WHICH, CHANGE], [WHICH, CHANGE, CHANGE]),
        (False, [WHICH, CHANGE, HOW_MANY], [WHICH, CHANGE, CHANGE]),
    ],
)
def test_the_number_of_devices_comes_first_where_it_was_varied(
    has_speedups: bool, first: list[str], more: list[str]
) -> None:
    advice = JobAdvice(
        "job", "about", has_speedups, how_many="2×", which=["a", "b"], changes=["c", "d", "e"],
        costs=["f"], unmeasured_host_work=["g"], step="h", next_steps=["i", "j"], doubt="k",
    )  # fmt: skip
    other = ["What parts cost, measured", "The host's work", "Where the step goes", "Try next", "Try next", "How sure"]
    assert [label for label, _ in advice.points] == first + other
    assert [label for label, _ in advice.more] == more
    assert [text for _, text in advice.other_points] == ["f", "g", "h", "i", "j", "k"]


@pytest.mark.parametrize(
    ("advice", "answers"),
    [
        (JobAdvice("job", "about", True, how_many="2×", which=["a", "b"]), ["2×.", "A."]),
        (JobAdvice("job", "about", which=["a"], changes=["c"]), ["A.", "If you may change c."]),
        # An unknown answer is left out beside a known one.
        (JobAdvice("job", "about", how_many="not known: one count", which=["a"]), ["A."]),
        (JobAdvice("job", "about", how_many="not known: one count", step="h"), ["Not known: one count."]),
        # Where no rate is known, the step is the answer.
        (JobAdvice("job", "about", how_many=NO_THROUGHPUT, step="h"), ["h."]),
        (JobAdvice("job", "about", step="h"), ["h."]),
        (JobAdvice("job", "about"), []),
    ],
)
def test_answers_are_those_to_what_was_compared(advice: JobAdvice, answers: list[str]) -> None:
    assert advice.answers == answers
