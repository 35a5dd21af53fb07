"""The measures that only runs of scripts have."""

from collections.abc import Mapping
from typing import Any

MEASURES: dict[str, str] = {"steps_per_s": "1 / iteration_time_s: the throughput in steps, where samples are not known"}


def measure(common: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of one completed run, from those of every workload."""
    return {"steps_per_s": 1 / common["iteration_time_s"]}
