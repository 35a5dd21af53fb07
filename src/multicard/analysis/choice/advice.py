"""What is recommended, as records of plain words: recommendations.md and the report are made of these by templates."""

from dataclasses import dataclass, field
from typing import NamedTuple

MOST_JOBS = 2  # that are shown at once
HOW_MANY, WHICH, CHANGE = "How many devices", "Which configuration", "If you may change"
NOT_KNOWN = "not known"
NO_THROUGHPUT = f"{NOT_KNOWN}: no completed run says its throughput"


class Point(NamedTuple):
    """A sentence of advice, without a point at its end, under a label."""

    label: str
    text: str


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
    """What is recommended for a job on one machine. Made by `recommend.advise`; texts are empty where nothing is known.

    `points` and `more` have all sentences in the order in which they are shown.
    """

    name: str
    about: str  # the configuration that advice on the step is about
    has_speedups: bool = False  # whether the number of devices was varied, which is then the first question
    how_many: str = ""  # how much faster more devices are
    which: list[str] = field(default_factory=list)  # the fastest configuration, on each number of devices
    changes: list[str] = field(default_factory=list)  # what is gained by changing what is learned
    costs: list[str] = field(default_factory=list)  # what parts of the step cost, measured
    unmeasured_host_work: list[str] = field(default_factory=list)  # why the cost of the host's work was not measured
    step: str = ""  # the largest part of the step
    next_steps: list[str] = field(default_factory=list)  # what to try
    doubt: str = ""  # what could change the answers
    tiles: list[Tile] = field(default_factory=list)
    table: WordTable = field(default_factory=lambda: WordTable([], []))  # all choices
    lost: list[str] = field(default_factory=list)  # configurations of which no run completed
    parts: list[Part] = field(default_factory=list)  # the bottlenecks of the step

    @property
    def points(self) -> list[Point]:
        """The points of a first screen, the answers first."""
        return [*self.answer_points, *self.other_points]

    @property
    def more(self) -> list[Point]:
        """Further answers, for which the first screen is too small."""
        return [point for points in self._answers_by_question() for point in points[1:]]

    @property
    def answer_points(self) -> list[Point]:
        """The first answer to each question that runs were compared for."""
        return [points[0] for points in self._answers_by_question() if points]

    @property
    def other_points(self) -> list[Point]:
        """The points of the first screen that are no answers: where the step goes, what to try, how sure that is."""
        return [
            *(Point("What parts cost, measured", text) for text in self.costs),
            *(Point("The host's work", text) for text in self.unmeasured_host_work),
            *(Point("Where the step goes", text) for text in [self.step] if text),
            *(Point("Try next", text) for text in self.next_steps),
            *(Point("How sure", text) for text in [self.doubt] if text),
        ]

    @property
    def answers(self) -> list[str]:
        """Sentences that answer what was compared; where there is nothing to compare, where the step goes."""
        points = self.answer_points
        if self.step and all(point.text == NO_THROUGHPUT for point in points):
            return [f"{self.step}."]
        known = [point for point in points if not point.text.startswith(NOT_KNOWN)]
        texts = [f"{label} {text}" if label == CHANGE else text for label, text in known or points]
        return [f"{text[:1].upper()}{text[1:]}." for text in texts]

    def _answers_by_question(self) -> list[list[Point]]:
        how_many = [Point(HOW_MANY, self.how_many)] if self.how_many else []
        which = [Point(WHICH, text) for text in self.which]
        changes = [Point(CHANGE, text) for text in self.changes]
        return [how_many, which, changes] if self.has_speedups else [which, changes, how_many]


@dataclass(frozen=True)
class Recommendations:
    """What is recommended for each job, those with an answer first, and what holds for all of them."""

    jobs: list[JobAdvice]
    notes: list[str]

    @property
    def shown(self) -> list[JobAdvice]:
        """Jobs that are answered at once."""
        return self.jobs[:MOST_JOBS]
