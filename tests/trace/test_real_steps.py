"""Steps of real traces that others captured, when their folder is named in MULTICARD_TRACES."""

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
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

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite, kineto/*.json.gz)"
)

RANK = FOLDER / "kineto/hta_nccl_allreduce_broadcast.json.gz"  # one of two ranks
TWO_GPUS = FOLDER / "nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
MS = 1_000_000


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


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_an_all_reduce_before_the_first_step_of_a_pytorch_trace_changes_no_table(
    ranks: tuple[int, ...], tmp_path: Path
) -> None:
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
        more = extra if rank in ranks else []
        written(tmp_path / "mutated" / f"rank{rank}.json", trace | {"traceEvents": [*trace["traceEvents"], *more]})
    before, after = (tables(tmp_path / name) for name in ("plain", "mutated"))
    assert {"cuda_api", "kernels", "collectives", "timeline", "launches"} <= set(before.rows)
    assert changed(before, after) == set()
    assert changed(before, tables(tmp_path / "mutated", CAPTURE)) >= {"cuda_api", "kernels", "collectives", "timeline"}


@pytest.mark.parametrize("processes", [2, 1])
def test_an_all_reduce_before_the_first_step_of_two_ranks_changes_no_table(processes: int, tmp_path: Path) -> None:
    """The trace marks no steps: four of 50 ms are put into it, with work before and after them."""
    for name in ("plain", "mutated"):
        (tmp_path / name).mkdir()
        copy = Path(shutil.copy(TWO_GPUS, tmp_path / name / "t.sqlite"))
        copy.chmod(0o644)
        with closing(sqlite3.connect(copy)) as db:
            first = 60_150 * MS
            owners = [pid for (pid,) in db.execute("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL")]
            assert len(owners) == 2
            for pid in owners:
                for begin in range(first, first + 200 * MS, 50 * MS):
                    db.execute(
                        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, 59, 'step', ?)",
                        (begin, begin + 50 * MS, pid | 1),
                    )
            if name == "mutated":
                db.execute("INSERT INTO StringIds (id, value) VALUES (987654, ?)", (ALL_REDUCE,))
                for pid in owners[:processes]:
                    for table, owner, start, end in (
                        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", first - 350 * MS, first - 349 * MS),
                        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", first - 340 * MS, first - 40 * MS),
                    ):
                        db.execute(f"CREATE TEMP TABLE extra AS SELECT * FROM {table} WHERE {owner} >> 24 = ? LIMIT 1",
                                   (pid >> 24,))  # fmt: skip
                        db.execute("UPDATE extra SET start = ?, end = ?, correlationId = 2000000000", (start, end))
                        if owner == "globalPid":
                            db.execute("UPDATE extra SET demangledName = 987654, shortName = 987654")
                        db.execute(f"INSERT INTO {table} SELECT * FROM extra")
                        db.execute("DROP TABLE extra")
            db.commit()
    before, after = (tables(tmp_path / name) for name in ("plain", "mutated"))
    assert {"cuda_api", "kernels", "collectives", "timeline", "launches"} <= set(before.rows)
    assert changed(before, after) == set()
    assert before.absent == after.absent
    assert "all_reduce" in {row["collective"] for row in tables(tmp_path / "mutated", CAPTURE).rows["collectives"]}
    assert {row["extent"] for row in before.rows["timeline"]} == {"device"}


STEPPED = [
    path for path in sorted(FOLDER.glob("kineto/*.json.gz")) if path.name.startswith("hta_") and "cpu" not in path.name
]


@pytest.mark.parametrize("path", STEPPED, ids=lambda path: path.name)
def test_the_step_periods_of_a_pytorch_trace_are_those_of_its_json(path: Path) -> None:
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
