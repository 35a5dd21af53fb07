"""A synthetic trace of several ranks against the truth that its generator worked out without SQL or this reader."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from multicard.trace.idle import CAUSES, QUEUED, UNKNOWN_CAUSE
from multicard.trace.model import Trace
from multicard.trace.nsys_sqlite import read
from multicard.trace.sqlite_file import BatchSizes
from multicard.trace.statistics import statistics
from multicard.trace.tables import SCOPES, STEPS, activity_tables

sys.path.insert(0, str(ROOT / "benchmarks"))

from generate import generate

# Kernels, devices, steps, and rows of a table that are read in one go; more are read by several threads.
CASES = [(20_000, 3, 7, 1_000), (700, 1, 2, 100), (64, 4, 16, 250_000)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def export(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Callable[[], Trace], dict[str, Any]]:
    kernels, devices, steps, part = request.param
    path = tmp_path_factory.mktemp("synthetic") / "t.sqlite"
    truth = generate(path, kernels, devices, steps)
    sizes = BatchSizes(rows=part // 3, page_bytes=4096 * (part // 50), batches_per_part=2)
    return partial(read, path, sizes), truth


def keyed(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in names): row for row in rows}
    assert len(found) == len(rows), "no two rows are about the same"
    return found


def nanoseconds(row: dict[str, Any], name: str) -> float | None:
    return None if row[f"{name}_s"] is None else row[f"{name}_s"] * 1e9


def sums(rows: dict[tuple[Any, ...], dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {key: (row["calls"], round(nanoseconds(row, "total"))) for key, row in rows.items()}


@pytest.mark.parametrize("scope", SCOPES)
def test_statistics_and_joins_are_the_true_ones(export: tuple[Callable[[], Trace], dict[str, Any]], scope: str) -> None:
    open_export, truth = export
    rows = activity_tables([open_export()], scope=scope).rows
    # Of the scope of steps, what odd ranks copied before and after their steps is no part.
    truth = truth["of_steps"] if scope == STEPS else truth
    for table, names in (
        ("cuda_api", ("process", "api", "function")),
        ("kernels", ("process", "device", "kernel")),
        ("memory_operations", ("process", "device", "operation", "host_memory")),
    ):
        ours, true = keyed(rows[table], *names), keyed(truth[table], *names)
        assert sums(ours) == {key: (row["calls"], row["total"]) for key, row in true.items()}
        for key, row in true.items():
            if table == "memory_operations":
                assert ours[key]["bytes"] == row["bytes"]
            for name in ("median", "min", "max", "std"):
                expected = None if row[name] is None else pytest.approx(row[name], rel=1e-12)
                assert nanoseconds(ours[key], name) == expected, (key, name)
    ours, true = (keyed(each["launches"], "process", "device") for each in (rows, truth))
    assert set(ours) == set(true)
    for key, row in true.items():
        assert (ours[key]["kernels"], ours[key]["joined"]) == (row["kernels"], row["joined"])
        for name in ("median_latency", "max_latency", "median_queue_delay", "max_queue_delay"):
            assert nanoseconds(ours[key], name) == pytest.approx(row[name], rel=1e-12)


def test_ranges_ranks_and_timelines_are_the_true_ones(export: tuple[Callable[[], Trace], dict[str, Any]]) -> None:
    open_export, truth = export
    rows = activity_tables([open_export()]).rows
    true = {(r["process"], r["domain"], r["name"]): (r["calls"], r["total"]) for r in truth["ranges"]}
    assert sums(keyed(rows["ranges"], "process", "domain", "range")) == true
    marked = {(row["process"] - 4000, row["rank"]) for row in rows["kernels"]}
    assert marked == {(row["device"], row["device"]) for row in truth["kernels"]}

    names = ("process", "device", "scope", "step")
    ours, true = (keyed(each["timeline"], *names) for each in (rows, truth))
    assert set(ours) == set(true)
    for key, row in true.items():
        shares = {name: value for name, value in row.items() if name not in names}
        # The truth tells what the host had not launched, not what it did meanwhile: that is counted in test_idle.py.
        ours[key]["idle_host_s"] = sum(
            ours[key][f"{cause}_s"] for cause in CAUSES if cause not in (QUEUED, UNKNOWN_CAUSE)
        )
        assert {name: round(nanoseconds(ours[key], name)) for name in shares} == shares, key


def test_totals_of_32_bit_values_do_not_overflow() -> None:
    assert statistics(np.full(5, 4_000_000_000, np.uint32)).total == 20_000_000_000
