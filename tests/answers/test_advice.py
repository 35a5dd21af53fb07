"""The order of what is recommended for a job, and which of it answers what was compared."""

from dataclasses import replace

import pytest

from multicard.answers.answer import CHANGE, GREW, HOW_MANY, NEXT, NO_THROUGHPUT, WHERE, WHICH, Answer
from multicard.answers.choice.advice import JobAdvice

TWICE = Answer(HOW_MANY, "2×")
UNKNOWN = Answer(HOW_MANY, "not known: one count")
WITHOUT_RATES = Answer(HOW_MANY, NO_THROUGHPUT)
FASTEST, OTHER_FASTEST = Answer(WHICH, "a"), Answer(WHICH, "b")
CHANGED = Answer(CHANGE, "c")
STEP = Answer(WHERE, "h")


def test_the_first_screen_has_one_answer_to_each_question_that_was_compared() -> None:
    trial = Answer(NEXT, "i")
    advice = JobAdvice("job", "about", ((TWICE,), (FASTEST, OTHER_FASTEST), (CHANGED,)), (STEP, trial))
    assert advice.first_screen == [TWICE, FASTEST, CHANGED, STEP, trial]
    assert advice.more == [OTHER_FASTEST]
    assert advice.answers == [*advice.first_screen, *advice.more]


def test_three_answers_sum_up_a_job() -> None:
    trial, grown = Answer(NEXT, "first, or second"), Answer(GREW, "not decided: more")
    advice = JobAdvice("job", "about", ((TWICE,), (FASTEST,)), (STEP, Answer(NEXT, "first")), first_trial=trial)
    assert advice.brief == [TWICE, STEP, trial]
    assert replace(advice, grew=grown).brief == [TWICE, grown, trial]
    assert JobAdvice("job", "about").brief == []


@pytest.mark.parametrize(
    ("compared", "others", "sentences"),
    [
        pytest.param(((TWICE,), (FASTEST, OTHER_FASTEST)), (), ["2×.", "A."], id="the first answer to each question"),
        pytest.param(((FASTEST,), (CHANGED,)), (), ["A.", "If you may change c."], id="a change is named as such"),
        pytest.param(((FASTEST,), (UNKNOWN,)), (), ["A."], id="an unknown answer is left out beside a known one"),
        pytest.param(((UNKNOWN,),), (STEP,), ["Not known: one count."], id="an unknown answer alone is told"),
        pytest.param(((WITHOUT_RATES,),), (STEP,), ["h."], id="without rates the step is the answer"),
        pytest.param(
            ((WITHOUT_RATES,),), (), ["Not known: no completed run says its throughput."], id="neither rates nor a step"
        ),
        pytest.param((), (STEP,), ["h."], id="with nothing compared the step is the answer"),
        pytest.param((), (), [], id="nothing is known"),
    ],
)
def test_sentences_answer_what_was_compared(
    compared: tuple[tuple[Answer, ...], ...], others: tuple[Answer, ...], sentences: list[str]
) -> None:
    assert JobAdvice("job", "about", compared, others).sentences == sentences
