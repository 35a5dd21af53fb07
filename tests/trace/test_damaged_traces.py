"""Damaged traces are read or refused, soon; times that no capture holds are refused in one line that names the file."""

import random
import time
from pathlib import Path

import pytest

from changed_traces import Rows, change, change_events, rows_of
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
