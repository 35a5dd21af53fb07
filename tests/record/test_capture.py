"""The profiled window begins and ends together on all ranks, and holds nothing but the steps and a mark of the rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.profilers import PROFILERS
from multicard.profilers.interface import Profiler, Session
from multicard.record import capture
from multicard.record.capture import Capture


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; ranks meet at a fake barrier and wait for a fake GPU."""
    seen: list[str] = []
    fake = SimpleNamespace(is_initialized=lambda: True, barrier=lambda: seen.append("barrier"))
    monkeypatch.setattr(capture, "dist", fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
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
    wait = ["synchronize"] if device == "cuda" else []
    assert events == ["barrier", "begins", "barrier", "rank:3", "steps", *wait, "barrier", "ends", "barrier"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nsys_captures_between_the_profiler_calls_of_cuda_or_within_a_range(
    events: list[str], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("range_push", "mark"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda text, name=name: events.append(f"{name} {text}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: events.append("range_pop"))
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: events.append(name))
    nsys = Capture("nsys", tmp_path, 0, torch.device(device))
    with nsys.window(), nsys.range("step"):
        pass
    inside = ["barrier", "mark rank:0", "range_push step", "range_pop"]
    if device == "cuda":
        assert events == ["barrier", "synchronize", "start", *inside, "synchronize", "barrier", "stop", "barrier"]
    else:
        assert events == ["barrier", "range_push profiled_window", *inside, "barrier", "range_pop", "barrier"]
