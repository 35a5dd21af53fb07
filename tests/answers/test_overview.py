"""A scenario at a glance, of synthetic runs whose numbers follow from the ones stated here."""

from pathlib import Path
from typing import Any

import pytest

from factories import write_results
from multicard.answers.overview import overview
from multicard.results.results import Results


def row(devices: int, image_size: int, seconds: float, **others: Any) -> dict[str, Any]:
    """A run of steps so long, with eight images per device."""
    stated = {"workload": "vision", "dataset": "mnist", "strategy": "ddp-ds", "device": "cuda", "batch_size": 8}
    stated |= {"devices": devices, "image_size": image_size}
    measured = {"iteration_time_s": seconds, "throughput_samples_per_s": 8 * devices / seconds, "data_share": 0.25}
    return stated | measured | {"peak_memory_bytes": 2_000_000_000} | others


def tables(folder: Path, *rows: dict[str, Any], **others: Any) -> Results:
    return Results.read_scenario(write_results(folder, rows, **others) / "scenarios" / "s0")


def test_each_configuration_has_a_row_with_its_measures(tmp_path: Path) -> None:
    # Of 10 s of each of the two GPUs of the second run 3 s are communication alone; a quarter of a step is a wait.
    seconds = {"span_s": 10.0, "busy_s": 9.0, "compute_s": 6.0, "communication_s": 4.0, "overlapped_s": 1.0}
    seconds |= {"exposed_communication_s": 3.0, "memory_s": 0.0, "idle_s": 1.0}
    timeline = [{"at": 1, "scope": "steps", "report": "", "process": n, "device": n, **seconds} for n in (0, 1)]
    rows = [row(1, 100, 0.1), row(2, 100, 0.125), row(1, 224, 0.4), row(2, 224, 0.4)]
    found = overview(tables(tmp_path, *rows, tables={"timeline": timeline}))
    assert found["exposed_communication_share"].isna().tolist() == [True, False, True, True]
    assert found["exposed_communication_share"].iloc[1] == pytest.approx(0.3 * 0.75)
    assert found[["devices", "image_size"]].to_numpy().tolist() == [[1, 100], [2, 100], [1, 224], [2, 224]]
    assert found["iteration_time_s"].tolist() == [0.1, 0.125, 0.4, 0.4]
    # 80/s on one, 128/s on two; 20/s and 40/s.
    assert found["speedup"].tolist() == pytest.approx([1, 1.6, 1, 2])
    assert found["efficiency"].tolist() == pytest.approx([1, 0.8, 1, 1])
    assert found["data_share"].tolist() == [0.25] * 4
    assert set(found["outcome"]) == {"completed"} and set(found["reason"]) == {""}
    assert found["iteration_time_s_low"].isna().all()


def test_what_did_not_complete_keeps_its_row_with_outcome_and_reason(tmp_path: Path) -> None:
    lost = {"outcome": "failed", "iteration_time_s": None, "throughput_samples_per_s": None, "data_share": None}
    folder = tmp_path / "results"
    rows = [row(1, 100, 0.1, repeat=1), row(1, 100, 0.1, repeat=2, **lost), row(2, 100, 0.1, repeat=1, **lost)]
    made = tables(folder, *rows)
    measures = made.measures
    measures["reason"] = [None, "rank 0: no such file", "rank 1: no such file"]
    measures.to_csv(made.scenarios[0].folder / "measures.csv", index=False)
    found = overview(Results.read_scenario(made.scenarios[0].folder))
    assert found["outcome"].tolist() == ["1 completed, 1 failed", "failed"]
    assert found["reason"].tolist() == ["rank 0: no such file", "rank 1: no such file"]
    assert found["iteration_time_s"].tolist()[0] == 0.1 and found["iteration_time_s"].isna().tolist() == [False, True]
