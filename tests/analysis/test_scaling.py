"""Speed-up, efficiency and spreads against values worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from multicard.analysis.measures import MEASURES
from multicard.analysis.scaling import add_scaling, over_repeats
from multicard.experiment.vision_parameters import VisionParameters
from multicard.experiment.workloads import PARAMETERS


def measures(*rows: dict[str, Any]) -> pd.DataFrame:
    """Synthetic measures: `throughput` and parameters given, the rest defaults or empty."""
    filled = []
    for row in rows:
        row = dict(row)
        known = {"outcome": row.pop("outcome", "completed"), "throughput_samples_per_s": row.pop("throughput", None)}
        parameters = VisionParameters(device="cpu", **row).model_dump()
        filled.append({"run": "r", "reason": None, **parameters, **dict.fromkeys(MEASURES), **known})
    return pd.DataFrame(filled, columns=["run", "outcome", "reason", *PARAMETERS, *MEASURES])


def test_speedup_is_over_the_single_strategy_where_there_is_one() -> None:
    scaled = add_scaling(
        measures(
            {"strategy": "single", "devices": 1, "throughput": 100.0},
            {"strategy": "ddp-ds", "devices": 1, "throughput": 80.0},
            {"strategy": "ddp-ds", "devices": 4, "throughput": 300.0},
        )
    )
    assert scaled["speedup"].tolist() == pytest.approx([1.0, 0.8, 3.0])
    assert scaled["efficiency"].tolist() == pytest.approx([1.0, 0.8, 0.75])
    assert set(scaled["baseline"]) == {"single, 1 device"}


def test_without_it_one_device_of_the_same_strategy_is_the_baseline() -> None:
    scaled = add_scaling(
        measures(
            {"strategy": "ddp", "devices": 1, "throughput": 50.0},
            {"strategy": "ddp", "devices": 2, "throughput": 75.0},
        )
    )
    assert scaled["speedup"].tolist() == pytest.approx([1.0, 1.5])
    assert set(scaled["baseline"]) == {"ddp, 1 device"}


def test_the_baseline_has_the_same_other_parameters_and_is_the_median_of_its_repeats() -> None:
    small = [
        {"strategy": "ddp", "image_size": 32, "repeat": i + 1, "throughput": t}
        for i, t in enumerate([10.0, 20.0, 90.0])
    ]
    large = [{"strategy": "ddp", "image_size": 64, "throughput": 5.0}]
    two = [{"strategy": "ddp", "image_size": size, "devices": 2, "throughput": 30.0} for size in (32, 64)]
    scaled = add_scaling(measures(*small, *large, *two))
    assert scaled["speedup"].tolist()[-2:] == pytest.approx([30 / 20, 30 / 5])


def test_without_a_baseline_there_is_no_speedup() -> None:
    scaled = add_scaling(
        measures(
            {"strategy": "ddp", "devices": 1, "outcome": "out_of_memory"},
            {"strategy": "ddp", "devices": 2, "throughput": 30.0},
        )
    )
    assert scaled["speedup"].isna().all()
    assert scaled["efficiency"].isna().all()


def test_a_spread_is_median_and_range_of_the_completed_repeats() -> None:
    rows = [{"repeat": i + 1, "throughput": t} for i, t in enumerate([4.0, 1.0, 2.0])]
    spread = over_repeats(measures(*rows, {"repeat": 4, "outcome": "failed"}), ["throughput_samples_per_s"])
    [row] = spread.to_dict("records")
    assert row["repeats"] == 3
    assert [row[f"throughput_samples_per_s{end}"] for end in ("", "_low", "_high")] == [2.0, 1.0, 4.0]


def test_an_empty_scenario_stays_empty() -> None:
    assert add_scaling(measures()).empty
