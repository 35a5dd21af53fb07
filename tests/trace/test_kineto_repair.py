"""Traces of PyTorch's profiler that are not quite JSON, or not quite as it writes them, are read all the same.

The capture is `kineto_trace` of `synthetic`: two kernels of 3 and 5 ms and two steps, whatever is done to its text.
"""

import gzip
import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import multicard
from changed_traces import Rows, change_events
from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.tables import ActivityTables, activity_tables
from synthetic import PID, kineto_trace

KERNEL = '"name": "gemm"'


def changed(folder: Path, edit: Callable[[str], str | bytes], name: str = "t.json") -> Path:
    """Write the capture with its text changed."""
    text = edit(kineto_trace(folder / "sound.json").read_text())
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)])


def check_whole(path: Path, *notices: str) -> None:
    """Check that the kernels, the steps and the launches of the capture were read, and what was said about it."""
    found = tables(path)
    [kernels] = found.rows["kernels"]
    assert (kernels["calls"], kernels["total_s"]) == (2, pytest.approx(0.008))
    assert sum(row["phase"] == "step" for row in found.rows["phases"]) == 2
    assert [row["joined"] for row in found.rows["launches"]] == [2]
    about_file = [line for line in found.notices if line.startswith(f"{path.name}: ")]
    assert about_file == [f"{path.name}: {notice}" for notice in notices]


def with_event(event: str) -> Callable[[str], str]:
    """Put the text of an event before the others."""
    return lambda text: text.replace("[{", f"[{event}, {{", 1)


@pytest.mark.parametrize(
    ("event", "notice"),
    [
        (r'{"name": "lib\cuda\__init__.py(21): _lazy", "ph": "X"}', "2 backslashes taken literally"),
        ('{"name": "f(12): line1\nline2\t\x01", "ph": "X"}', "control characters inside of texts were read as blanks"),
        ('{"args": {"memory bandwidth (GB/s)": inf}}', "1 number read as unknown: inf, nan, N/A or the like"),
        ('{"args": {"a": -inf, "b": nan, "c": -nan, "d": N/A}}', "4 numbers read as unknown"),
        ('{"args": {"a": NaN, "b": [Infinity, -Infinity, -nan(ind)]}}', "4 numbers read as unknown"),
        ('{"args": {"key": 1,}}', "1 place corrected"),
        ('{"args": {,"key": , "other": 1}}', "2 places corrected"),
        ('{"name": "{"device": "cpu"}(12): f", "ph": "X"}', "4 quotes inside of texts read as part of them"),
        ('{"args": {"cmd": "run "gemm" twice"}}', "2 quotes inside of texts read as part of them"),
    ],
)
def test_what_is_no_json_is_repaired(event: str, notice: str, tmp_path: Path) -> None:
    path = changed(tmp_path, with_event(event))
    [line] = [line for line in tables(path).notices if line.startswith(path.name)]
    assert line.startswith(f"t.json: {notice}")
    check_whole(path, line.removeprefix("t.json: "))


@pytest.mark.parametrize(
    ("edit", "notice"),
    [
        (lambda text: "\ufeff" + text, "begins with a byte order mark, which is no part of JSON"),
        (lambda text: text + '}, "left": 1}', "what follows the end of its JSON was left out"),
        (
            lambda text: text.replace("{", '{"INFO": {"file": "a"b", "key": "c"d"}, ', 1),
            "2 quotes inside of texts read as part of them",
        ),
        (
            lambda text: text.replace("{", '{"INFO": {nonsense}, ', 1),
            "what stands before its events is damaged and was left out, so rank and GPUs may be unknown",
        ),
        (lambda text: text.replace("[{", '[null, 5, "text", {', 1), "3 elements of its list left out: no event"),
    ],
)
def test_what_stands_around_the_events_does_not_matter(edit: Callable[[str], str], notice: str, tmp_path: Path) -> None:
    check_whole(changed(tmp_path, edit), notice)


def test_names_in_another_encoding_are_read(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda text: with_event('{"name": "C:/Jos\xe9", "ph": "X"}')(text).encode("latin-1"))
    check_whole(path, "1 character replaced: not UTF-8")


