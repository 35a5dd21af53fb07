"""The events for Perfetto follow the rules of the trace event format, and are those of the tables.

The rules are those of "Trace Event Format" and of Perfetto's page on other formats, checked here on their own: the
real importer needs a download.
"""

import gzip
import json
import os
import random
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captures import KernelTimes, Process, make_trace
from multicard import read_trace
from multicard.core.errors import UserError
from multicard.trace.files import open_trace
from multicard.trace.find_steps import with_steps
from multicard.trace.model import Steps
from multicard.trace.perfetto import lanes_of, write_perfetto
from synthetic import kineto_trace, nsys_export

TRACES = Path(os.environ.get("MULTICARD_TRACES", "none"))
REAL = [
    pytest.param(path, id=path.name, marks=[pytest.mark.rare] if path.stat().st_size > 2_500_000 else [])
    for path in sorted([*TRACES.glob("nsys/*.sqlite"), *TRACES.glob("kineto/*.json.gz")])
]

Events = list[dict[str, Any]]


def written(trace: Path, out: Path) -> Events:
    read_trace(trace, tables=["shares"]).write_perfetto(out)
    return json.loads(out.read_bytes())["traceEvents"]


def check(events: Events) -> None:
    """Hold the events to the format's rules."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named = set()
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] in ("X", "M")
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            start, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
            slices[event["pid"], event["tid"]].append((start, start + duration))
        if event["ph"] == "M":
            assert event["args"]["name" if event["name"].endswith("_name") else "sort_index"] not in ("", None)
            named.add((event["pid"], event["tid"]))
    for track, found in slices.items():
        assert track in named and (track[0], 0) in named
        open_ends: list[float] = []
        for start, end in sorted(found, key=lambda times: (times[0], -times[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"slices of {track} overlap without nesting"
            open_ends.append(end)


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL)
def test_the_events_of_real_traces_are_those_of_the_tables(path: Path, tmp_path: Path) -> None:
    events = written(path, tmp_path / "out.json")
    check(events)
    counts = Counter(event["cat"] for event in events if event["ph"] == "X")
    trace = read_trace(path)

    def calls(table: str) -> int:
        return sum(row["calls"] for row in trace.rows(table) if row.get("api") != "backtrace") if table in trace else 0

    assert counts["range"] == calls("ranges")
    assert counts["cuda_api"] == calls("cuda_api")
    assert counts["memory"] == calls("memory_operations")
    assert counts["kernel"] + counts["collective"] == calls("kernels")
    assert counts["collective"] == calls("collectives")
    steps = [row for row in trace.rows("phases") if row["phase"] == "step"] if "phases" in trace else []
    assert counts["step"] == len(steps)


@pytest.mark.parametrize("make", [nsys_export, kineto_trace])
def test_names_and_times_are_those_of_the_trace(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path / ("t.sqlite" if make is nsys_export else "t.json"))
    events = written(path, tmp_path / "out.json")
    check(events)
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0
    kernels = [event for event in events if event.get("cat") in ("kernel", "collective")]
    assert sum(event["dur"] for event in kernels) / 1e6 == pytest.approx(0.008)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert any("kernels" in name for name in names) and any("CUDA calls" in name for name in names)
    read_trace(path, tables=["shares"]).write_perfetto(tmp_path / "b.json.gz")  # such a name is compressed
    assert json.loads(gzip.decompress((tmp_path / "b.json.gz").read_bytes()))["traceEvents"] == events


def test_ranks_lie_on_one_timeline_with_processes_of_their_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto_trace(tmp_path / f"rank{rank}.json.gz")
    events = written(tmp_path, tmp_path / "all.perfetto")
    check(events)
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(processes) == len(set(processes)) == 4
    assert sum("rank0" in name for name in processes) == sum("rank1" in name for name in processes) == 2


def test_slices_that_overlap_without_nesting_are_put_on_lanes() -> None:
    chance = random.Random(1)
    for _ in range(100):
        starts = sorted(chance.randrange(40) for _ in range(chance.randrange(1, 30)))
        times = [(start, start + chance.randrange(12)) for start in starts]
        slices = sorted(times, key=lambda each: (each[0], -each[1]))
        lanes = lanes_of(*map(list, zip(*slices, strict=True)))
        for ((_, end), lane), ((start, last), other) in combinations(zip(slices, lanes, strict=True), 2):
            assert lane != other or end <= start or last <= end, "one begins after the other ends, or lies in it"
    assert lanes_of([0, 1, 2], [9, 8, 3]) == [0, 0, 0]


def test_the_same_events_in_another_order_give_the_same_file(tmp_path: Path) -> None:
    # Three kernels, each on a stream of its own. The second stream is that of the first thread.
    kernels: list[KernelTimes] = [(0, 1, 2, "gemm"), (2, 3, 4, "relu"), (4, 5, 6, "copy")]
    lanes = {"gemm": (11, 3), "relu": (9, 1), "copy": (10, 2)}
    files = []
    for name, order in (("a", kernels), ("b", kernels[::-1])):
        trace = make_trace(tmp_path / f"{name}.sqlite", Process([(0, 10)], order), lanes=lanes)
        files.append(tmp_path / f"{name}.json.gz")
        read_trace(trace, tables=["shares"]).write_perfetto(files[-1])
    first, second = (file.read_bytes() for file in files)
    assert first == second
    events = json.loads(gzip.decompress(first))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert [name for name in names if "kernels" in name] == [f"stream {stream}: kernels" for stream in (9, 10, 11)]


def test_steps_of_a_trace_without_other_events_count_from_the_first_of_them(tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text('{"traceEvents": []}')
    traces = [open_trace(kineto_trace(tmp_path / "slices.json")), open_trace(tmp_path / "steps.json")]
    steps = Steps(np.array([7_000, 9_000]), np.array([9_000, 12_000]), threads=(None, None))
    write_perfetto(with_steps(traces, {(1, 4243): steps}), tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]
    assert [(event["ts"], event["dur"]) for event in events if event.get("cat") == "step"] == [(0, 2), (2, 3)]


def test_nothing_is_left_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    with pytest.raises(UserError, match="no events to show on a timeline"):
        written(tmp_path / "t.json", tmp_path / "out.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_text_of_a_program_stays_text(tmp_path: Path) -> None:
    evil = 'a"b\\\n\x1b[31m</script>'
    path = tmp_path / "t.json"
    event = {"ph": "X", "cat": "user_annotation", "name": evil, "pid": 1, "tid": 1, "ts": 5, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [event]}))
    events = written(path, tmp_path / "out.json")
    check(events)
    [shown] = [event for event in events if event["ph"] == "X"]
    assert (shown["ts"], shown["dur"]) == (0, 2)  # of a capture that begins later than its clock
    assert shown["name"] == 'a"b\\ �[31m</script>'
