"""The measures that only runs of scripts have."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

MEASURES: dict[str, str] = {
    "steps_per_s": "1 / iteration_time_s: the throughput in steps, where samples are not known",
    "distinct_share": "part of the samples of a step that are distinct: less than 1 where the loaders of several ranks "
    "draw the same ones, empty where that is not known",
    "measured_passes": "passes over the data that the measured window spans",
    "steps_per_pass": "steps of one pass over the data",
}


def measure(record: Mapping[str, Any], common: Mapping[str, Any], steps: pd.DataFrame) -> dict[str, Any]:
    """Measures of one completed run from its record, the measures of every workload and its steps."""
    measured = steps[steps["window"] == "measured"]
    return {
        "steps_per_s": 1 / common["iteration_time_s"],
        "distinct_share": distinct_share(record),
        "measured_passes": measured["epoch"].nunique(),
        "steps_per_pass": record.get("steps_per_pass"),
    }


def distinct_share(record: Mapping[str, Any]) -> float | None:
    """Part of the samples of a step that are distinct; None where that is not known.

    One rank, and a stated number of samples per step, have no others. Of several ranks each says of its loaders whether
    they draw samples that no other rank draws.
    """
    ranks = record.get("ranks") or []
    if len(ranks) == 1 or record["parameters"].get("samples_per_step") is not None:
        return 1.0
    said = [loader.get("distinct") for rank in ranks for loader in (rank.get("observed") or {}).get("loaders") or []]
    if False in said:
        return 1 / len(ranks)
    return 1.0 if said and all(said) else None
