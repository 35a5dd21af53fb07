"""The table of speed-ups has the parameters that vary and the numbers that the measures imply."""

from typing import Any

import pandas as pd
import pytest

from multicard.analysis.runs.measures import MEASURES_OF, runs_table
from multicard.analysis.scaling.speedup import add_scaling, over_repeats, speedup_table
from multicard.workloads.vision.parameters import VisionParameters


def measures(*rows: dict[str, Any]) -> pd.DataFrame:
    """Synthetic measures of runs, with speed-up: parameters and measures given, the rest defaults or empty."""
    filled = []
    for row in rows:
        given = {name: value for name, value in row.items() if name in VisionParameters.model_fields}
        parameters = VisionParameters.model_validate({"device": "cpu", **given}).model_dump()
        known = {name: value for name, value in row.items() if name not in given}
        empty = dict.fromkeys(MEASURES_OF["vision"])
        filled.append({"run": "r", "outcome": "completed", "reason": None, **parameters, **empty, **known})
    return add_scaling(pd.DataFrame(filled))


def synthetic() -> pd.DataFrame:
    """One strategy on one, two and four devices, three repeats on one and two."""
    rows = [
        {
            "strategy": "ddp-ds", "devices": devices, "repeat": repeat, "iteration_time_s": seconds,
            "throughput_samples_per_s": 64 * devices / seconds, "peak_memory_bytes": 1_500_000_000, "data_share": 0.125,
        }
        for devices, times in ((1, (0.100, 0.104, 0.098)), (2, (0.110, 0.112, 0.111)), (4, (0.130,)))
        for repeat, seconds in enumerate(times, 1)
    ]  # fmt: skip
    return measures(*rows)


def test_measures_over_repeats_have_means_and_intervals_of_each_configuration() -> None:
    one, two, four = over_repeats(synthetic(), ["iteration_time_s", "data_share", "speedup"]).to_dict("records")
    ends = ("iteration_time_s", "iteration_time_s_low", "iteration_time_s_high")
    assert [one[name] for name in ends] == pytest.approx([0.1006, 0.0934, 0.1085], abs=1e-3)
    # Two configurations with repeats have each its own scatter: log 0.1006 ± 4.30 × 0.0303 / √3.
    # 2 × 100 / 110, 2 × 104 / 112 and 2 × 98 / 111: logarithms 0.598, 0.619 and 0.569, so 0.595 ± 4.30 × 0.0145.
    assert [two[f"speedup{end}"] for end in ("", "_low", "_high")] == pytest.approx([1.81, 1.70, 1.93], abs=5e-3)
    # 4 × 100 / 130, by the one repeat that both have.
    assert (four["repeats"], four["speedup"], four["data_share"]) == (1, pytest.approx(3.077, abs=1e-3), 0.125)
    assert pd.isna(four["speedup_low"])


def test_rows_are_labelled_by_what_varies_and_not_by_what_a_preset_brings() -> None:
    rows = [
        {"strategy": "ddp-ds", "preset": preset, "image_size": size, "throughput_samples_per_s": 1.0}
        for preset in ("paper", "tuned")
        for size in (32, 64)
    ]
    table = speedup_table(measures(*rows))
    assert list(table)[:5] == ["image_size", "preset", "devices", "scaling", "repeats"]


def test_the_table_of_speedups_has_scaling_and_baseline() -> None:
    _, two, _ = speedup_table(synthetic()).to_dict("records")
    assert (two["scaling"], two["baseline"]) == ("weak", "ddp-ds, 1 device")
    assert two["speedup"] == pytest.approx(1.81, abs=5e-3)
    none = speedup_table(add_scaling(runs_table([])))
    assert none.empty and "speedup" in none
