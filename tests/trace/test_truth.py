"""A synthetic trace of several ranks against the truth that its generator worked out without SQL or this reader."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from multicard.trace import sqlite_file
from multicard.trace.files import open_trace
from multicard.trace.tables import SCOPES, STEPS, ActivityTables, activity_tables

sys.path.insert(0, str(ROOT / "benchmarks"))

from generate import generate

STATISTICS = ("total", "median", "min", "max", "std")


# Kernels, devices, steps, and rows of a table that are read in one go; more are read by several threads.
CASES = [(20_000, 3, 7, 250_000), (20_000, 3, 7, 1_000), (700, 1, 2, 100), (64, 4, 16, 250_000)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def export(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Any]]]:
    kernels, devices, steps, part = request.param
    path = tmp_path_factory.mktemp("synthetic") / "t.sqlite"
    truth = generate(path, kernels, devices, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_file, "PART_ROWS", part)
        patch.setattr(sqlite_file, "BATCH_ROWS", part // 3)
        yield path, truth


@pytest.fixture(scope="module")
def both(export: tuple[Path, dict[str, Any]]) -> tuple[ActivityTables, dict[str, Any]]:
    path, truth = export
    return activity_tables([open_trace(path)]), truth


@pytest.fixture(scope="module", params=SCOPES)
def in_scope(
    request: pytest.FixtureRequest, export: tuple[Path, dict[str, Any]]
) -> tuple[ActivityTables, dict[str, Any]]:
    """Of the scope of steps, what odd ranks copied before and after their steps is no part."""
    path, truth = export
    tables = activity_tables([open_trace(path)], scope=request.param)
    return tables, truth["of_steps"] if request.param == STEPS else truth


def keyed(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in names): row for row in rows}
    assert len(found) == len(rows), "no two rows are about the same"
    return found


def nanoseconds(row: dict[str, Any], name: str) -> float | None:
    return None if row[f"{name}_s"] is None else row[f"{name}_s"] * 1e9


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("cuda_api", ("process", "api", "function")),
        ("kernels", ("process", "device", "kernel")),
        ("memory_operations", ("process", "device", "operation", "host_memory")),
    ],
)
def test_statistics_are_the_true_ones(
    in_scope: tuple[ActivityTables, dict[str, Any]], table: str, names: tuple[str, ...]
) -> None:
    ours, truth = (keyed(rows, *names) for rows in (in_scope[0].rows[table], in_scope[1][table]))
    assert set(ours) == set(truth)
    for key, row in truth.items():
        assert ours[key]["calls"] == row["calls"]
        assert round(nanoseconds(ours[key], "total")) == row["total"]
        if table == "memory_operations":
            assert ours[key]["bytes"] == row["bytes"]
        for name in STATISTICS:
            true = None if row[name] is None else pytest.approx(row[name], rel=1e-12)
            assert nanoseconds(ours[key], name) == true, (key, name)


def test_launch_shapes_are_the_true_ones(both: tuple[ActivityTables, dict[str, Any]]) -> None:
    truth = {
        (r["process"], r["device"], r["kernel"], *("×".join(map(str, r[s])) for s in ("grid", "block"))):
        (r["calls"], r["total"])
        for r in both[1]["kernel_shapes"]
    }  # fmt: skip
    ours = keyed(both[0].rows["kernel_shapes"], "process", "device", "kernel", "grid", "block")
    assert {key: (row["calls"], round(nanoseconds(row, "total"))) for key, row in ours.items()} == truth


def test_ranges_are_the_true_ones(both: tuple[ActivityTables, dict[str, Any]]) -> None:
    truth = {(r["process"], r["domain"], r["name"]): (r["calls"], r["total"]) for r in both[1]["ranges"]}
    ours = keyed(both[0].rows["ranges"], "process", "domain", "range")
    assert {key: (row["calls"], round(nanoseconds(row, "total"))) for key, row in ours.items()} == truth


def test_kernels_are_joined_to_their_own_calls(in_scope: tuple[ActivityTables, dict[str, Any]]) -> None:
    ours, truth = (keyed(rows, "process", "device") for rows in (in_scope[0].rows["launches"], in_scope[1]["launches"]))
    assert set(ours) == set(truth)
    for key, row in truth.items():
        assert (ours[key]["kernels"], ours[key]["joined"]) == (row["kernels"], row["joined"])
        for name in ("median_latency", "max_latency", "median_queue_delay", "max_queue_delay"):
            assert nanoseconds(ours[key], name) == pytest.approx(row[name], rel=1e-12)


def test_every_share_of_every_timeline_is_the_true_one(both: tuple[ActivityTables, dict[str, Any]]) -> None:
    names = ("process", "device", "scope", "step")
    ours, truth = (keyed(rows, *names) for rows in (both[0].rows["timeline"], both[1]["timeline"]))
    assert set(ours) == set(truth)
    for key, row in truth.items():
        shares = {name: value for name, value in row.items() if name not in names}
        # The truth tells late launches, and not what the host did meanwhile: that is counted in test_host.py.
        ours[key]["idle_host_bound_s"] += ours[key]["idle_host_elsewhere_s"]
        assert {name: round(nanoseconds(ours[key], name)) for name in shares} == shares, key


def test_ranks_are_read_from_their_marks(both: tuple[ActivityTables, dict[str, Any]]) -> None:
    assert {(row["process"] - 4000, row["rank"]) for row in both[0].rows["kernels"]} == {
        (row["device"], row["device"]) for row in both[1]["kernels"]
    }
