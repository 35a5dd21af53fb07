"""Causes in traces that others captured, if MULTICARD_TRACES names their folder: numbers are from the raw files."""

import gzip
import json
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

import multicard
from multicard.answers.diagnoses.diagnosis import Diagnosis

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))
# Of hta_v100_2rank_allreduce_rank1, as its ranges of steps say: 350 ms from start to start.
STEP_MS = 350.0
FP32 = re.compile(r"(volta|ampere)_s(gemm|cudnn)_|_ffma_|80_simt_s")

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
)


def causes_of(path: Path) -> list[Diagnosis]:
    return multicard.read_trace(path, scope="steps", find_steps=True).answer().causes


def kernels_of(path: Path) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel in a trace of PyTorch's profiler."""
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    events = content if isinstance(content, list) else content["traceEvents"]
    return [(event["name"], float(event["dur"])) for event in events if str(event.get("cat", "")).lower() == "kernel"]


def evidence(causes: Sequence[Diagnosis], words: str) -> str:
    [found] = [cause.evidence for cause in causes if words in cause.evidence]
    return found


@pytest.mark.parametrize(
    ("name", "steps", "words"),
    [
        ("kineto/hta_nccl_allreduce_broadcast.json.gz", 3, " a step"),
        ("kineto/hta_v100_2rank_allreduce_rank1.json.gz", 5, " a step"),
        ("kineto/tracelens_b200_eager.json.gz", 1, " in the capture"),
    ],
)
def test_computing_kernels_are_all_but_those_of_communication(name: str, steps: int, words: str) -> None:
    path = FOLDER / name
    kernels = [us for kernel, us in kernels_of(path) if not re.search("nccl|all_reduce", kernel)]
    count, mean = f"{len(kernels) / steps:,.0f}", fmean(kernels)
    assert f": {count} kernels{words}, of {mean:.1f} µs on average" in evidence(causes_of(path), "launches work")


def test_products_without_tensor_cores_are_those_of_the_raw_names() -> None:
    path = FOLDER / "kineto/hta_v100_2rank_allreduce_rank1.json.gz"
    kernels = kernels_of(path)
    without = sum(us for name, us in kernels if FP32.search(name))
    share = without / sum(us for _, us in kernels)
    expected = f" ({without / 5e3 / STEP_MS:.0%}), {share:.0%} of the time of all kernels; the longest is `volta_sgemm_"
    found = evidence(causes_of(path), "tensor cores")
    assert f"take {without / 5e3:.1f} ms of a step" in found and expected in found


def test_products_without_tensor_cores_are_no_cause_where_the_gpu_hardly_computes() -> None:
    [path] = (FOLDER / "nsys").glob("nsys-ai_h100_2gpu_1s*.sqlite")
    query = "SELECT value, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        kernels = db.execute(query).fetchall()
    without_ns = sum(ns for name, ns in kernels if FP32.search(name))
    assert without_ns > 0.8 * sum(ns for _, ns in kernels)
    # Of each of two GPUs, in a second.
    assert without_ns / 2e9 < 0.05
    assert not [cause for cause in causes_of(path) if "tensor cores" in cause.evidence]
