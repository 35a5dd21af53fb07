"""Runs of traces that others captured, if MULTICARD_TRACES names their folder: numbers are taken from their text."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from multicard.adopt.table import read_table
from multicard.adopt.traced import gather
from multicard.results.measure import measure_run
from multicard.results.notices import notices

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))

UNNAMED = "set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER.is_dir(), reason=UNNAMED)]

Measured = list[tuple[dict[str, Any], dict[str, Any]]]  # measures and record of each run
# Trace, devices, GPU, steps; the GPUs are those that the README of the traces names.
RUNS = [
    ("kineto/hta_v100_2rank_allreduce_rank1.json.gz", 2, "Tesla V100-SXM2-32GB", 5),
    ("kineto/hta_nccl_allreduce_broadcast.json.gz", 2, "NVIDIA A100-PG509-200", 3),
    ("nsys/pipit_cloverleaf_a100_schema3.13.2.sqlite", 1, "NVIDIA A100-SXM4-80GB", 0),
    ("nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite", 2, None, 0),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("real")
    rows = [f"{FOLDER / name},{devices},{number},64" for number, (name, devices, _, _) in enumerate(RUNS)]
    (folder / "real.csv").write_text("\n".join(["trace,devices,number,samples_per_step", *rows]))
    traced, errors = gather(read_table(folder / "real.csv"), folder)
    assert errors == []
    made = [folder / each.run.id for each in traced]
    return [(measure_run(run), json.loads((run / "run.json").read_text())) for run in made]


def test_records_name_the_gpus_and_the_steps_of_the_traces(measured: Measured) -> None:
    found = [((record["versions"] or {}).get("GPU"), record["adopted"]["steps"]) for _, record in measured]
    assert found == [(gpu, steps) for _, _, gpu, steps in RUNS]
    # From the start of each step to the start of the next.
    assert [row["measured_steps"] or 0 for row, _ in measured] == [max(0, steps - 1) for _, _, _, steps in RUNS]
    assert [record["ranks"][0]["rank"] for _, record in measured[:2]] == [1, 0]  # distributedInfo


@pytest.mark.parametrize("number", [0, 1])
def test_iteration_times_are_those_of_pytorchs_steps(number: int, measured: Measured) -> None:
    name, _, _, steps = RUNS[number]
    events = json.loads(gzip.decompress((FOLDER / name).read_bytes()))["traceEvents"]
    marks = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    first, last = min(marks, key=lambda e: e["ts"]), max(marks, key=lambda e: e["ts"])
    # On the GPU a step may begin and end later than on the host, by what it lags behind.
    by_host_s = (last["ts"] + last["dur"] - first["ts"]) / 1e6 / steps
    row, _ = measured[number]
    assert row["iteration_time_s"] == pytest.approx(by_host_s, rel=0.05)
    assert row["throughput_samples_per_s"] == pytest.approx(64 / row["iteration_time_s"])
    assert "not all GPUs at work in the traces: 1 of 2, whose times may not be those of the slowest" in notices(row)


def test_traces_without_steps_have_no_times(measured: Measured) -> None:
    for row, _ in measured[2:]:
        assert row["outcome"] == "completed"
        assert row["iteration_time_s"] is row["throughput_samples_per_s"] is row["steps_per_s"] is None
        assert "adopted trace: no steps were found" in notices(row)
