"""Idle time of real captures by cause, against plain SQL and a walk over each gap: the innermost call of the host."""

import os
import re
import sqlite3
from bisect import bisect_left
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from multicard.trace import idle
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables

TRACES = sorted(Path(os.environ.get("MULTICARD_TRACES", "/nowhere"), "nsys").glob("*.sqlite"))
MIGRATIONS = (11, 12, 13)  # copyKind, as ENUM_CUDA_MEMCPY_OPER lists it
BACKTRACE = 67  # eventClass of a row that repeats a call
NO_CALL, QUEUED, UNKNOWN = "no call", "queued", "unknown"

# What a capture's causes are here; which launching calls load code, the names of calls do not tell.
CAUSES = {
    "launch or load": (idle.LAUNCHING, idle.LOADING_CODE),
    "allocate": (idle.ALLOCATING,),
    "wait": (idle.WAITING,),
    "other": (idle.OTHER_CALLS,),
    NO_CALL: (idle.BETWEEN_CALLS, idle.DATA_LOADING, idle.ELSEWHERE),
    QUEUED: (idle.QUEUED,),
    UNKNOWN: (idle.UNKNOWN_CAUSE,),
}


class Call(NamedTuple):
    """A call of the host: its times in nanoseconds, its thread, and what it does."""

    start: int
    end: int
    thread: int
    kind: str


def kind_of(function: str) -> str:
    if re.match(r"cu(?:Module(?:Load|Unload)|Library|KernelGetFunction)", function):
        return "launch or load"
    if "Synchronize" in function:
        return "wait"
    if re.search(r"Launch|Prefetch", function):
        return "launch or load"
    if re.match(r"(?:cuda|cu)(?:Memcpy|Memset)", function):
        return "launch or load" if "Async" in function or "Memset" in function else "wait"
    if re.match(
        r"(?:cuda|cu)(?:Malloc(?!.*Info)|Free|Host(?:Alloc|Register|Unregister)|Mem(?:Alloc|Free|Host))", function
    ):
        return "allocate"
    return "other"


def calls_of(database: sqlite3.Connection) -> tuple[dict[int, list[Call]], dict[tuple[int, int], Call]]:
    """Return the calls of each process, and the first of each correlation of a process."""
    names = dict(database.execute("SELECT id, value FROM StringIds"))
    calls: dict[int, list[Call]] = defaultdict(list)
    launching: dict[tuple[int, int], Call] = {}
    rows = database.execute(
        "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME "
        f"WHERE eventClass IS NULL OR eventClass != {BACKTRACE} ORDER BY start"
    )
    for start, end, identity, correlation, name in rows:
        process = (identity >> 24) & 0xFFFFFF
        call = Call(start, end, identity & 0xFFFFFF, kind_of(names[name]))
        calls[process].append(call)
        launching.setdefault((process, correlation), call)
    return calls, launching


def causes_of(path: Path) -> dict[tuple[int, int], dict[str, int]]:
    """Return the nanoseconds of each cause of each process and device, between its first and last activity."""
    found = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        calls, launching = calls_of(database)
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        work = defaultdict(list)
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
                kind = "copyKind" if table == "MEMCPY" else "0"
                columns = f"globalPid, deviceId, start, end, correlationId, {kind}"
                for identity, device, start, end, correlation, kind in database.execute(
                    f"SELECT {columns} FROM CUPTI_ACTIVITY_KIND_{table} WHERE end > start"
                ):
                    process = (identity >> 24) & 0xFFFFFF
                    call = launching.get((process, correlation))
                    work[process, device].append(
                        (start, call.start if call else 1 << 63, end, call, kind in MIGRATIONS)
                    )
    for (process, device), activities in work.items():
        sums: dict[str, int] = defaultdict(int)
        reach = None
        for start, _, end, call, migrates in sorted(activities, key=lambda activity: activity[:2]):
            if reach is not None and start > reach:
                if call is not None:
                    launched = min(max(call.end, reach), start)
                    add_host_time(sums, [c for c in near(calls[process], reach, launched) if c.thread == call.thread],
                                  reach, launched)  # fmt: skip
                    sums[QUEUED] += start - launched
                elif migrates:
                    add_host_time(sums, near(calls[process], reach, start), reach, start)
                else:
                    sums[UNKNOWN] += start - reach
            reach = end if reach is None else max(reach, end)
        found[process, device] = dict(sums)
    return found


def near(calls: list[Call], start: int, end: int) -> list[Call]:
    """Return the calls, ordered by start, that overlap a time."""
    last = bisect_left(calls, (end,))
    longest = 3 * 10**9
    first = bisect_left(calls, (start - longest,))
    return [call for call in calls[first:last] if call.end > start]


def add_host_time(sums: dict[str, int], calls: list[Call], start: int, end: int) -> None:
    """Add each part of a time to the kind of the innermost call in it."""
    edges = sorted({start, end, *(max(start, c.start) for c in calls), *(min(end, c.end) for c in calls)})
    for left, right in pairwise(edges):
        around = [call for call in calls if call.start <= left and call.end >= right]
        innermost = max(around, key=lambda call: (call.start, -call.end), default=None)
        sums[innermost.kind if innermost else NO_CALL] += right - left


@pytest.mark.skipif(not TRACES, reason="set MULTICARD_TRACES to a folder of real traces (nsys/*.sqlite)")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_causes_of_idle_time_are_those_of_each_gaps_innermost_calls(path: Path) -> None:
    rows = activity_tables([open_trace(path)], ["timeline"]).rows["timeline"]
    captures = [row for row in rows if row["scope"] == "capture" and row["busy_s"] is not None]
    if not captures:
        pytest.skip("no kernels were recorded")
    expected = causes_of(path)
    for row in captures:
        found = {name: sum(row[f"{cause}_s"] for cause in causes) for name, causes in CAUSES.items()}
        # Steps of the host may begin before the first activity, and end after the last one.
        edges_s = row["idle_s"] - sum(expected[row["process"], row["device"]].values()) / 1e9
        for name, seconds in found.items():
            told = expected[row["process"], row["device"]].get(name, 0) / 1e9
            tolerance = edges_s + 1e-6 if name in (NO_CALL, "other", "launch or load") else 1e-6
            assert seconds == pytest.approx(told, abs=max(tolerance, 1e-6)), name
