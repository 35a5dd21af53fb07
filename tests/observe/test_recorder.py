"""Steps and phases are timed and recorded, with the peaks of memory that PyTorch, or the system, tells."""

import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.core.layout import STEP_COLUMNS
from multicard.observe.record import recorder as recorder_module
from multicard.observe.record.clock import CudaClock, HostClock
from multicard.observe.record.recorder import Diverged, PeakMemory, Recorder, SettledStep, Step, StepCounts, peak_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def recorder() -> Recorder:
    return Recorder(3, [CPU])


@contextmanager
def step(made: Recorder, epoch: int, window: str) -> Iterator[Step]:
    one = made.begin(epoch, window)
    yield one
    one.end = made.clock.mark()
    made.end(one)


@contextmanager
def phase(made: Recorder, one: Step, name: str) -> Iterator[None]:
    start = made.clock.mark()
    yield
    one.phases.append((name, start, made.clock.mark()))


def one_step(made: Recorder, loss: float = 1.0) -> None:
    with step(made, epoch=2, window="measured") as one:
        with phase(made, one, "data"):
            time.sleep(0.02)
        for _ in range(2):
            with phase(made, one, "forward"):
                time.sleep(0.03)
        one.counts = StepCounts(samples=5)
        one.values["loss"].append((1.0, torch.tensor(loss)))


def test_equal_phases_add_up_and_one_that_did_not_happen_is_empty_not_zero(tmp_path: Path) -> None:
    made = recorder()
    for _ in range(2):
        one_step(made)
        made.settle()
    first = made.rows[0]
    assert first.phases_s["data"] >= 0.02
    assert first.phases_s["forward"] >= 0.06
    assert first.phases_s["data"] + first.phases_s["forward"] <= first.duration_s
    made.write(tmp_path / "steps.csv")
    with (tmp_path / "steps.csv").open(newline="") as file:
        row, following = csv.DictReader(file)
    assert tuple(row) == STEP_COLUMNS
    assert row["backward_s"] == row["optimizer_s"] == ""
    assert (row["rank"], row["epoch"], row["step"], row["samples"], row["loss"]) == ("3", "2", "1", "5", "1.0")
    assert int(row["peak_memory_bytes"]) > 1e6
    assert following["step"] == "2"  # across epochs


def test_peaks_are_read_once_a_window_and_what_lies_between_epochs_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 + 3 steps, then a test, then 4 steps: each makes the peak that is its number, the test one of 100."""
    peak, reads, gpus = 0, [], [torch.device("cuda", 0), torch.device("cuda", 1)]

    def read(*devices: torch.device, reset: bool = True) -> PeakMemory:
        nonlocal peak
        reads.append(devices)
        found, peak = PeakMemory(peak, 2 * peak), 0 if reset else peak
        return found

    monkeypatch.setattr(recorder_module, "peak_memory", read)
    made, number = Recorder(0, gpus), 0
    made.clock = HostClock()
    for windows in (["warmup"] * 2 + ["measured"] * 3, ["measured"] * 4):
        for window in windows:
            with step(made, epoch=1, window=window):
                number += 1
                peak = max(peak, number)
        made.settle()
        peak = 100
    assert [step.peaks.allocated for step in made.rows if step.peaks] == [2, 2, 5, 5, 5, 9, 9, 9, 9]
    assert [step.peaks.reserved for step in made.rows if step.peaks] == [4, 4, 10, 10, 10, 18, 18, 18, 18]
    assert reads == 5 * [tuple(gpus)]  # as each epoch begins and ends, and between the windows


def test_the_peak_of_a_process_is_read_every_tenth_step_and_at_the_end_of_each_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 12 + 13 steps each has the peak that is its number."""
    made, number = Recorder(0, [CPU], reset_peaks=False), 0
    monkeypatch.setattr(recorder_module, "peak_memory", lambda *_, **__: PeakMemory(number, None))
    for window in ["warmup"] * 12 + ["measured"] * 13:
        with step(made, epoch=1, window=window):
            number += 1
    made.settle()
    peaks = [step.peaks.allocated for step in made.rows if step.peaks]
    assert peaks == 10 * [10] + 2 * [12] + 8 * [20] + 5 * [25]


