"""Real traces that others captured, when their folder is named in MULTICARD_TRACES, against NVIDIA's own reports."""

import csv
import functools
import gzip
import io
import json
import os
import random
import re
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from changed_traces import answers, assert_equal_but_for_the_last_digit, shuffled
from conftest import ran
from multicard.trace.files import open_trace
from multicard.trace.model import shared_name
from multicard.trace.tables import ActivityTables, activity_tables

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
)
FAST_BYTES = 800_000


@functools.cache
def found(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)])


@functools.cache
def nvidia_report(path: Path, report: str) -> list[dict[str, str]]:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copy(path, scratch))  # nsys stats may write beside its input
        copy.chmod(0o644)
        answer = ran("nsys", "stats", "--quiet", "--report", report, "--format", "csv:mem=B", "--output", "-", copy)
    start = re.search(r"^(Time \(%\)|Total \(B\)),", answer.stdout, re.MULTILINE)
    return list(csv.DictReader(io.StringIO(answer.stdout[start.start() :]))) if start else []


def traces(*patterns: str) -> pytest.MarkDecorator:
    """Real traces, of which those that take long to read are slow."""
    found = sorted(path for pattern in patterns for path in FOLDER.glob(pattern))
    slow = {path: [pytest.mark.slow] if path.stat().st_size > FAST_BYTES else [] for path in found}
    return pytest.mark.parametrize("path", [pytest.param(path, id=path.name, marks=slow[path]) for path in found])


KINETO_FILES = ("kineto/*.json.gz", "kineto_new/*.json", "kineto_new/*.json.gz")
DATABASES, KINETO = traces("nsys/*.sqlite"), traces(*KINETO_FILES)
LISTS = ("kineto_tb_list_at_top.json.gz",)  # without what else a trace says of itself


@traces("nsys/*.sqlite", *KINETO_FILES)
def test_every_trace_reads_and_its_clocks_agree(path: Path) -> None:
    assert found(path).rows
    for rows in found(path).rows.values():
        assert all(row["total_s"] >= 0 for row in rows if "total_s" in row)
    lines = list(found(path).notices)
    assert lines == [
        f"{name}: a bare list of events, so rank and GPUs are unknown" for name in LISTS if name == path.name
    ]


@DATABASES
def test_rows_in_any_order_give_the_same_answers(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    copy.chmod(0o644)
    expected = answers(copy)
    assert_equal_but_for_the_last_digit(answers(shuffled(copy, seed=1)), expected)


@pytest.mark.slow
def test_launches_of_a_slice_whose_kernels_ran_after_it_are_counted() -> None:
    path = FOLDER / "nsys/nsys-ai_h100_2gpu_1s_schema3.25.0.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        counts = db.execute(
            "SELECT globalTid >> 24 & 16777215 AS pid, count(*), sum(NOT EXISTS (SELECT 1 FROM "
            "CUPTI_ACTIVITY_KIND_KERNEL k WHERE k.correlationId = r.correlationId AND k.globalPid >> 24 & 16777215 = "
            "r.globalTid >> 24 & 16777215)) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId "
            "WHERE s.value LIKE 'cudaLaunchKernel%' OR s.value LIKE 'cuLaunchKernel%' GROUP BY pid ORDER BY pid"
        ).fetchall()
    assert found(path).warnings == tuple(
        f"{path.stem}: process {pid}: {lacking} of {launches} kernel launches have no kernel"
        for pid, launches, lacking in counts
    )