def test_a_list_at_the_top_is_read_if_it_is_of_events(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda text: json.dumps(json.loads(text)["traceEvents"]))
    check_whole(path, "a bare list of events, so rank and GPUs are unknown")
    for no_events in ("[]", "[1, 2]", '[{"a": 1}]'):
        path.write_text(no_events)
        with pytest.raises(TraceError, match="its JSON has no list traceEvents of events"):
            open_trace(path)


def test_gzip_is_told_by_the_content(tmp_path: Path) -> None:
    packed = changed(tmp_path, lambda text: gzip.compress(text.encode()), "packed.json")
    check_whole(packed, "gzipped, though its name does not end in .gz")
    check_whole(changed(tmp_path, lambda text: text, "plain.json.gz"), "not gzipped, though its name ends in .gz")


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_is_read_up_to_its_last_whole_event(packed: bool, tmp_path: Path) -> None:
    events = json.loads(kineto_trace(tmp_path / "s.json").read_text())["traceEvents"]
    lines = [json.dumps(event) for event in events]
    text = '{"traceEvents": [\n' + ",\n".join(lines) + "\n]}"
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    for length in range(text.index(lines[1]), len(text) - 2, 37):
        # What is left after the last 8 bytes of gzip, which are its checksum and length, is all of the text.
        path.write_bytes(gzip.compress(text[:length].encode())[:-8] if packed else text[:length].encode())
        trace = open_trace(path)
        assert trace.notices == (f"{path.name}: cut, or never finished: its events were read up to there",)
        whole = [event for event, line in zip(events, lines, strict=True) if text.index(line) + len(line) <= length]
        for kind, categories in {"ranges": ["user_annotation"], "memory": ["gpu_memcpy", "gpu_memset"]}.items():
            [batch] = trace.open(kind, ("start",), ("process",)).parts[0]()
            assert len(batch.group) == sum(event.get("cat") in categories for event in whole)
    path = tmp_path / "head.json"
    path.write_text('{"deviceProperties": [{"id": 0}, {"id')
    with pytest.raises(TraceError, match="cut before its events"):
        open_trace(path)


def edited(folder: Path, edit: Callable[[dict[str, Any]], object], category: str | None = None) -> Path:
    """Write the capture with all of its events of a category changed."""

    def each(events: Rows) -> None:
        for event in events:
            if category in (None, event.get("cat")):
                edit(event)

    return change_events(kineto_trace(folder / "t.json"), each)


def test_numbers_that_stand_as_text_are_read(tmp_path: Path) -> None:
    def as_text(event: dict[str, Any]) -> None:
        event |= {name: str(event[name]) for name in ("ts", "dur", "pid", "tid") if name in event}
        event["args"] = {name: str(value) for name, value in event.get("args", {}).items()}

    # 7 ranges, 3 calls, 2 kernels, 2 copies and a fill have a start and a duration.
    check_whole(edited(tmp_path, as_text), "30 times read from texts")
    assert tables(tmp_path / "t.json").rows["kernels"][0]["process"] == PID
    assert sum(row["bytes"] for row in tables(tmp_path / "t.json").rows["memory_operations"]) == 100 + 300 + 64


def test_numbers_with_a_decimal_point_are_read(tmp_path: Path) -> None:
    def as_floats(event: dict[str, Any]) -> None:
        event["args"] = {name: float(value) for name, value in event.get("args", {}).items()}

    check_whole(edited(tmp_path, as_floats))


def test_text_keeps_the_nanoseconds_of_times_since_1970(tmp_path: Path) -> None:
    """A float of so many microseconds has steps of a quarter: the kernels would last 2.999875 ms, say."""

    def later(event: dict[str, Any]) -> None:
        event["ts"] = f"{1_700_000_000_000_000 + int(event['ts'])}.125"

    path = edited(tmp_path, later)
    [batch] = open_trace(path).open("kernels", ("start",), ("device",)).parts[0]()
    assert batch.numbers["start"].tolist() == [1_700_000_000_001_000_125, 1_700_000_000_006_000_125]


