"""Captures whose clocks break causality, and captures that lack kernels, against the truth that they were made from."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_host import events

from multicard.cli import main
from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.steps import Marks
from multicard.trace.tables import CAPTURE, STEPS, ActivityTables, activity_tables
from random_inputs import seeds
from synthetic import COPY, MS, PID, Work, training_trace

COUNT, OFFSET = 29, 325.0  # steps; ms by which the GPU's clock is ahead
STEP_TIMES = [(20.0 * n, 20.0 * n + 12) for n in range(COUNT)]
# Five kernels of 1 ms, launched 2 ms apart, and a copy to the host of 0.5 ms whose call returns 5 µs after it.
KERNELS = [(a + 2.0 * k, a + 2.0 * k + 0.01, a + 2.0 * k + 1.01, "gemm") for a, _ in STEP_TIMES for k in range(5)]
COPIES: list[Work] = [(a + 10.0, a + 10.01, a + 10.51, COPY) for a, _ in STEP_TIMES]
WORK: list[Work] = [*KERNELS, *COPIES]
RETURNS = 0.005


def capture(path: Path, offset: float = 0.0, drift: float = 0.0, lost: int = 0, waits: str = "itself") -> Path:
    """A capture of the steps; `offset` and `drift` are of the GPU's clock, in ms and as a part of the time.

    The last `lost` steps have calls, but nothing on the device. Copies are waited for by their own call, or in a
    `cudaStreamSynchronize` afterwards where `waits` is "after".
    """
    training_trace(path, {PID: STEP_TIMES}, {PID: WORK}, lanes={})
    end = STEP_TIMES[COUNT - lost - 1][1]
    if path.suffix == ".json":
        events: list[dict[str, Any]] = []
        for event in json.loads(path.read_text())["traceEvents"]:
            number = event.get("args", {}).get("correlation", 0)
            if event["cat"] == "cuda_runtime" and number >= len(KERNELS) and waits == "itself":
                event["dur"] = 1000 * (0.51 + RETURNS)
            elif event["cat"] == "cuda_runtime" and number >= len(KERNELS):
                wait = {"name": "cudaStreamSynchronize", "ts": event["ts"] + 200, "dur": 1000 * (0.31 + RETURNS)}
                events.append(event | wait | {"args": {"correlation": 10_000 + number}})
            if event["cat"] in ("kernel", "gpu_memcpy"):
                if event["ts"] > 1000 * end:
                    continue
                event["ts"] += 1000 * offset + drift * event["ts"]
                event["name"] = event["name"].replace(
                    COPY, f"Memcpy DtoH (Device -> {'Pageable' if waits == 'itself' else 'Pinned'})"
                )
            events.append(event)
        path.write_text(json.dumps({"traceEvents": events}))
        return path
    with closing(sqlite3.connect(path)) as db:
        shift = f"{offset} * {MS} + {drift} * start"
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"):
            db.execute(f"DELETE FROM {table} WHERE start > {end * MS}")
            db.execute(f'UPDATE {table} SET start = CAST(start + {shift} AS INT), "end" = CAST("end" + {shift} AS INT)')
        for column, value in (("srcKind", 2), ("dstKind", 0)):
            db.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN {column} INT DEFAULT {value}")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 2")
        returns = f"start + {round((0.51 + RETURNS) * MS)}"
        db.execute(f'UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET "end" = {returns} WHERE correlationId >= {len(KERNELS)}')
        db.commit()
    return path


def tables(path: Path, scope: str = STEPS) -> ActivityTables:
    return activity_tables([open_trace(path)], scope=scope)


def spans(found: ActivityTables) -> list[list[float]]:
    names = ("span", "busy", "idle_host_bound", "idle_host_elsewhere", "idle_other")
    return [[row[f"{name}_s"] for name in names] for row in found.rows["timeline"]]


@pytest.mark.parametrize(
    ("offset", "suffix", "waits", "scope"),
    [
        (OFFSET, "json", "itself", STEPS),
        (-OFFSET, "json", "after", CAPTURE),
        (OFFSET, "sqlite", "itself", CAPTURE),
        (-OFFSET, "sqlite", "itself", STEPS),
    ],
)
def test_times_of_a_gpu_whose_clock_is_ahead_or_behind_are_set_right(
    offset: float, suffix: str, waits: str, scope: str, tmp_path: Path
) -> None:
    right = tables(capture(tmp_path / f"a.{suffix}", waits=waits), scope)
    wrong = tables(capture(tmp_path / f"b.{suffix}", offset, waits=waits), scope)
    assert right.notices == ()
    [line] = wrong.notices
    assert "GPU and host clocks differ by 325 ms" in line
    # What is possible is 15 µs wide: a launch takes 10 µs, and a call returns 5 µs after its copy.
    for ours, truth in zip(spans(wrong), spans(right), strict=True):
        assert ours == pytest.approx(truth, abs=16e-6)
    [launches] = wrong.rows["launches"]
    assert launches["median_latency_s"] == pytest.approx(10e-6, abs=8e-6)


def test_clocks_that_drift_apart_are_refused_in_one_line(tmp_path: Path) -> None:
    # Ahead by 100 ms at first, and by 1% of the time more later: 105.6 ms after 28 steps of 20 ms.
    with pytest.raises(TraceError, match=r"clocks do not agree.*10\d ms to 10\d ms") as refused:
        tables(capture(tmp_path / "t.sqlite", 100.0, 0.01))
    assert "\n" not in str(refused.value)


def test_a_gpu_that_is_far_behind_its_host_is_no_wrong_clock(tmp_path: Path) -> None:
    # The host launches everything within 3 ms, and the last kernel ends after 150.
    work: list[Work] = [(0.02 * n, 1.0 * n + 0.01, 1.0 * n + 1.01, "gemm") for n in range(150)]
    assert tables(training_trace(tmp_path / "t.sqlite", {PID: [(0.0, 151.0)]}, {PID: work})).notices == ()


@pytest.mark.parametrize("suffix", ["json", "sqlite"])
def test_steps_that_a_capture_holds_in_part_are_left_out(suffix: str, tmp_path: Path) -> None:
    found = tables(capture(tmp_path / f"t.{suffix}", lost=6))
    whole = tables(capture(tmp_path / f"whole.{suffix}"))
    # Six calls in each of 29 steps, those of the last six without anything on the device.
    assert found.notices == (
        f"t: process {PID}: 36 of 174 kernel launches without a kernel; 6 of 29 steps, held in part, are left out",
    )
    assert [row["step"] for row in found.rows["phases"]] == list(range(1, 24))
    assert spans(found)[1:-1] == spans(whole)[1:23]
    assert spans(found)[-1][:2] == spans(whole)[23][:2]  # nothing follows the last kernel any more
    [kernels] = found.rows["kernels"]
    assert kernels["calls"] == 23 * 5


def test_a_few_launches_without_a_kernel_are_no_reason_to_leave_out_steps(tmp_path: Path) -> None:
    path = capture(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId = 3")
        db.commit()
    found = tables(path)
    assert found.notices == ()
    assert len(found.rows["phases"]) == COUNT


@seeds(20)
def test_steps_keep_their_phases_when_others_are_left_out(seed: int) -> None:
    chance = random.Random(seed)
    steps = [(10 * n, 10 * n + 8) for n in range(6)]
    first, last = chance.randrange(3), chance.randrange(3)
    ranges = events({("step", 5): steps, ("forward", 5): [(a + 1, a + 3) for a, _ in steps]})
    rows = Marks(ranges, {(0, 1): (first, last)}).rows
    kept = steps[first : len(steps) - last]
    assert [(row["phase"], row["step"], row["start"] // 100_000) for row in rows] == [
        each for number, (a, _) in enumerate(kept, 1) for each in (("step", number, a), ("forward", number, a + 1))
    ]


def test_analyze_prints_what_is_wrong_with_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path / "t.json", OFFSET, lost=6)
    main(["analyze", str(path), "--only", "timeline"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU and host clocks differ by 325 ms" in shown
    assert "36 of 174 kernel launches without a kernel; 6 of 29 steps" in shown
