"""`Answer`: what a question about results is answered with, wherever it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

# Questions, as labels.
HOW_MANY, WHICH, CHANGE = "How many devices", "Which configuration", "If you may change"
COSTS, HOST_WORK = "What parts cost, measured", "The host's work"
HOW_LONG, WHERE, NEXT, HOW_SURE = "How long a step takes", "Where the step goes", "Try next", "How sure"

NOT_KNOWN = "not known"
NO_THROUGHPUT = f"{NOT_KNOWN}: no completed run says its throughput"


@dataclass(frozen=True)
class Answer:
    """A question with its answer in one sentence, and the numbers that this rests on. Made by the question's module.

    The console, recommendations.md, the report and notebooks show the same one. Texts are plain, in part from files,
    and end without a full stop.
    """

    question: str
    sentence: str
    # The numbers, a row for each configuration or part that the sentence is about; names of columns state units.
    rows: tuple[Mapping[str, Any], ...] = ()
    # What could change the answer.
    caveats: tuple[str, ...] = ()
    # Name of the figure that shows the numbers, if there is one.
    figure: str | None = None

    @property
    def is_known(self) -> bool:
        """False where the sentence says why there is no answer."""
        return not self.sentence.startswith(NOT_KNOWN)

    @property
    def full_sentence(self) -> str:
        """The sentence as it stands alone, with a capital and a full stop."""
        text = f"{self.question} {self.sentence}" if self.question == CHANGE else self.sentence
        return f"{text[:1].upper()}{text[1:]}."

    def table(self) -> pd.DataFrame:
        """Return the rows as a table."""
        return pd.DataFrame([dict(row) for row in self.rows])

    def __str__(self) -> str:
        return f"{self.question}: {self.sentence}"
