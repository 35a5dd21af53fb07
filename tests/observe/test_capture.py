"""The profiled window begins and ends together on all ranks, and holds nothing but the steps and a mark of the rank."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.rendezvous import free_port
from multicard.observe.record import capture
from multicard.observe.record.capture import Capture
from multicard.observe.record.recorder import Recorder
from multicard.profilers import PROFILERS
from multicard.profilers.interface import Session
from observed_scripts import Server

CPU = torch.device("cpu")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; ranks meet at a fake barrier and wait for a fake GPU."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.append(f"synchronize {device}"))
    return seen


class _Fake(Session):
    """Notes what it is asked for, and fails in it where a test wants that."""

    def __init__(self, events: list[str]):
        self.events, self.failing, self.error = events, "", RuntimeError("no\nway")

    def note(self, what: str) -> None:
        self.events.append(what)
        if what == self.failing:
            raise self.error

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.note("opening")
        try:
            yield
        except ValueError:
            self.events.append("closed")
            raise
        self.note("closing")

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.note("range")
        yield

    def mark(self, name: str) -> None:
        self.note(name)


def capturing(events: list[str], profiler: str, folder: Path, rank: int, *devices: torch.device) -> Capture:
    return Capture(profiler, folder, rank, devices, SimpleNamespace(wait=lambda: events.append("barrier")))


@pytest.fixture
def fake(events: list[str], monkeypatch: pytest.MonkeyPatch) -> _Fake:
    """The session of a profiler `fake`."""
    session = _Fake(events)
    monkeypatch.setitem(PROFILERS, "fake", SimpleNamespace(session=lambda *_: session))
    return session


@pytest.mark.parametrize("profiler", ["fake", "none"])
@pytest.mark.parametrize("devices", [["cpu"], ["cuda"], ["cuda:0", "cuda:1"]])
def test_ranks_meet_before_and_after_recording_and_again_within_it_and_wait_for_all_gpus(
    events: list[str], devices: list[str], profiler: str, fake: _Fake, tmp_path: Path
) -> None:
    with capturing(events, profiler, tmp_path, 3, *map(torch.device, devices)).window():
        events.append("steps")
    wait = [f"synchronize {device}" for device in devices if device != "cpu"]
    opening, mark, closing = (["opening"], ["rank:3"], ["closing"]) if profiler == "fake" else ([], [], [])
    begins = [*wait, "barrier", *opening, "barrier", *mark]
    assert events == [*begins, "steps", *wait, "barrier", *closing, "barrier"]


@pytest.mark.parametrize(
    ("failing", "closings", "ranges"), [("opening", 0, 0), ("closing", 1, 2), ("range", 1, 1), ("rank:0", 1, 0)]
)
def test_a_profiler_that_fails_takes_nothing_from_a_training_that_is_to_go_on(
    failing: str, closings: int, ranges: int, events: list[str], fake: _Fake, tmp_path: Path
) -> None:
    fake.failing = failing
    recorded = capturing(events, "fake", tmp_path, 0, CPU)
    with recorded.window():
        for _ in range(2):
            with recorded.range("step"):
                events.append("step")
    assert recorded.problem == "RuntimeError: no way"
    # Other ranks wait for this one as often as ever; the script makes its steps, and what was opened is closed.
    assert [events.count(each) for each in ("barrier", "step", "closing", "range")] == [4, 2, closings, ranges]


def test_an_error_of_the_training_or_a_full_disk_is_no_fault_of_the_profiler(
    events: list[str], fake: _Fake, tmp_path: Path
) -> None:
    fake.failing, fake.error = "closing", UserError("rank0.json.gz: cannot be written: No space left on device")
    recorded = capturing(events, "fake", tmp_path, 0, CPU)
    with pytest.raises(ValueError, match="of the training"), recorded.window():
        raise ValueError("of the training")
    assert events[-1] == "closed"
    with pytest.raises(UserError, match="No space left"), recorded.window():
        pass
    assert recorded.problem is None


@pytest.mark.parametrize("gpus", [[0, 1], [1]])
def test_the_clock_waits_for_all_gpus_of_a_rank(gpus: list[int], events: list[str]) -> None:
    Recorder(0, [torch.device("cuda", gpu) for gpu in gpus]).settle()
    assert events == [f"synchronize cuda:{gpu}" for gpu in gpus]


RANKS = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from multicard.observe.record.capture import Capture
from multicard.observe.process import make_barrier

rank = int(os.fork() == 0)
os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
dist.init_process_group("gloo")
barrier = make_barrier()
folder, training, found = Path("{folder}"), dist.group.WORLD, []
for late in (0, 1):
    before = training._get_sequence_number_for_group()
    time.sleep(0.3 * (rank == late))
    times = [time.monotonic()]
    with Capture("none", folder, rank, [torch.device("cpu")], barrier).window():
        times.append(time.monotonic())
        dist.all_reduce(torch.ones(1))
        time.sleep(0.3 * (rank != late))
        times.append(time.monotonic())
    times.append(time.monotonic())
    found.append([training._get_sequence_number_for_group() - before, times])
(folder / f"rank{{rank}}.json").write_text(json.dumps(found))
if rank:
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_ranks_wait_for_each_other_without_a_collective_in_the_group_of_the_training(
    server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, RANKS.format(port=free_port(), folder=tmp_path))
    assert found.exit_code == 0, found.output
    for both in zip(*(json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)), strict=True):
        assert [collectives for collectives, _ in both] == [1, 1]
        # One clock for both, since they are on one machine.
        called, began, done, left = zip(*(times for _, times in both), strict=True)
        assert min(began) >= max(called)
        assert min(left) >= max(done)


class _StoreThatEnds(dist.Store):
    """A store whose process has ended once all ranks have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = dist.HashStore()
        self.has_ended = False

    def add(self, key: str, number: int) -> int:
        if self.has_ended and key.endswith("left"):
            raise dist.DistNetworkError("Connection reset by peer")
        return self.kept.add(key, number)

    def set(self, key: str, value: str) -> None:
        self.kept.set(key, value)

    def wait(self, keys: list[str], *_timeout: object) -> None:
        self.kept.wait(keys)


def test_a_rank_passes_its_last_barrier_though_the_one_with_the_store_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    store = _StoreThatEnds()
    barrier = capture.HostBarrier(store)
    barrier.wait()
    store.has_ended = True
    barrier.wait()
    store.has_ended = False
    barrier.leave()
    with pytest.raises(capture.RankLeft):
        barrier.wait()
