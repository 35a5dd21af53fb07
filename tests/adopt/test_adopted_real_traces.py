"""Runs of traces that others captured, if MULTICARD_TRACES names their folder: numbers are taken from their text."""

import gzip
import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from multicard.adopt.align import aligned
from multicard.adopt.archive import gather
from multicard.adopt.table import read_table
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.notices import notices
from multicard.trace.files import open_trace
from multicard.trace.find_steps import FoundSteps, HostSteps, Owner, find_steps

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))

UNNAMED = "set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER.is_dir(), reason=UNNAMED)]

# Trace, devices, GPU, steps; the GPUs are those that the README of the traces names.
RUNS = [
    ("kineto/hta_v100_2rank_allreduce_rank1.json.gz", 2, "Tesla V100-SXM2-32GB", 5),
    ("kineto/hta_nccl_allreduce_broadcast.json.gz", 2, "NVIDIA A100-PG509-200", 3),
    ("nsys/pipit_cloverleaf_a100_schema3.13.2.sqlite", 1, "NVIDIA A100-SXM4-80GB", 0),
    ("nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite", 2, None, 0),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Measures and record of each run."""
    folder = tmp_path_factory.mktemp("real")
    rows = [f"{FOLDER / name},{devices},{number},64" for number, (name, devices, _, _) in enumerate(RUNS)]
    (folder / "real.csv").write_text("\n".join(["trace,devices,number,samples_per_step", *rows]))
    traced, errors = gather(read_table(folder / "real.csv"), folder)
    assert errors == []
    made = [folder / "runs" / each.run.id for each in traced]
    return [(measure_run(run), json.loads((run / "run.json").read_text())) for run in made]


def test_records_name_the_gpus_and_the_steps_of_the_traces(
    measured: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    found = [((record["versions"] or {}).get("GPU"), record["adopted"]["steps"]) for _, record in measured]
    assert found == [(gpu, steps) for _, _, gpu, steps in RUNS]
    assert [row["measured_steps"] or 0 for row, _ in measured] == [steps for _, _, _, steps in RUNS]
    assert [record["ranks"][0]["rank"] for _, record in measured[:2]] == [1, 0]  # distributedInfo


@pytest.mark.parametrize("number", [0, 1])
def test_iteration_times_are_those_of_pytorchs_steps(
    number: int, measured: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    name, _, _, steps = RUNS[number]
    events = json.loads(gzip.decompress((FOLDER / name).read_bytes()))["traceEvents"]
    marks = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    first, last = min(marks, key=lambda e: e["ts"]), max(marks, key=lambda e: e["ts"])
    # On the GPU a step may begin and end later than on the host, by what it lags behind.
    by_host_s = (last["ts"] + last["dur"] - first["ts"]) / 1e6 / steps
    row, _ = measured[number]
    assert row["iteration_time_s"] == pytest.approx(by_host_s, rel=0.05)
    assert row["throughput_samples_per_s"] == pytest.approx(64 / row["iteration_time_s"])
    assert "not all GPUs traced: 1 of 2, whose times may not be those of the slowest" in notices(row)


def test_traces_without_steps_have_no_times(measured: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for row, _ in measured[2:]:
        assert row["outcome"] == "completed"
        assert row["iteration_time_s"] is row["throughput_samples_per_s"] is row["steps_per_s"] is None
        assert "adopted trace: no steps were found" in notices(row)


def one_step_per_collective(found: FoundSteps) -> dict[Owner, HostSteps]:
    """Steps that each end as a collective is launched, since the slice holds no other marks."""
    moments = {owner: launched + 1 for owner, (launched, _) in found.collectives.items()}
    return {owner: HostSteps(each[:-1], each[1:], [None] * (len(each) - 1)) for owner, each in moments.items()}


@pytest.mark.parametrize("one_clock", [True, False])
def test_steps_of_two_real_gpus_are_paired_by_their_collectives(one_clock: bool) -> None:
    """Two H100 in 33 exchanges by NCCL, which end within 27 µs of each other: the n-th of one is the n-th of the other.

    Each capture loses its first or its last step, or neither; on clocks of their own the second one counts from 1 s on.
    """
    whole = open_trace(FOLDER / "nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite")
    found = find_steps([whole])
    (first, one), (second, other) = one_step_per_collective(found).items()
    launched, ended = found.collectives[second]
    traces, late = [whole], 0
    if not one_clock:
        apart, late = (1, second[1]), 10**9
        traces = [replace(whole, clock=None)] * 2
        found = replace(found, collectives={first: found.collectives[first], apart: (launched + late, ended + late)})
        second = apart
        other = HostSteps(other.starts + late, other.ends + late, other.threads)
    numbers = range(len(one.starts))
    assert len(one.starts) == len(other.starts) == 32
    edges = (slice(None), slice(1, None), slice(None, -1))
    for cut_one, cut_other in product(edges, edges):
        kept = {first: one.part(cut_one), second: other.part(cut_other)}
        common = aligned(traces, replace(found, steps=kept))
        expected = sorted({*numbers[cut_one]} & {*numbers[cut_other]})
        assert common[first].starts.tolist() == one.starts[expected].tolist()
        assert common[second].starts.tolist() == other.starts[expected].tolist()
