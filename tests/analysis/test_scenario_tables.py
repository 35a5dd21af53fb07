"""Tables of a scenario, from the directories of its runs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.analysis.scenario_tables import SCHEMAS, ScenarioTables, joined, store, tables_of
from multicard.core.errors import UserError
from multicard.core.files import write_csv, write_json
from multicard.core.layout import EPOCH_COLUMNS, SCENARIO_TABLES, STEP_COLUMNS
from multicard.trace.tables import ACTIVITIES

STEP = {"report": "r", "process": 7, "phase": "step", "step": 1, "start_s": 0.0, "duration_s": 0.1}


def run(folder: Path, outcome: str = "completed", calls: int = 2, steps: int = 3) -> Path:
    """Write a synthetic run: steps of one rank, and as many CUDA functions as `calls`."""
    record = {
        "run": folder.name,
        "outcome": outcome,
        "parameters": {"workload": "vision"},
        "profiler": {"used": "nsys", "trace_missing": None},
        "hardware": {"gpus": [{"name": "GPU"}, {"name": "GPU"}], "processor": "CPU", "logical_cpus": 8},
        "versions": {"torch": "2.11.0", "nccl": None},
        "variables": {"NCCL_ALGO": "Ring"},
    }
    write_json(folder / "run.json", record)
    rows = [{"rank": 0, "epoch": 1, "step": i, "window": "measured", "duration_s": 0.5} for i in range(1, steps + 1)]
    write_csv(folder / "steps.csv", STEP_COLUMNS, rows)
    write_csv(folder / "epochs.csv", EPOCH_COLUMNS, [{"epoch": 1, "test_accuracy": 0.9}])
    functions = [{"report": "r", "process": 7, "function": f"cuda{i}", "total_s": 0.1} for i in range(calls)]
    tables: dict[str, list[dict[str, Any]]] = {"cuda_api": functions, "phases": [STEP, STEP | {"step": 2}]}
    (folder / "activity").mkdir()
    for name, activity in ACTIVITIES.items():
        pq.write_table(
            pa.Table.from_pylist(tables.get(name, []), activity.schema), folder / "activity" / f"{name}.parquet"
        )
    return folder


def scenario(folder: Path, *runs: Path) -> ScenarioTables:
    """Gather runs, and read what that left."""
    store(joined(map(tables_of, runs)), folder)
    return ScenarioTables(folder)


def test_rows_of_all_completed_runs_are_in_one_table_that_names_the_run(tmp_path: Path) -> None:
    runs = run(tmp_path / "a", calls=1), run(tmp_path / "b", outcome="failed"), run(tmp_path / "c", calls=2)
    found = scenario(tmp_path / "s", *runs)
    calls = found.table("cuda_api")
    assert calls.columns.tolist() == ["run", *ACTIVITIES["cuda_api"].schema.names]
    assert list(zip(calls["run"], calls["function"], strict=True)) == [("a", "cuda0"), ("c", "cuda0"), ("c", "cuda1")]
    assert found.table("steps")["run"].value_counts().to_dict() == {"a": 3, "c": 3}
    assert found.table("epochs")["test_accuracy"].tolist() == [0.9, 0.9]


def test_what_no_run_recorded_is_an_empty_table_with_its_columns(tmp_path: Path) -> None:
    for found in (scenario(tmp_path / "s", run(tmp_path / "a")), scenario(tmp_path / "none")):
        shares = found.table("shares")
        assert shares.empty and shares.columns.tolist() == ["run", *ACTIVITIES["shares"].schema.names]


def test_where_a_run_took_place_and_how_many_steps_its_trace_shows_is_kept(tmp_path: Path) -> None:
    [first] = scenario(tmp_path / "s", run(tmp_path / "a")).table("runs_info").to_dict("records")
    assert pd.isna(first.pop("trace_missing"))
    assert first == {
        "run": "a",
        "machine": "2 × GPU, CPU, 8 CPUs",
        "variables": '{"NCCL_ALGO": "Ring"}',
        "versions": "torch 2.11.0, profiler nsys",
        "traced_steps": 2.0,
    }


def test_tables_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"measures\.csv: not found"):
        _ = ScenarioTables(tmp_path).measures
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(UserError, match=r"steps\.parquet: not a Parquet file"):
        ScenarioTables(tmp_path).table("steps")
    pq.write_table(pa.table({"run": ["a"]}), tmp_path / "epochs.parquet")
    with pytest.raises(UserError, match=r"epochs\.parquet: found no column epoch"):
        ScenarioTables(tmp_path).table("epochs")


def test_every_table_is_written_also_without_runs_and_known_to_the_rules(tmp_path: Path) -> None:
    store(joined([]), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.parquet")} == set(SCHEMAS) == set(SCENARIO_TABLES)
