"""Records of the recommendations for each job, from which templates make recommendations.md and the report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from multicard.answers.answer import NO_THROUGHPUT, WHERE, Answer
from multicard.answers.choice.combination import Combination

# recommendations.md begins with the answers for at most this many jobs. The others follow only if it is verbose.
MOST_JOBS = 2


class BottleneckAdvice(NamedTuple):
    """A bottleneck of a job in words, with the options against it."""

    kind: str
    evidence: str
    options: list[str]  # to be tried; in Markdown, as `tried`; all other texts are plain
    bound: str  # how much faster the job is without it: as measured, else as estimated; empty if neither is known
    measured: str = ""  # what it costs; empty unless a measurement shows a cost
    # How many times as fast the job is without it at most: as measured, if a cost is shown, else as estimated; None if
    # neither is known.
    gain: float | None = None
    # Options that runs have tried, each with its result.
    tried: Sequence[str] = ()


class Tile(NamedTuple):
    """A number with its title. A few tiles at the top of a page sum up a job."""

    title: str
    value: str
    notes: str = ""


class WordTable(NamedTuple):
    """A table of words: its headings, and rows with a cell for each heading."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class JobAdvice:
    """The recommendations for a job on one machine. Made by `recommend.advise`."""

    name: str
    about: str  # name of the configuration whose step the advice is about
    # For each question that comparing choices answers, a tuple of answers, the main one first. The questions are how
    # many devices, what grew in their steps, which configuration, and what a change of the training gains. A tuple may
    # be empty.
    compared: tuple[tuple[Answer, ...], ...] = ()
    # Answers to other questions: what parts of the step cost, where the step goes, what to try, how sure that is.
    others: tuple[Answer, ...] = ()
    # What grew in the step of the fastest choice on several devices, also if it is not shown to have grown; None if it
    # is not known. If it is shown, it is in `compared`, too.
    grew: Answer | None = None
    # What to try first. Where this is fewer devices, what may make more of them worth it is told with it.
    first_trial: Answer | None = None
    # The combination of two measured gains that was not run; None if there is none. It is among `others`, too.
    combination: Combination | None = None
    tiles: list[Tile] = field(default_factory=list)
    table: WordTable = field(default_factory=lambda: WordTable([], []))  # a row for each choice
    # Each configuration without a completed run, with the outcomes of its runs.
    lost: list[str] = field(default_factory=list)
    parts: list[BottleneckAdvice] = field(default_factory=list)  # bottlenecks of the configuration `about`

    @property
    def answers(self) -> list[Answer]:
        """All answers, those of the first screen first."""
        return [*self.first_screen, *self.more]

    @property
    def first_screen(self) -> list[Answer]:
        """The first answer to each question in `compared`, then all of `others`."""
        return [*self._first_compared, *self.others]

    @property
    def more(self) -> list[Answer]:
        """The answers in `compared` that the first screen leaves out: to each question all but the first."""
        return [answer for answers in self.compared for answer in answers[1:]]

    @property
    def step(self) -> str:
        """The sentence that says where the step goes; empty if there is none."""
        return next((answer.sentence for answer in self.others if answer.question == WHERE), "")

    @property
    def sentences(self) -> list[str]:
        """The first answers to the questions in `compared`, as sentences.

        Answers that are not known are left out, unless none is known. If no run shows its throughput, the only sentence
        is the one that says where the step goes.
        """
        if self.step and all(answer.sentence == NO_THROUGHPUT for answer in self._first_compared):
            return [f"{self.step}."]
        known = [answer for answer in self._first_compared if answer.is_known]
        return [answer.full_sentence for answer in known or self._first_compared]

    @property
    def brief(self) -> list[Answer]:
        """The three answers that sum up the job: what was compared, what grew or else where the step goes, what to try.

        An answer that does not exist is left out.
        """
        main = next(iter(self._first_compared), None)
        where = next((answer for answer in self.others if answer.question == WHERE), None)
        return [answer for answer in (main, self.grew or where, self.first_trial) if answer is not None]

    @property
    def _first_compared(self) -> list[Answer]:
        return [answers[0] for answers in self.compared if answers]


@dataclass(frozen=True)
class Recommendations:
    """The recommendations for each job, and notes that hold for all jobs.

    Jobs that have speed-ups come first. Among these, and among the others, jobs with more completed runs come first.
    """

    jobs: list[JobAdvice]
    notes: list[str]

    @property
    def shown(self) -> list[JobAdvice]:
        """The first `MOST_JOBS` jobs."""
        return self.jobs[:MOST_JOBS]
