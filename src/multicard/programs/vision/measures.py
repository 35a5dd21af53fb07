"""The measures that only image-classification runs have."""

from typing import TYPE_CHECKING

from multicard.core.values import Row
from multicard.programs.program import OwnMeasures
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.measures import SECONDS, SHARE, Definition, Measures
from multicard.runs.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

# Share of test images that are classified correctly, at or above which `time_to_accuracy_s` counts the goal as reached.
# The papers set this goal.
ACCURACY = 0.98

MEASURES: dict[str, Definition] = {
    "time_to_accuracy_s": Definition(
        f"Training time, without evaluation, to the end of the first epoch that reaches {ACCURACY:.0%} test accuracy; "
        "empty if none does.",
        SECONDS,
    ),
    "test_loss": Definition("Loss on the test images after the last epoch."),
    "test_accuracy": Definition(
        "Share of test images that are classified correctly after the last epoch.", SHARE, target=ACCURACY
    ),
}


def _measure(record: RunRecord, common: Measures, steps: "pd.DataFrame", epochs: "pd.DataFrame") -> Row:
    """Return the measures of one run by its table of epochs; raise `ValueError` if the table has no row."""
    if epochs.empty:
        raise ValueError("found no epoch in epochs.csv")
    return {
        "time_to_accuracy_s": time_to_accuracy(epochs),
        "test_loss": epochs["test_loss"].iloc[-1],
        "test_accuracy": epochs["test_accuracy"].iloc[-1],
    }


def time_to_accuracy(epochs: "pd.DataFrame") -> float | None:
    """Return the seconds of training until the end of the first epoch that reaches `ACCURACY`; None if none does."""
    reached = epochs["test_accuracy"] >= ACCURACY
    return float(epochs["epoch_time_s"].cumsum()[reached].iloc[0]) if reached.any() else None


def _distinct_share(record: RunRecord) -> float:
    """Return the share of distinct samples: 1 / ranks where each rank iterates over all the data, else 1."""
    p = record.parameters
    assert isinstance(p, VisionParameters)
    return p.distinct_samples_of_step / p.samples_of_step


VISION_MEASURES = OwnMeasures(MEASURES, _measure, _distinct_share)
