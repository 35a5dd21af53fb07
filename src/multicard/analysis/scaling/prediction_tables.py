"""Predictions and their checks as tables, with units in the names of columns."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from multicard.analysis.scaling.prediction_series import Series
from multicard.analysis.statistics import Interval
from multicard.core.text import listed

ENDS = ("", "_low", "_high")
ABOUT = ("configuration", "machine", "versions", "device", "devices", "nodes")
PREDICTED = (
    *ABOUT, *(f"{name}{end}" for name in ("step_time_s", "throughput_per_s", "speedup") for end in ENDS), "efficiency",
    "memory_bytes", "bound", "measured", "caveats", "reason",
)  # fmt: skip
CHECKED = (*ABOUT, *(f"predicted_s{end}" for end in ENDS), "measured_s", "prediction_error", "inside", "reason")


def predictions_table(found: Sequence[Series], devices: Sequence[int], nodes: int = 1) -> pd.DataFrame:
    """A row for each series and number of devices; `reason` where nothing is predicted."""
    rows: list[dict[str, Any]] = []
    for each in found:
        for count in devices:
            forecast = each.forecast(count, nodes)
            predicted = forecast.prediction
            rows.append(
                _about(each, count, nodes)
                | _ends("step_time_s", predicted.step_s)
                | _ends("throughput_per_s", forecast.throughput)
                | _ends("speedup", forecast.speedup)
                | {
                    "efficiency": forecast.efficiency.value if forecast.efficiency else None,
                    "memory_bytes": forecast.memory_bytes,
                    "bound": predicted.bound,
                    "measured": listed([str(each) for each in forecast.measured]),
                    "caveats": "; ".join(predicted.caveats),
                    "reason": predicted.reason,
                }
            )
    return pd.DataFrame(rows, columns=PREDICTED)


def checks_table(found: Sequence[Series]) -> pd.DataFrame:
    """A row for each measured number of devices that smaller ones may predict; `reason` where they do not."""
    rows: list[dict[str, Any]] = []
    for each in found:
        for devices, nodes, check in each.checks:
            rows.append(
                _about(each, devices, nodes)
                | _ends("predicted_s", check.predicted.step_s)
                | {
                    "measured_s": check.measured.value,
                    "prediction_error": check.error,
                    "inside": check.inside,
                    "reason": check.predicted.reason,
                }
            )
    return pd.DataFrame(rows, columns=CHECKED)


def _about(each: Series, devices: int, nodes: int) -> dict[str, Any]:
    place = each.of.provenance
    where = {"machine": place.machine or "machine unknown", "versions": place.software or "versions unknown"}
    return {"configuration": each.words, **where, "device": each.of["device"], "devices": devices, "nodes": nodes}


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {f"{name}{end}": getattr(interval, end[1:] or "value", None) for end in ENDS}