def added(rows: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Calls and total nanoseconds per name; names can stand in several rows."""
    sums: dict[str, tuple[int, int]] = {}
    for name, calls, total in rows:
        before = sums.get(name, (0, 0))
        sums[name] = (before[0] + calls, before[1] + total)
    return sums


def their_api_name(row: dict[str, str]) -> str:
    # NVIDIA's report leaves out a version of four digits, and no other; multicard one of five, too.
    return re.sub(r"_v\d{5}$", "", row["Name"])


def memory_name(row: dict[str, str]) -> str:
    return {
        "memset": "[CUDA memset]",
        "host_to_device": "[CUDA memcpy Host-to-Device]",
        "device_to_host": "[CUDA memcpy Device-to-Host]",
        "device_to_device": "[CUDA memcpy Device-to-Device]",
        "unified_host_to_device": "[CUDA memcpy Unified Host-to-Device]",
        "unified_device_to_host": "[CUDA memcpy Unified Device-to-Host]",
    }[row["operation"]]


# The reports of `nsys stats`, our tables, and the names of their rows in either. It has not each of every schema.
REPORTS: tuple[tuple[str, str, Callable, Callable, str], ...] = (
    ("cuda_api_sum", "cuda_api", itemgetter("function"), their_api_name, "Num Calls"),
    ("cuda_gpu_kern_sum", "kernels", itemgetter("kernel"), itemgetter("Name"), "Instances"),
    ("cuda_gpu_mem_time_sum", "memory_operations", memory_name, itemgetter("Operation"), "Count"),
)
STATISTICS = {"mean": "Avg", "median": "Med", "min": "Min", "max": "Max", "std": "StdDev"}


@pytest.mark.slow
@pytest.mark.nsys
@DATABASES
def test_statistics_are_those_of_nvidias_reports(path: Path) -> None:
    compared = 0
    for report, table, name, their_name, count in REPORTS:
        theirs = nvidia_report(path, report)
        if not theirs:
            continue
        compared += 1
        rows = found(path).rows[table]
        ours = added((name(row), row["calls"], round(row["total_s"] * 1e9)) for row in rows)
        assert ours == added((their_name(row), int(row[count]), int(row["Total Time (ns)"])) for row in theirs)
        their_rows, names = {their_name(row): row for row in theirs}, Counter(name(row) for row in rows)
        for row in rows:
            if names[name(row)] > 1:
                continue  # NVIDIA's report puts processes, and kinds of host memory, together
            for column, their_column in STATISTICS.items():
                # It writes one decimal, and no deviation of a single call as 0.
                expected = float(their_rows[name(row)][f"{their_column} (ns)"])
                assert (row[f"{column}_s"] or 0.0) * 1e9 == pytest.approx(expected, abs=0.051), name(row)
    if sizes := nvidia_report(path, "cuda_gpu_mem_size_sum"):
        ours = added((memory_name(row), row["calls"], row["bytes"]) for row in found(path).rows["memory_operations"])
        assert ours == added((row["Operation"], int(row["Count"]), int(row["Total (B)"])) for row in sizes)
    assert compared


@pytest.mark.slow
@pytest.mark.nsys
@DATABASES
def test_ranges_are_those_of_nvidias_report(path: Path) -> None:
    report_rows = nvidia_report(path, "nvtx_sum")
    if not report_rows:
        pytest.skip("nsys stats reports no ranges for this schema")
    # It lists every call of an operator by itself, and leaves the ranges of a domain without a name without theirs.
    theirs = added((shared_name(r["Range"]), int(r["Instances"]), int(r["Total Time (ns)"])) for r in report_rows)
    nameless = theirs.pop("", (0, 0))
    rows = found(path).rows["ranges"]
    names = [f"{row['domain']}:{row['range']}" if row["domain"] else row["range"] for row in rows]
    ours = added((n, row["calls"], round(row["total_s"] * 1e9)) for n, row in zip(names, rows, strict=True))
    of_nameless = [ours.pop(name) for name in set(ours) - set(theirs)]
    assert ours == theirs
    assert tuple(map(sum, zip((0, 0), *of_nameless, strict=True))) == nameless


@pytest.mark.slow
@pytest.mark.nsys
@DATABASES
def test_the_four_shares_are_the_percentages_of_nvidias_reports(path: Path) -> None:
    rows = found(path).rows["shares"]
    if len({row["process"] for row in rows}) > 1:
        pytest.skip("NVIDIA's reports put the processes together")
    if any(row["api"] == "backtrace" for row in found(path).rows["cuda_api"]):
        pytest.skip("NVIDIA's report counts calls with a backtrace twice")
    parts = {
        "host_to_device_copies": ("cuda_gpu_mem_time_sum", "Operation", r"\[CUDA memcpy (Host-to-Device|HtoD)\]"),
        "kernel_launches": ("cuda_api_sum", "Name", r"(cuda|cu)(Graph)?Launch"),
        "synchronizations": ("cuda_api_sum", "Name", r".*Synchronize"),
        "nccl": ("cuda_gpu_kern_sum", "Name", r"nccl"),
    }
    for row in rows:
        report, column, pattern = parts[row["share"]]
        theirs = nvidia_report(path, report)
        if not theirs:
            continue  # no such report for this schema
        total = sum(int(r["Total Time (ns)"]) for r in theirs)
        own = sum(int(r["Total Time (ns)"]) for r in theirs if re.match(pattern, r[column]))
        assert (round(row["total_s"] * 1e9), round(row["of_s"] * 1e9)) == (own, total)
        assert row["ratio"] == pytest.approx(own / total)


@pytest.mark.slow
def test_kernels_are_joined_on_process_and_correlation_and_a_rank_that_mpi_named_is_known() -> None:
    rows = found(FOLDER / "nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite").rows
    assert sum(row["kernels"] for row in rows["launches"]) == 4010
    assert sum(row["joined"] for row in rows["launches"]) == 3986
    assert {row["collective"] for row in rows["collectives"]} == {"send_recv"}
    assert sum(row["calls"] for row in rows["collectives"]) == 66
    of_mpi = found(FOLDER / "nsys/pipit_saxpy_a100_schema2.9.1.sqlite").rows
    assert {row["rank"] for row in of_mpi["kernels"]} == {0}


@functools.lru_cache(1)
def document(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def events_of(path: Path, category: str) -> list[dict]:
    """What a direct look at the JSON finds; until PyTorch 1.10 categories had other names (`Runtime`, `Memcpy`)."""
    whole = document(path)
    old = {"cuda_runtime": "Runtime", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "kernel": "Kernel"}
    return [
        event
        for event in (whole if isinstance(whole, list) else whole["traceEvents"])
        if event.get("cat") in (category, old.get(category, category)) and event.get("ph") == "X"
    ]


@KINETO
def test_totals_of_a_pytorch_trace_are_those_of_its_json(path: Path) -> None:
    rows = found(path).rows
    for categories, table, name in (
        (("kernel",), "kernels", "kernel"),
        (("cuda_runtime", "cuda_driver"), "cuda_api", "function"),
    ):
        events = [event for category in categories for event in events_of(path, category)]
        theirs = added((event["name"], 1, round(event["dur"] * 1000)) for event in events)
        ours = rows.get(table, [])
        assert added((row[name], row["calls"], round(row["total_s"] * 1e9)) for row in ours) == theirs
    events = events_of(path, "gpu_memcpy") + events_of(path, "gpu_memset")
    copies = rows.get("memory_operations", [])
    assert sum(row["calls"] for row in copies) == len(events)
    # AMD's profilers record sizes since 2024 only. What was not recorded is empty, not zero.
    sizes = [event["args"]["bytes"] for event in events if "bytes" in event["args"]]
    assert [row["bytes"] for row in copies if row["bytes"] is not None] or not sizes
    assert sum(row["bytes"] or 0 for row in copies) == sum(sizes)
    assert round(sum(row["total_s"] for row in copies) * 1e9) == sum(round(event["dur"] * 1000) for event in events)


@pytest.mark.slow
def test_bus_bandwidth_follows_from_the_messages_of_a_pytorch_trace() -> None:
    path = FOLDER / "kineto/hta_nccl_allreduce_broadcast.json.gz"
    events = [e for e in events_of(path, "kernel") if "AllReduce" in e["name"]]
    size = sum(event["args"]["In msg nelems"] * 4 for event in events)  # all of type Float
    [row] = [row for row in found(path).rows["collectives"] if row["collective"] == "all_reduce"]
    assert (row["calls"], row["messages"], row["message_bytes"], row["ranks"]) == (15, 15, size, 2)
    # nccl-tests: the bus bandwidth of an all-reduce is size / time × 2 (n - 1) / n, with n = 2 ranks size / time.
    seconds = sum(round(event["dur"] * 1000) for event in events) / 1e9
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(size / seconds)

    # And by the sizes of the messages.
    truth: dict[int, int] = {}
    for event in events:
        bytes_of = event["args"]["In msg nelems"] * 4
        truth[bytes_of] = truth.get(bytes_of, 0) + round(event["dur"] * 1000)
    rows = [row for row in found(path).rows["message_sizes"] if row["collective"] == "all_reduce"]
    assert len(truth) > 1
    assert {row["size_bytes"]: round(row["total_s"] * 1e9) for row in rows} == truth


@pytest.mark.slow
@pytest.mark.nsys
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.rare) for seed in range(2, 6))])
def test_a_damaged_report_is_read_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    """The database that nsys makes of one must do as well as any other."""
    chance = random.Random(seed)
    content = bytearray((FOLDER / "nsys/aws_gpu_t4.nsys-rep").read_bytes())
    if seed % 2:
        del content[chance.randrange(len(content)) :]
    for _ in range(50):
        content[chance.randrange(len(content))] = chance.randrange(256)
    (tmp_path / "t.nsys-rep").write_bytes(content)
    multicard = Path(sys.prefix) / "bin" / "multicard"
    command = [multicard, "analyze", tmp_path / "t.nsys-rep", "--out", tmp_path / "out"]
    answer = ran(*command)
    if answer.returncode:
        assert (answer.returncode, len(answer.stderr.splitlines())) == (1, 1), answer.stderr
        assert not (tmp_path / "out").exists()
