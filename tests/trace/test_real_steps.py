"""Steps of real traces that others captured, when their folder is named in MULTICARD_TRACES."""

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from multicard.analysis.step_periods import step_periods
from multicard.analysis.trace_comparison import PERIOD, compare_captures
from multicard.trace.files import open_trace
from multicard.trace.tables import CAPTURE, STEPS, ActivityTables, activity_tables

FOLDER = Path(os.environ.get("MULTICARD_TRACES", "no folder named"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
    ),
]

RANK = FOLDER / "kineto/hta_nccl_allreduce_broadcast.json.gz"  # one of two ranks


def tables(folder: Path, scope: str = STEPS) -> ActivityTables:
    return activity_tables([open_trace(path) for path in sorted(folder.iterdir())], scope=scope)


def document(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def written(path: Path, trace: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(trace))
    return path


def step_starts(trace: dict[str, Any]) -> list[float]:
    """Microseconds at which steps begin, by a direct look at the JSON."""
    marks = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation" and e.get("ph") == "X"]
    return sorted(float(e["ts"]) for e in marks if e["name"].startswith("ProfilerStep#"))


def changed(before: ActivityTables, after: ActivityTables) -> set[str]:
    return {name for name in {*before.rows, *after.rows} if before.rows.get(name) != after.rows.get(name)}


def test_an_all_reduce_before_the_first_step_of_a_pytorch_trace_changes_no_table(tmp_path: Path) -> None:
    trace = document(RANK)
    first = step_starts(trace)[0]
    sample = next(e for e in trace["traceEvents"] if e.get("cat") == "kernel" and "AllReduce" in e["name"])
    called = next(
        e for e in trace["traceEvents"]
        if e.get("cat") == "cuda_runtime" and e["args"].get("correlation") == sample["args"]["correlation"]
    )  # fmt: skip
    extra = [
        event | {"ts": first - 400_000 + at, "dur": lasts, "args": event["args"] | {"correlation": 987_654_321}}
        for event, at, lasts in ((called, 0, 10), (sample, 50, 300_000))
    ]
    for rank in (0, 1):
        written(tmp_path / "plain" / f"rank{rank}.json", trace)
        more = extra if rank == 1 else []
        written(tmp_path / "mutated" / f"rank{rank}.json", trace | {"traceEvents": [*trace["traceEvents"], *more]})
    before, after = (tables(tmp_path / name) for name in ("plain", "mutated"))
    assert {"cuda_api", "kernels", "collectives", "timeline", "launches"} <= set(before.rows)
    assert changed(before, after) == set()
    assert changed(before, tables(tmp_path / "mutated", CAPTURE)) >= {"cuda_api", "kernels", "collectives", "timeline"}


@pytest.mark.parametrize(
    "name", [RANK.name, pytest.param("hta_v100_2rank_allreduce_rank1.json.gz", marks=pytest.mark.rare)]
)
def test_the_step_periods_of_a_pytorch_trace_are_those_of_its_json(name: str) -> None:
    path = FOLDER / "kineto" / name
    truth = [(after - before) / 1e6 for before, after in pairwise(step_starts(document(path)))]
    # The device may begin its steps a little after the host.
    found = step_periods(activity_tables([open_trace(path)], ["timeline", "phases"], scope=STEPS))
    assert found.tolist() == pytest.approx(truth, rel=0.02)


def test_a_pytorch_trace_whose_loader_starves_is_a_fifth_as_fast(tmp_path: Path) -> None:
    """Between the steps of a real trace, four fifths of the time are inserted in which the job waits for its data."""
    trace = document(RANK)
    starts = step_starts(trace)
    wait = 4 * (starts[-1] - starts[0]) / (len(starts) - 1)
    slow = json.loads(json.dumps(trace))
    for event in slow["traceEvents"]:
        if "ts" in event:
            event["ts"] += wait * sum(event["ts"] >= start for start in starts[1:])
    fast, starved = (
        activity_tables([open_trace(written(tmp_path / name, each))], scope=STEPS)
        for name, each in (("fast.json", trace), ("starved.json", slow))
    )
    first, second, *_ = compare_captures(starved, fast)[0]
    periods = [median(b - a for a, b in pairwise(own)) / 1e6 for own in (step_starts(slow), starts)]
    assert (first["name"], second["name"]) == (PERIOD, "idle_host_elsewhere")
    assert (first["a_s"], first["b_s"]) == (pytest.approx(periods[0], rel=0.01), pytest.approx(periods[1], rel=0.01))
    assert first["ratio"] == pytest.approx(0.2, rel=0.02)
    assert second["difference_s"] == pytest.approx(-wait / 1e6, rel=0.01)
