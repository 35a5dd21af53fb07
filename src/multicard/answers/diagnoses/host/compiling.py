"""Diagnosis of code that torch.compile cannot compile as a whole."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.text import counted
from multicard.runs.record import TrainingSetup

# A few are usual, as where a script logs its loss.
_MANY = 5


def diagnoses(setup: TrainingSetup) -> Iterator[Diagnosis]:
    """Yield that torch.compile had to leave its graphs, if it had to often."""
    if setup.is_compiled and setup.graph_breaks and setup.graph_breaks >= _MANY:
        evidence = f"`torch.compile` had to leave its graph {counted(setup.graph_breaks, 'time')} while it compiled"
        yield Diagnosis(
            evidence, "code that compiles as a whole; `TORCH_LOGS=graph_breaks` shows where it does not", None
        )