class Event:
    """An event of CUDA, each of which is recorded a second after the last one; it counts how many are made."""

    made = recorded = 0

    def __init__(self, **_: Any):
        Event.made += 1

    def record(self, _stream: Any) -> None:
        """Note the moment."""
        Event.recorded += 1
        self.at = Event.recorded

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds."""
        return 1e3 * (end.at - self.at)


def test_events_are_made_before_the_steps_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    made = recorder()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    made.clock = CudaClock([torch.device("cuda")])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    made.clock.reserve(2)
    ready = Event.made
    for _ in range(3):
        for _ in range(2):
            one_step(made)
        made.settle()
    assert Event.made == ready == 2 * 12
    # A step has the marks of its start, of three phases, and of its end; whoever settles makes another.
    assert [step.start_s for step in made.rows] == [0, 8, 17, 25, 34, 42]
    assert {(row.duration_s, row.phases_s["data"], row.phases_s["forward"]) for row in made.rows} == {(7, 1, 2)}


class Scripted:
    """A clock whose marks are given beforehand, and whose times have the precision that CUDA gives them."""

    def __init__(self, marks: list[float]):
        self.marks = iter(marks)

    def mark(self) -> float:
        """Give the next mark."""
        return next(self.marks)

    def settle(self) -> None:
        """Nothing to wait for."""

    forget = reserve = lambda *_: None

    def seconds(self, start: float, end: float) -> float:
        """Milliseconds in single precision, as seconds."""
        return torch.tensor((end - start) * 1e3, dtype=torch.float32).item() / 1e3

    def now(self) -> tuple[float, float]:
        """Half an hour by its own marks, and an hour by the clock of the machine."""
        return 1800.0, 3600.0


def steps_at(made: Recorder, marks: list[float], epoch: int = 1) -> list[SettledStep]:
    """Steps whose starts and ends take turns in `marks`."""
    made.clock = Scripted(marks)
    for _ in range(len(marks) // 2):
        with step(made, epoch, "measured"):
            pass
    return made.settle()


def test_windows_are_the_times_of_the_measured_steps_of_each_epoch_by_the_clock_of_the_machine(tmp_path: Path) -> None:
    made = recorder()
    first = steps_at(made, [50.0, 51.0, 53.0, 54.0])
    later = steps_at(made, [80.0, 81.0, 81.0, 85.0], epoch=2)  # after a test of the model
    # A step starts so long after the first of the run, whatever lies between.
    assert [step.start_s for step in (*first, *later)] == [0.0, 3.0, 30.0, 31.0]
    made.clock = Scripted([90.0, 91.0])
    with step(made, epoch=2, window="profiled"):
        pass
    made.settle()
    assert made.windows == [pytest.approx([1850.0, 1854.0]), pytest.approx([1880.0, 1885.0])]


def test_steps_late_in_a_run_are_as_far_apart_as_at_its_beginning(tmp_path: Path) -> None:
    # In single precision, milliseconds since a start two days ago are 16 apart.
    day = 86_400.0
    rows = steps_at(recorder(), [0.0, 1.0, day, day + 1, 2 * day, 2 * day + 1, 2 * day + 1.001, 2 * day + 2])
    assert rows[3].start_s - rows[2].start_s == pytest.approx(1.001, abs=1e-6)


def test_a_step_has_the_mean_of_its_values_by_their_weights() -> None:
    made = recorder()
    with step(made, 1, "measured") as one:
        one.values["loss"] += [(1.0, torch.tensor([2.0, 4.0])), (3.0, torch.tensor(7.0))]
    [settled] = made.settle()
    row = settled.cells()
    assert (row["loss"], row["reward_chosen"]) == ((3 + 3 * 7) / 4, None)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_reported_and_the_step_is_kept(tmp_path: Path, loss: float) -> None:
    made = recorder()
    one_step(made)
    one_step(made, loss)
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step 2"):
        made.settle()
    assert len(made.rows) == 2


def test_a_cpu_process_has_a_resident_peak_and_reserves_nothing() -> None:
    before = peak_memory(CPU)
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    after = peak_memory(CPU)
    assert before.reserved is None
    assert after.reserved is None
    assert after.allocated >= 200 * 2**20
    assert after.allocated >= before.allocated


def test_of_several_gpus_the_fullest_counts_and_each_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    counters = {
        gpus[0]: {"allocated_bytes": {"all": {"peak": 5}}, "reserved_bytes": {"all": {"peak": 6}}},
        gpus[1]: {"allocated_bytes": {"all": {"peak": 3}}, "reserved_bytes": {"all": {"peak": 9}}},
    }
    asked, reset = [], []
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda gpu: asked.append(gpu) or counters[gpu])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    assert peak_memory(*gpus) == (5, 9)
    assert asked == reset == gpus


@pytest.fixture
def on_gpu() -> None:
    """CUDA is initialized, as in a rank when it begins to measure; no test needs another one before it."""
    torch.cuda.init()


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
def test_peaks_are_those_that_pytorch_reports() -> None:
    peak_memory(CUDA)
    torch.empty(64 * 2**20, dtype=torch.uint8, device=CUDA)
    told = (torch.cuda.max_memory_allocated(CUDA), torch.cuda.max_memory_reserved(CUDA))
    assert told[0] >= 64 * 2**20
    assert peak_memory(CUDA) == told