def test_nulls_count_as_missing(tmp_path: Path) -> None:
    def null(events: Rows) -> None:
        events += [
            {"ph": "X", "cat": "kernel", "name": None, "pid": 2, "ts": 12_000, "dur": None, "args": {"device": 2}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGetDevice", "pid": PID, "tid": 7, "ts": 13_000, "dur": 1,
             "args": None},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGetDevice", "pid": PID, "tid": 7, "ts": None, "dur": 1},
        ]  # fmt: skip

    path = change_events(kineto_trace(tmp_path / "t.json"), null)
    document = json.loads(path.read_text()) | {"distributedInfo": None, "deviceProperties": None}
    path.write_text(json.dumps(document))
    found = tables(path)
    assert {row["kernel"]: row["calls"] for row in found.rows["kernels"]} == {"gemm": 2, "": 1}
    assert sum(row["total_s"] for row in found.rows["kernels"]) == pytest.approx(0.008)
    assert [row["calls"] for row in found.rows["cuda_api"] if row["function"] == "cudaGetDevice"] == [1]
    lines = [line for line in found.notices if line.startswith("t.json")]
    assert lines == ["t.json: 1 event left out: no time", "t.json: 1 duration read as 0: no number"]


def test_a_begin_and_an_end_make_an_event(tmp_path: Path) -> None:
    def in_halves(events: Rows) -> None:
        whole = [event for event in events if event["ph"] == "X"]
        ends = [
            {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]} for event in whole
        ]
        for event in whole:
            event["ph"] = "B"
            del event["dur"]
        events += [*ends, {"ph": "E", "pid": 99, "tid": 1, "ts": 5}, {"ph": "B", "pid": 98, "tid": 1, "ts": 5}]

    # On one thread, calls and ranges of this capture overlap without nesting, which halves cannot express.
    def apart(events: Rows) -> None:
        for number, event in enumerate(events):
            event["tid"] = number if event.get("cat") not in ("cuda_runtime", "kernel") else event["tid"]
        in_halves(events)

    path = change_events(kineto_trace(tmp_path / "t.json"), apart)
    check_whole(
        path,
        "16 events put together from begin and end",
        "2 events left out: a begin without an end, or an end without a begin",
    )


@pytest.mark.parametrize("name", ["correlation", "bytes", "device", "stream"])
def test_numbers_of_more_than_64_bits_are_unknown(name: str, tmp_path: Path) -> None:
    def widen(event: dict[str, Any]) -> None:
        event.setdefault("args", {})[name] = 1 << 64

    found = tables(edited(tmp_path, widen))
    assert found.rows["kernels"][0]["calls"] == 2
    assert all(found.table(table).num_rows for table in ("kernels", "memory_operations"))


def test_a_file_that_unpacks_to_very_much_is_read_on_demand(tmp_path: Path) -> None:
    padded = changed(tmp_path, lambda text: gzip.compress((text + " " * (70 << 20)).encode(), 1), "t.json.gz")
    with pytest.raises(TraceError, match=r"more than 40 times its size.*--large.*read_trace\(\.\.\., large=True\)"):
        multicard.read_trace(padded)
    assert multicard.read_trace(padded, tables=["kernels"], large=True).kernels["calls"].tolist() == [2]


SCALARS = (None, True, -1, 1 << 31, 1 << 62, 1 << 63, -(1 << 63) - 1, 1 << 64, 10**400, 1e308, 1.5, "7", "7.5", "x", "",
           "1e999999999", "NaN", "9" * 5000, "stream 7", [], [1], {})  # fmt: skip
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = ("correlation", "device", "stream", "sycl queue", "bytes", "dtype", "Collective name", "Group size",
             "In msg nelems", "Out msg nelems", "Process Group Name", "Seq")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "seed"), [(150, 2026), pytest.param(3_000, 2027, marks=pytest.mark.rare)])
def test_any_value_anywhere_is_read_or_refused_in_one_line(inputs: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    sound = kineto_trace(tmp_path / "s.json").read_text()
    path = tmp_path / "t.json"
    read = 0
    for _ in range(inputs):
        document = json.loads(sound)
        events = [event for event in document["traceEvents"] if event["ph"] == "X"]
        for event in chance.sample(events, chance.choice((1, 3, len(events)))):
            event[chance.choice(FIELDS)] = deepcopy(chance.choice(SCALARS))
            if isinstance(event.get("args"), dict):
                event["args"][chance.choice(ARGUMENTS)] = chance.choice(SCALARS)
        document |= {chance.choice(("distributedInfo", "deviceProperties")): chance.choice(SCALARS)}
        path.write_text(json.dumps(document))
        try:
            found = tables(path)
            for name in found.rows:
                found.table(name)
            read += 1
        except TraceError as error:
            assert "\n" not in str(error) and str(error).startswith(f"{path}: ")
    assert 0 < read <= inputs
