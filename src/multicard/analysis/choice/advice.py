"""What is recommended: answers for each job, of which templates make recommendations.md and the report."""

from dataclasses import dataclass, field
from typing import NamedTuple

from multicard.analysis.answer import NO_THROUGHPUT, WHERE, Answer

MOST_JOBS = 2  # that are shown at once


class Part(NamedTuple):
    """A bottleneck in words, and in Markdown what was not tried against it."""

    kind: str
    evidence: str
    options: list[str]
    bound: str  # how much is gained without it, at most or as measured
    measured: str = ""  # what it costs, if that was measured


class Tile(NamedTuple):
    """One of the numbers at the top of a page, which stand for a job."""

    title: str
    value: str
    notes: str = ""


class WordTable(NamedTuple):
    """Headings, and rows of words."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class JobAdvice:
    """What is recommended for a job on one machine. Made by `recommend.advise`."""

    name: str
    about: str  # the configuration that advice on the step is about
    # Answers to each question that runs were compared for, the first question first.
    compared: tuple[tuple[Answer, ...], ...] = ()
    # Answers that need no comparison: what parts cost, where the step goes, what to try, how sure that is.
    others: tuple[Answer, ...] = ()
    tiles: list[Tile] = field(default_factory=list)
    table: WordTable = field(default_factory=lambda: WordTable([], []))  # all choices
    lost: list[str] = field(default_factory=list)  # configurations of which no run completed
    parts: list[Part] = field(default_factory=list)  # the bottlenecks of the step

    @property
    def answers(self) -> list[Answer]:
        """All answers, those of the first screen first."""
        return [*self.first_screen, *self.more]

    @property
    def first_screen(self) -> list[Answer]:
        """The first answer to each question that runs were compared for, and the others."""
        return [*self._first_compared, *self.others]

    @property
    def more(self) -> list[Answer]:
        """Further answers to these questions, for which the first screen is too small."""
        return [answer for answers in self.compared for answer in answers[1:]]

    @property
    def step(self) -> str:
        """Where the step goes, in a sentence; empty where that is not known."""
        return next((answer.sentence for answer in self.others if answer.question == WHERE), "")

    @property
    def sentences(self) -> list[str]:
        """Sentences that answer what was compared; where there is nothing to compare, where the step goes."""
        if self.step and all(answer.sentence == NO_THROUGHPUT for answer in self._first_compared):
            return [f"{self.step}."]
        known = [answer for answer in self._first_compared if answer.is_known]
        return [answer.full_sentence for answer in known or self._first_compared]

    @property
    def _first_compared(self) -> list[Answer]:
        return [answers[0] for answers in self.compared if answers]


@dataclass(frozen=True)
class Recommendations:
    """What is recommended for each job, those with an answer first, and what holds for all of them."""

    jobs: list[JobAdvice]
    notes: list[str]

    @property
    def shown(self) -> list[JobAdvice]:
        """Jobs that are answered at once."""
        return self.jobs[:MOST_JOBS]
