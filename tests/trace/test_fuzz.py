"""Damaged traces: whatever happens to the bytes, a reader reads or refuses, and does so soon."""

import random
import time
from pathlib import Path

import pytest

from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables
from synthetic import add_messages, kineto_trace, nsys_export

pytestmark = pytest.mark.slow

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
