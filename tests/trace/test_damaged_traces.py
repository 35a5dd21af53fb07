"""Damaged traces are read or refused, soon; times that no capture holds are refused in one line that names the file."""

import contextlib
import json
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from changed_traces import Rows, change, change_events, rows_of
from multicard import read_trace
from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.find_steps import find_steps
from multicard.trace.tables import CAPTURE, SCOPES, STEPS, activity_tables
from synthetic import add_messages, kineto_trace, nsys_export

LOWEST, HIGHEST = -(2**63), 2**63 - 1
TIMED = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET")] + ["NVTX_EVENTS"]


def check_refused(path: Path, says: str) -> None:
    for look in (
        lambda: rows_of(path, scope=CAPTURE),
        lambda: rows_of(path, scope=STEPS),
        lambda: find_steps([open_trace(path)]),
    ):
        with pytest.raises(TraceError) as refused:
            look()
        [line] = str(refused.value).splitlines()
        assert line.startswith(f"{path}: ") and says in line


@pytest.mark.parametrize(
    ("table", "start", "end"),
    [(TIMED[0], LOWEST, HIGHEST), (TIMED[1], LOWEST, 0), ("NVTX_EVENTS", 0, HIGHEST)],
)
def test_times_at_the_limits_of_64_bits_are_refused(table: str, start: int, end: int, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    check_refused(
        change(path, f'UPDATE {table} SET start = {start}, "end" = {end} WHERE rowid = 1'), "found a time of "
    )


@pytest.mark.parametrize("times", [(0, 1e308), (1e308, 1), (-9e15, 1)])
def test_absurd_times_of_pytorchs_profiler_are_refused(times: tuple[float, float], tmp_path: Path) -> None:
    def edit(events: Rows) -> None:
        kernel = next(event for event in events if event.get("cat") == "kernel")
        kernel["ts"], kernel["dur"] = times

    check_refused(change_events(kineto_trace(tmp_path / "t.json"), edit), "expected")


@pytest.mark.parametrize("scope", SCOPES)
def test_times_since_1970_are_read(scope: str, tmp_path: Path) -> None:
    since = 1_800_000_000_000_000_000
    later = (f'UPDATE {table} SET start = start + {since}, "end" = "end" + {since}' for table in TIMED)
    path = change(nsys_export(tmp_path / "t.sqlite"), *later)
    assert rows_of(path, scope=scope)["timeline"][0]["span_s"] == pytest.approx(0.030)


LONGEST_S = 10.0  # of the processor, against hanging; a sound file of this size takes some milliseconds


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Flip, cut, insert or delete some bytes."""
    data = bytearray(content)
    match chance.randrange(4):
        case 0:
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 1:
            del data[chance.randrange(len(data)) :]
        case 2:
            at = chance.randrange(len(data))
            data[at:at] = chance.randbytes(chance.randrange(1, 30))
        case 3:
            at = chance.randrange(len(data))
            del data[at : at + chance.randrange(1, 200)]
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "seed"), [(400, 2026), pytest.param(5_000, 2027, marks=pytest.mark.rare)])
def test_a_damaged_trace_is_read_or_refused_in_bounded_time(inputs: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with_messages = nsys_export(tmp_path / "m.sqlite", text_column=False)
    add_messages(with_messages)
    sources = {
        "t.sqlite": nsys_export(tmp_path / "s.sqlite", other_calls=True).read_bytes(),
        "with messages.sqlite": with_messages.read_bytes(),
        "t.json": kineto_trace(tmp_path / "s.json").read_bytes(),
        "t.json.gz": kineto_trace(tmp_path / "s.json.gz").read_bytes(),
    }
    refused = 0
    for _ in range(inputs):
        name = chance.choice(list(sources))
        (tmp_path / name).unlink(missing_ok=True)  # what is truncated and written again goes to the disk at once: 4 ms
        (tmp_path / name).write_bytes(damaged(sources[name], chance))
        started = time.process_time()
        try:
            activity_tables([open_trace(tmp_path / name)])
        except TraceError as error:
            assert "\n" not in str(error)
            refused += 1
        assert time.process_time() - started < LONGEST_S
    assert 0 < refused < inputs


ODD = ["10000000000000000000000000", "-1", "NaN", "Infinity", "1e308", '"x"', "null", "true"]  # in place of a number
ODD_IN_SQLITE = ["1e25", "-1", "9e999", "'x'", "NULL", "9223372036854775807", "x'00ff'"]


def look(path: Path) -> None:
    """Ask all that is asked of a trace; refusals are in one line."""
    try:
        for scope in SCOPES:
            trace = read_trace(path, scope=scope)
            assert trace.answer().sentence
            json.dumps({name: trace.rows(name) for name in trace})
            assert all(trace[name] is not None for name in trace)
    except TraceError as refused:
        assert str(refused).startswith(f"{path}: ") and "\n" not in str(refused)


def numbers_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of the numbers in JSON."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(each, (*place, key))
    elif isinstance(value, int | float):
        yield place


def with_number(path: Path, place: tuple[Any, ...], value: str) -> Path:
    """Write another trace, with JSON in the place of a number of this one."""
    document = json.loads(path.read_text())
    within = document
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = "THE NUMBER"
    other = path.with_name("odd.json")
    other.write_text(json.dumps(document).replace('"THE NUMBER"', value))
    return other


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("key", ["device", "dur", "ts", "rank"])
def test_an_odd_number_of_pytorchs_profiler_gives_no_traceback(key: str, value: str, tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    document = json.loads(path.read_text())
    of_kernel = [
        place
        for place in numbers_in(document)
        if place[-1] == key and (key == "rank" or document["traceEvents"][place[1]].get("cat") == "kernel")
    ]
    look(with_number(path, of_kernel[0], value))


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("device", "1 event on an unknown device: args.device is no whole number of 64 bits"),
        ("rank", "its rank is unknown: distributedInfo.rank is no whole number of 64 bits"),
    ],
)
def test_a_number_that_needs_more_than_64_bits_is_told(key: str, says: str, tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    numbers = numbers_in(json.loads(path.read_text()))
    odd = with_number(path, next(place for place in numbers if place[-1] == key), str(1 << 70))
    assert f"odd.json: {says}" in read_trace(odd).notices
    assert not any("64 bits" in line for line in read_trace(path).notices)


@pytest.mark.rare
def test_each_odd_number_in_turn_gives_no_traceback(tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    events = json.loads(path.read_text())["traceEvents"]
    kinds = {}
    for place in numbers_in(json.loads(path.read_text())):
        kind = events[place[1]].get("cat") if place[0] == "traceEvents" else place[1]
        kinds.setdefault((kind, place[2:]), place)
    assert len(kinds) > 20
    for place in kinds.values():
        for value in ODD:
            look(with_number(path, place, value))


@pytest.mark.parametrize("value", ODD_IN_SQLITE)
@pytest.mark.parametrize(
    ("table", "column"),
    [(TIMED[0], "deviceId"), (TIMED[0], "start"), (TIMED[2], "bytes"), ("NVTX_EVENTS", "globalTid")],
)
def test_an_odd_number_of_nsys_gives_no_traceback(table: str, column: str, value: str, tmp_path: Path) -> None:
    look(change(nsys_export(tmp_path / "t.sqlite"), f'UPDATE {table} SET "{column}" = {value} WHERE rowid = 1'))


@pytest.mark.rare
def test_each_odd_number_of_nsys_in_turn_gives_no_traceback(tmp_path: Path) -> None:
    sound = nsys_export(tmp_path / "sound.sqlite", text_column=False, other_calls=True)
    add_messages(sound)
    with closing(sqlite3.connect(sound)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(table, row[1]) for table in tables for row in db.execute(f"PRAGMA table_info({table})")]
    for table, column in columns:
        for value in ODD_IN_SQLITE:
            odd = Path(shutil.copy(sound, tmp_path / "odd.sqlite"))
            with contextlib.suppress(sqlite3.Error):  # not every column takes any value
                change(odd, f'UPDATE {table} SET "{column}" = {value} WHERE rowid = 1')
            look(odd)
