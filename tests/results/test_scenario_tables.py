"""Tables of a scenario, from the directories of its runs."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_records import STEPS, record, with_activity

from conftest import refusal
from factories import recommendations, vision_runs, write_results
from multicard.core.errors import UserError
from multicard.core.layout import SCENARIO_TABLES
from multicard.results.gathering import joined, store, tables_of
from multicard.results.provenance import Provenance
from multicard.results.results import Results
from multicard.results.tables import SCHEMAS, ScenarioTables
from multicard.runs.record import GpuModel, Hardware, ProfilerUse
from multicard.trace.tables import ACTIVITIES

NAME = "vision_digits_224px_ddp-ds_cpu2_fp32_batch30_r"
STEP = {"report": "r", "process": 7, "phase": "step", "step": 1, "start_s": 0.0, "duration_s": 0.1}


def run(folder: Path, outcome: str = "completed", calls: int = 2, repeat: int = 1) -> Path:
    """Write a synthetic run of two ranks with a trace of two steps, and as many CUDA functions as `calls`."""
    record(
        folder,
        "ddp-ds",
        repeat=repeat,
        outcome=outcome,
        profiler=ProfilerUse(used="nsys"),
        versions={"torch": "2.11.0", "nccl": None},
        variables={"NCCL_ALGO": "Ring"},
        hardware=Hardware(gpus=(GpuModel(name="GPU"),) * 2, processor="CPU", logical_cpus=8),
    )
    with_activity(folder)
    functions = [{"report": "r", "process": 7, "function": f"cuda{i}", "total_s": 0.1} for i in range(calls)]
    for name, rows in (("cuda_api", functions), ("phases", [STEP, STEP | {"step": 2}])):
        table = pa.Table.from_pylist(rows, ACTIVITIES[name].schema)
        pq.write_table(table, folder / "activity" / f"{name}.parquet")
    return folder


def scenario(folder: Path, *runs: Path) -> ScenarioTables:
    """Gather runs, and read what that left."""
    store(joined(map(tables_of, runs)), folder)
    return ScenarioTables(folder)


@pytest.mark.parametrize(
    ("name", "column"),
    [("steps.csv", "padded_tokens"), ("epochs.csv", "test_loss"), ("activity/stragglers.parquet", "ranks")],
)
def test_a_table_of_a_run_that_lacks_a_column_is_refused(name: str, column: str, tmp_path: Path) -> None:
    path = run(tmp_path / "a") / name
    if path.suffix == ".csv":
        pd.read_csv(path).drop(columns=column).to_csv(path, index=False)
    else:
        pq.write_table(pq.read_table(path).drop_columns(column), path)
    assert refusal(lambda: tables_of(tmp_path / "a")) == f"{path}: found no column {column}"


def test_rows_of_all_completed_runs_are_in_one_table_that_names_the_run(tmp_path: Path) -> None:
    runs = (
        run(tmp_path / "a", calls=1),
        run(tmp_path / "b", outcome="failed", repeat=2),
        run(tmp_path / "c", calls=2, repeat=3),
    )
    found = scenario(tmp_path / "s", *runs)
    calls = found.table("cuda_api")
    assert calls.columns.tolist() == ["run", *ACTIVITIES["cuda_api"].schema.names]
    assert list(zip(calls["run"], calls["function"], strict=True)) == [
        (f"{NAME}1", "cuda0"), (f"{NAME}3", "cuda0"), (f"{NAME}3", "cuda1"),
    ]  # fmt: skip
    assert found.table("steps")["run"].value_counts().to_dict() == {f"{NAME}1": len(STEPS), f"{NAME}3": len(STEPS)}
    assert found.table("epochs")["test_accuracy"].tolist() == [0.5, 0.6] * 2


def test_what_no_run_recorded_is_an_empty_table_with_its_columns(tmp_path: Path) -> None:
    for found in (scenario(tmp_path / "s", run(tmp_path / "a")), scenario(tmp_path / "none")):
        shares = found.table("shares")
        assert shares.empty and shares.columns.tolist() == ["run", *ACTIVITIES["shares"].schema.names]


def test_where_a_run_took_place_and_how_many_steps_its_trace_shows_is_kept(tmp_path: Path) -> None:
    runs = run(tmp_path / "a"), run(tmp_path / "b", outcome="failed", repeat=2)
    tables = scenario(tmp_path / "s", *runs)
    place = Provenance(machine="2 × GPU, CPU, 8 CPUs", versions="torch 2.11.0, profiler nsys", gpu="GPU")
    assert tables.provenances == {f"{NAME}1": place, f"{NAME}2": place}
    info = tables.table("runs_info")
    assert info["variables"].tolist() == ['{"NCCL_ALGO": "Ring"}'] * 2
    assert info["traced_steps"].fillna(0).tolist() == [2.0, 0.0]  # of completed runs
    assert info["trace_missing"].isna().all()


def test_tables_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"measures\.csv: not found"):
        _ = ScenarioTables(tmp_path).measures
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(UserError, match=r"steps\.parquet: not a Parquet file"):
        ScenarioTables(tmp_path).table("steps")
    pq.write_table(pa.table({"run": ["a"]}), tmp_path / "epochs.parquet")
    with pytest.raises(UserError, match=r"epochs\.parquet: found no column epoch"):
        ScenarioTables(tmp_path).table("epochs")


def test_a_measure_that_a_later_version_added_is_empty(tmp_path: Path) -> None:
    path = write_results(tmp_path, vision_runs(100.0)) / "scenarios" / "s0" / "measures.csv"
    pd.read_csv(path).drop(columns="drift").to_csv(path, index=False)
    results = Results.read(tmp_path)
    assert results.frame()["drift"].isna().all()
    assert "| 1 GPU | 100 (95% CI" in recommendations(results)


def test_every_table_is_written_also_without_runs_and_known_to_the_rules(tmp_path: Path) -> None:
    store(joined([]), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.parquet")} == set(SCHEMAS) == set(SCENARIO_TABLES)
