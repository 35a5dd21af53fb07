"""`Answer`: the answer to a question about results. All places that show it show the same one."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from multicard.core.values import Cell

# Labels that stand for the questions.
HOW_MANY, GREW, WHICH, CHANGE = "How many devices", "What grew", "Which configuration", "If you may change"
COSTS = "What parts cost, measured"
HOW_LONG, WHERE, HOW_SURE = "How long a step takes", "Where the step goes", "How sure"
NEXT, TRIED = "Try next", "Tried already"

# Sentences of answers that are not known begin with this.
NOT_KNOWN = "not known"
NO_THROUGHPUT = f"{NOT_KNOWN}: no completed run says its throughput"


@dataclass(frozen=True)
class Answer:
    """A question, its answer in one sentence, and the numbers that the answer rests on.

    The module that is about the question makes it. The console, recommendations.md, the report and notebooks show it.
    Texts are plain, may contain text from files, and end without a full stop.
    """

    question: str
    sentence: str
    # The numbers: a row for each configuration or part that the sentence is about. Names of columns state units.
    rows: tuple[Mapping[str, Cell], ...] = ()
    # What could change the answer.
    caveats: tuple[str, ...] = ()
    # Name of the figure that shows the numbers; None if there is none.
    figure: str | None = None

    @property
    def is_known(self) -> bool:
        """False if the sentence says why there is no answer."""
        return not self.sentence.startswith(NOT_KNOWN)

    @property
    def full_sentence(self) -> str:
        """The sentence with a capital and a full stop, so that it can stand without the question.

        The sentence of `CHANGE` needs its question, so it begins with it.
        """
        text = f"{self.question} {self.sentence}" if self.question == CHANGE else self.sentence
        return f"{text[:1].upper()}{text[1:]}."

    def table(self) -> pd.DataFrame:
        """Return the rows as a table."""
        return pd.DataFrame([dict(row) for row in self.rows])

    def __str__(self) -> str:
        return f"{self.question}: {self.sentence}"
