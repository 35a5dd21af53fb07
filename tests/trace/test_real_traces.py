"""Real traces that others captured, when their folder is named in MULTICARD_TRACES, against NVIDIA's own reports."""

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from operator import itemgetter
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


def added(rows: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Calls and total nanoseconds per name; names can stand in several rows."""
    sums: dict[str, tuple[int, int]] = {}
    for name, calls, total in rows:
        before = sums.get(name, (0, 0))
        sums[name] = (before[0] + calls, before[1] + total)
    return sums


def api_name(row: dict[str, str]) -> str:
    # NVIDIA's report leaves out a version of four digits, and no other.
    return re.sub(r"_v\d{4}$", "", row["function"])


def memory_name(row: dict[str, str]) -> str:
    return {
        "memset": "[CUDA memset]",
        "host_to_device": "[CUDA memcpy Host-to-Device]",
        "device_to_host": "[CUDA memcpy Device-to-Host]",
        "device_to_device": "[CUDA memcpy Device-to-Device]",
        "unified_host_to_device": "[CUDA memcpy Unified Host-to-Device]",
        "unified_device_to_host": "[CUDA memcpy Unified Device-to-Host]",
    }[row["operation"]]


@pytest.mark.nsys
@pytest.mark.parametrize("path", sorted(FOLDER.glob("nsys/*.sqlite")), ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("report", "table", "name", "their_name", "count"),
    [
        ("cuda_api_sum", "cuda_api", api_name, "Name", "Num Calls"),
        ("cuda_gpu_kern_sum", "kernels", itemgetter("kernel"), "Name", "Instances"),
        ("cuda_gpu_mem_time_sum", "memory_operations", memory_name, "Operation", "Count"),
    ],
)
def test_counts_and_totals_are_exactly_those_of_nvidias_report(
    path: Path, report: str, table: str, name: Callable, their_name: str, count: str, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(path, tmp_path))  # nsys stats may write beside its input
    copy.chmod(0o644)
    theirs = added(
        (row[their_name], int(row[count]), int(row["Total Time (ns)"])) for row in nvidia_report(copy, report)
    )
    if not theirs:
        pytest.skip(f"nsys stats reports no {table} for this schema")
    rows = activity_tables(read_trace(path))[table].to_pylist()
    ours = added((name(row), row["calls"], round(row["total_s"] * 1e9)) for row in rows)
    assert ours == theirs


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
