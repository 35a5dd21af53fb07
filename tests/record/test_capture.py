"""The profiled window begins and ends together on all ranks, and holds nothing but the steps and a mark of the rank."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.core.errors import UserError
from multicard.profilers import PROFILERS
from multicard.profilers.interface import Profiler, Session
from multicard.record import capture
from multicard.record.capture import Capture
from multicard.record.recorder import Recorder


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; ranks meet at a fake barrier and wait for a fake GPU."""
    seen: list[str] = []
    monkeypatch.setattr(capture, "dist", SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setattr(capture, "HostBarrier", lambda: SimpleNamespace(wait=lambda: seen.append("barrier")))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.append(f"synchronize {device}"))
    return seen


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_meet_before_and_after_recording_and_again_within_it(
    events: list[str], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeSession(Session):
        @contextmanager
        def recording(self) -> Iterator[None]:
            events.append("begins")
            yield
            events.append("ends")

        def mark(self, name: str) -> None:
            events.append(name)

    class Fake(Profiler):
        name, order, description = "fake", 9, "fake"

        def session(self, *_: Any) -> Session:
            return FakeSession()

    monkeypatch.setitem(PROFILERS._entries, "fake", Fake())
    with Capture("fake", tmp_path, 3, torch.device(device)).window():
        events.append("steps")
    wait = ["synchronize cuda"] if device == "cuda" else []
    begins = [*wait, "barrier", "begins", "barrier", "rank:3"]
    assert events == [*begins, "steps", *wait, "barrier", "ends", "barrier"]


@pytest.mark.parametrize("failing", ["opening", "closing", "range", "mark"])
def test_a_profiler_that_fails_takes_nothing_from_a_training_that_is_to_go_on(
    events: list[str], failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Session):
        def fail(self, what: str) -> None:
            events.append(what)
            if what == failing:
                raise RuntimeError(f"no {what}\nhere")

        @contextmanager
        def recording(self) -> Iterator[None]:
            self.fail("opening")
            yield
            self.fail("closing")

        @contextmanager
        def range(self, name: str) -> Iterator[None]:
            self.fail("range")
            yield

        def mark(self, name: str) -> None:
            self.fail("mark")

    class Fake(Profiler):
        name, order, description = "fake", 9, "fake"

        def session(self, *_: Any) -> Session:
            return Failing()

    monkeypatch.setitem(PROFILERS._entries, "fake", Fake())
    capture = Capture("fake", tmp_path, 0, torch.device("cpu"), forgiving=True)
    with capture.window():
        for _ in range(2):
            with capture.range("step"):
                events.append("step")
    assert capture.problem == f"RuntimeError: no {failing} here"
    # Other ranks wait for this one as often as ever; the script makes its steps, and what was opened is closed.
    assert events.count("barrier") == 4
    assert events.count("step") == 2
    assert events.count("closing") == (failing != "opening")
    assert events.count("range") == {"opening": 0, "closing": 2, "range": 1, "mark": 0}[failing]


def test_an_error_of_the_training_or_a_full_disk_is_no_fault_of_the_profiler(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake(Profiler):
        name, order, description = "fake", 9, "fake"

        def session(self, *_: Any) -> Session:
            return Full()

    class Full(Session):
        @contextmanager
        def recording(self) -> Iterator[None]:
            try:
                yield
            except ValueError:
                events.append("closed")
                raise
            raise UserError("rank0.json.gz: cannot be written: No space left on device")

    monkeypatch.setitem(PROFILERS._entries, "fake", Fake())
    capture = Capture("fake", tmp_path, 0, torch.device("cpu"), forgiving=True)
    with pytest.raises(ValueError, match="of the training"), capture.window():
        raise ValueError("of the training")
    assert events[-1] == "closed"
    with pytest.raises(UserError, match="No space left"), capture.window():
        pass
    assert capture.problem is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nsys_captures_within_a_range_on_every_device(
    events: list[str], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda text: events.append(f"mark {text}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", lambda text: events.append(f"start {text}") or text)
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda text: events.append(f"end {text}"))
    nsys = Capture("nsys", tmp_path, 0, torch.device(device))
    with nsys.window(), nsys.range("step"):
        pass
    inside = ["barrier", "mark rank:0", "start step", "end step"]
    wait = ["synchronize cuda"] if device == "cuda" else []
    around = [*wait, "barrier", "start profiled_window"], [*wait, "barrier", "end profiled_window", "barrier"]
    assert events == [*around[0], *inside, *around[1]]


def test_the_window_and_the_clock_wait_for_all_gpus_of_a_rank(events: list[str], tmp_path: Path) -> None:
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    waits = [f"synchronize {gpu}" for gpu in ("cuda:0", "cuda:1")]
    capture = Capture("none", tmp_path, 0, gpus[0], gpus)
    with capture.window():
        events.append("steps")
    assert events == [*waits, "barrier", "barrier", "steps", *waits, "barrier", "barrier"]
    events.clear()
    Recorder(0, gpus[0], capture, gpus).settle()
    assert events == waits
    events.clear()
    Recorder(0, gpus[1], capture).settle()
    assert events == waits[1:]


RANK = """
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.record.capture import Capture

dist.init_process_group("gloo")
folder, rank, training = Path(sys.argv[1]), dist.get_rank(), dist.group.WORLD
found = []
for late in (0, 1):
    before = training._get_sequence_number_for_group()
    time.sleep(0.3 * (rank == late))
    times = [time.monotonic()]
    with Capture("none", folder, rank, torch.device("cpu")).window():
        times.append(time.monotonic())
        dist.all_reduce(torch.ones(1))
        time.sleep(0.3 * (rank != late))
        times.append(time.monotonic())
    times.append(time.monotonic())
    found.append([training._get_sequence_number_for_group() - before, times])
(folder / f"rank{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_wait_for_each_other_without_a_collective_in_the_group_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, tmp_path / "program.py", tmp_path], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    for both in zip(*(json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)), strict=True):
        assert [collectives for collectives, _ in both] == [1, 1]
        # One clock for both, since they are on one machine.
        called, began, done, left = zip(*(times for _, times in both), strict=True)
        assert min(began) >= max(called)
        assert min(left) >= max(done)
