"""The measures that only image-classification runs have."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from multicard.workloads.vision.parameters import VisionParameters

ACCURACY = 0.98  # the goal that the papers set

MEASURES: dict[str, str] = {
    "time_to_accuracy_s": f"training time, without tests, to the end of the first epoch with {ACCURACY:.0%} of test "
    "accuracy",
    "test_loss": "after the last epoch",
    "test_accuracy": "after the last epoch",
}


def measure(record: Mapping[str, Any], epochs: pd.DataFrame, iteration_s: float) -> dict[str, Any]:
    """Throughput by the batch that is the same in all steps, and the results of the tests after each epoch."""
    p = VisionParameters.model_validate(record["parameters"])
    return {
        "throughput_samples_per_s": p.distinct_samples_of_step / iteration_s,
        "processed_samples_per_s": p.samples_of_step / iteration_s,
        "time_to_accuracy_s": time_to_accuracy(epochs),
        "test_loss": epochs["test_loss"].iloc[-1],
        "test_accuracy": epochs["test_accuracy"].iloc[-1],
    }


def time_to_accuracy(epochs: pd.DataFrame) -> float | None:
    """Seconds of training to the end of the first epoch that reaches `ACCURACY`; None when none does."""
    reached = epochs["test_accuracy"] >= ACCURACY
    return float(epochs["epoch_time_s"].cumsum()[reached].iloc[0]) if reached.any() else None
