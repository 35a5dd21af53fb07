"""Real traces that others captured, when their folder is named in MULTICARD_TRACES, against NVIDIA's own reports."""

import csv
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from multicard.trace.extract import read_trace
from multicard.trace.tables import activity_tables

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
)


def nvidia_report(path: Path, report: str) -> list[dict[str, str]]:
    answer = subprocess.run(
        ["nsys", "stats", "--quiet", "--report", report, "--format", "csv", "--output", "-", str(path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    start = answer.stdout.find("Time (%)")
    return list(csv.DictReader(io.StringIO(answer.stdout[start:]))) if start >= 0 else []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("nsys/*.sqlite")), ids=lambda path: path.name)
def test_every_schema_reads(path: Path) -> None:
    found = activity_tables(read_trace(path))
    assert found
    for table in found.values():
        if "total_s" in table.column_names:
            assert min(table["total_s"].to_pylist(), default=0) >= 0


@pytest.mark.nsys
@pytest.mark.parametrize("path", sorted(FOLDER.glob("nsys/*.sqlite")), ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("report", "table", "count"),
    [
        ("cuda_api_sum", "cuda_api", "Num Calls"),
        ("cuda_gpu_kern_sum", "kernels", "Instances"),
        ("cuda_gpu_mem_time_sum", "memory_operations", "Count"),
    ],
)
def test_totals_are_those_of_nvidias_report(path: Path, report: str, table: str, count: str, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))  # nsys stats may write beside its input
    copy.chmod(0o644)
    expected = nvidia_report(copy, report)
    found = activity_tables(read_trace(path)).get(table)
    if not expected:
        pytest.skip(f"nsys stats reports no {table} for this schema")
    assert sum(found["calls"].to_pylist()) == sum(int(row[count]) for row in expected)
    total_ns = sum(int(row["Total Time (ns)"]) for row in expected)
    assert sum(found["total_s"].to_pylist()) == pytest.approx(total_ns / 1e9, rel=1e-9)


def test_kernels_are_joined_on_process_and_correlation() -> None:
    found = activity_tables(read_trace(FOLDER / "nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite"))
    launches, collectives = found["launches"].to_pandas(), found["collectives"].to_pandas()
    assert (launches["kernels"].sum(), launches["joined"].sum()) == (4010, 3986)
    assert collectives.groupby("collective")["calls"].sum().to_dict() == {"send_recv": 66}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("kineto/*.json.gz")), ids=lambda path: path.name)
def test_every_pytorch_trace_reads(path: Path) -> None:
    trace = read_trace(path)
    assert trace.events
    assert activity_tables(trace)
