"""Tables of predictions of series, and of how predictions of measured runs turned out. Column names state units."""

from collections.abc import Sequence
from statistics import median

import pandas as pd

from multicard.answers.scaling.prediction import PredictionCheck
from multicard.answers.scaling.series import Series
from multicard.core.text import counted, listed
from multicard.core.values import Row
from multicard.stats.interval import interval_columns

ABOUT = ("configuration", "machine", "versions", "device", "devices")
PREDICTED = (
    *ABOUT, "step_time_s", "step_time_s_low", "step_time_s_high", "throughput_per_s", "throughput_per_s_low",
    "throughput_per_s_high", "speedup", "speedup_low", "speedup_high", "measured", "caveats", "reason",
)  # fmt: skip
CHECKED = (*ABOUT, "predicted_s", "predicted_s_low", "predicted_s_high", "measured_s", "prediction_error", "inside")


def predictions_table(all_series: Sequence[Series], devices: Sequence[int]) -> pd.DataFrame:
    """Return the columns `PREDICTED`: a row for each series and number of devices.

    `measured` lists the numbers of devices that a prediction is made from. If nothing is predicted, `reason` says why.
    """
    rows = []
    for series in all_series:
        for count in devices:
            predicted = series.forecast(count)
            rows.append(
                _about(series, count)
                | interval_columns("step_time_s", predicted.step_s)
                | interval_columns("throughput_per_s", predicted.throughput)
                | interval_columns("speedup", predicted.speedup)
                | {
                    "measured": listed([str(number) for number in predicted.measured]),
                    "caveats": "; ".join(predicted.caveats),
                    "reason": predicted.reason,
                }
            )
    return pd.DataFrame(rows, columns=PREDICTED)


def checks_table(all_series: Sequence[Series]) -> pd.DataFrame:
    """Return the columns `CHECKED`: a row for each measured number of devices that smaller numbers can predict."""
    rows = []
    for series in all_series:
        for check in series.checks:
            if check.predicted.step_s is not None:
                rows.append(
                    _about(series, check.predicted.devices)
                    | interval_columns("predicted_s", check.predicted.step_s)
                    | {
                        "measured_s": check.measured.value,
                        "prediction_error": check.error,
                        "inside": check.inside,
                    }
                )
    return pd.DataFrame(rows, columns=CHECKED)


def checked_line(checks: Sequence[PredictionCheck]) -> str:
    """Return a sentence on how far predictions of measured runs were off, and how often their intervals held."""
    errors = [abs(check.error) for check in checks if check.error is not None]
    if not errors:
        return "Never checked on this machine: no number of devices was measured that smaller ones predict."
    inside = sum(bool(check.inside) for check in checks)
    return (
        f"Checked on this machine: {counted(len(errors), 'prediction')} of measured runs, error "
        f"{100 * median(errors):.1f}% in the median, {100 * max(errors):.1f}% at most, the measured time inside the "
        f"interval in {inside} of {len(errors)}."
    )


def _about(series: Series, devices: int) -> Row:
    """Return the columns `ABOUT`."""
    provenance = series.largest.provenance
    return {
        "configuration": series.words,
        "machine": provenance.machine or "machine unknown",
        "versions": provenance.software or "versions unknown",
        "device": series.largest["device"],
        "devices": devices,
    }
