"""Traces that PyTorch 2.13, 2.14 and 2.15 recorded here, by both of their exporters (pytorch/record.py)."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables

RECORDINGS = Path(__file__).parent / "pytorch"
VERSIONS = ["2.13.0", "2.14.1", "2.15.0"]
EXPORTERS = ["kineto", "python"]

pytestmark = [pytest.mark.parametrize("version", VERSIONS), pytest.mark.parametrize("exporter", EXPORTERS)]


def recording(version: str, exporter: str, rank: int) -> Path:
    return RECORDINGS / version / f"{exporter}{rank}.json.gz"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranges_are_counted_and_timed_as_pytorch_does(version: str, exporter: str, rank: int) -> None:
    averages = json.loads((RECORDINGS / version / "key_averages.json").read_text())[f"rank {rank}"]
    averages["step"] = averages.pop("ProfilerStep*")
    tables = activity_tables([open_trace(recording(version, exporter, rank))])
    rows = {row["range"]: row for row in tables.rows["ranges"]}
    assert rows.keys() == averages.keys()
    for name, (calls, total_us) in averages.items():
        assert rows[name]["calls"] == calls
        assert rows[name]["total_s"] == pytest.approx(total_us / 1e6, abs=1e-9)


def test_each_rank_is_named_and_nothing_is_out_of_order(version: str, exporter: str) -> None:
    traces = [open_trace(recording(version, exporter, rank)) for rank in (0, 1)]
    assert [list(trace.ranks.values()) for trace in traces] == [[0], [1]]
    tables = activity_tables(traces)
    assert (tables.notices, tables.warnings) == ((), ())


def test_both_ranks_have_the_clock_of_their_machine(version: str, exporter: str) -> None:
    # The base is the multiple of 7,889,238 s, a quarter of a year, before the recording on 2026-11-30 (libkineto,
    # ChromeTraceBaseTime). Only Kineto's exporter names the machine.
    base_ns = 227 * 7_889_238 * 10**9
    host = "node1" if exporter == "kineto" else "unknown host"
    for rank in (0, 1):
        assert open_trace(recording(version, exporter, rank)).clock == f"{host}, since {base_ns} ns"


def test_ranks_wait_for_the_last_one_to_join(version: str, exporter: str) -> None:
    # Each rank waits from its own start of a collective to the start of the last rank.
    starts: dict[str, list[list[float]]] = defaultdict(list)
    for rank in (0, 1):
        text = gzip.decompress(recording(version, exporter, rank).read_bytes())
        events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
        for collective in ("all_reduce", "barrier"):
            starts[collective].append(sorted(each["ts"] for each in events if each["name"] == f"gloo:{collective}"))
    waited_us: dict[tuple[str, int], float] = {}
    for collective, starts_of_ranks in starts.items():
        for rank, own in enumerate(starts_of_ranks):
            last = map(max, *starts_of_ranks)
            waited_us[collective, rank] = sum(map(float.__sub__, last, own))
    rows = activity_tables([open_trace(recording(version, exporter, rank)) for rank in (0, 1)]).rows["stragglers"]
    found_us = {(row["collective"], row["rank"]): row["waited_s"] * 1e6 for row in rows}
    assert found_us == pytest.approx(waited_us, abs=0.01)
