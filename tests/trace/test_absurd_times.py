"""Times that no capture holds are refused in one line that names the file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.find_steps import find_steps
from multicard.trace.tables import CAPTURE, SCOPES, STEPS, activity_tables
from synthetic import kineto_trace, nsys_export

LOWEST, HIGHEST = -(2**63), 2**63 - 1


def refusals(path: Path) -> list[str]:
    said = []
    for look in (
        lambda: activity_tables([open_trace(path)], scope=CAPTURE),
        lambda: activity_tables([open_trace(path)], scope=STEPS),
        lambda: find_steps([open_trace(path)]),
    ):
        with pytest.raises(TraceError) as refused:
            look()
        said.append(str(refused.value))
    return said


@pytest.mark.parametrize(
    ("table", "times"),
    [
        ("KERNEL", (LOWEST, HIGHEST)),
        ("RUNTIME", (LOWEST, 0)),
        ("NVTX_EVENTS", (0, HIGHEST)),
    ],
)
def test_times_at_the_limits_of_64_bits_are_refused(times: tuple[int, int], table: str, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    table = table if table == "NVTX_EVENTS" else f"CUPTI_ACTIVITY_KIND_{table}"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f'UPDATE {table} SET start = ?, "end" = ? WHERE rowid = 1', times)
        db.commit()
    for line in refusals(path):
        assert line.startswith(f"{path}: ")
        assert "found a time of " in line and "\n" not in line


@pytest.mark.parametrize("times", [(0, 1e308), (1e308, 1), (-9e15, 1)])
def test_absurd_times_of_pytorchs_profiler_are_refused(times: tuple[float, float], tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    document = json.loads(path.read_text())
    kernel = next(event for event in document["traceEvents"] if event.get("cat") == "kernel")
    kernel["ts"], kernel["dur"] = times
    path.write_text(json.dumps(document))
    for line in refusals(path):
        assert line.startswith(f"{path}: ") and "\n" not in line
        assert "expected" in line


@pytest.mark.parametrize("scope", SCOPES)
def test_times_since_1970_are_read(scope: str, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    since = 1_800_000_000_000_000_000
    with closing(sqlite3.connect(path)) as db:
        for table in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET"):
            db.execute(f'UPDATE CUPTI_ACTIVITY_KIND_{table} SET start = start + {since}, "end" = "end" + {since}')
        db.execute(f'UPDATE NVTX_EVENTS SET start = start + {since}, "end" = "end" + {since}')
        db.commit()
    rows = activity_tables([open_trace(path)], scope=scope).rows["timeline"]
    assert rows[0]["span_s"] == pytest.approx(0.030)
