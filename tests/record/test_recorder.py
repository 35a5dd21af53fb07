"""Steps and phases are timed and recorded."""

import csv
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.core.layout import STEP_COLUMNS
from multicard.record import recorder as recorder_module
from multicard.record.capture import Capture
from multicard.record.clock import CudaClock
from multicard.record.memory import PeakMemory
from multicard.record.recorder import Diverged, Recorder

CPU = torch.device("cpu")


def recorder(tmp_path: Path) -> Recorder:
    return Recorder(rank=3, device=CPU, capture=Capture("none", tmp_path, 3, CPU))


def one_step(recorder: Recorder, loss: float = 1.0) -> None:
    with recorder.step(epoch=2, window="measured") as step:
        with recorder.phase("data"):
            time.sleep(0.02)
        for _ in range(2):
            with recorder.phase("forward"):
                time.sleep(0.03)
        step.add(5, torch.tensor(loss))


def test_equal_phases_add_up_and_one_that_did_not_happen_is_empty_not_zero(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    for _ in range(2):
        one_step(made)
        made.settle()
    assert made.rows[0]["data_s"] >= 0.02
    assert made.rows[0]["forward_s"] >= 0.06
    assert made.rows[0]["data_s"] + made.rows[0]["forward_s"] <= made.rows[0]["duration_s"]
    made.write(tmp_path / "steps.csv")
    with (tmp_path / "steps.csv").open(newline="") as file:
        row, following = csv.DictReader(file)
    assert tuple(row) == STEP_COLUMNS
    assert row["backward_s"] == row["checkpoint_s"] == ""
    assert (row["rank"], row["epoch"], row["step"], row["samples"], row["loss"]) == ("3", "2", "1", "5", "1.0")
    assert int(row["peak_memory_bytes"]) > 1e6
    assert following["step"] == "2"  # across epochs


def test_only_the_time_within_a_phase_is_of_the_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorder(tmp_path)
    marks = iter([10.0, 11.0, 13.0, 17.0, 25.0, 41.0, 73.0, 100.0])  # of the step, of three phases, of the step
    monkeypatch.setattr(made.clock, "mark", lambda: next(marks))
    with made.step(epoch=1, window="measured") as step:
        for phase in ("data", "forward", "forward"):
            with made.phase(phase):
                pass
        step.add(1, torch.tensor(1.0))
    [row] = made.settle()
    assert (row["duration_s"], row["data_s"], row["forward_s"]) == (90.0, 2.0, (25 - 17) + (73 - 41))


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
    made, number = Recorder(0, CPU, Capture("none", tmp_path, 0, CPU), gpus), 0
    for windows in (["warmup"] * 2 + ["measured"] * 3, ["measured"] * 4):
        for window in windows:
            with made.step(epoch=1, window=window) as step:
                number += 1
                peak = max(peak, number)
                step.add(1, torch.tensor(1.0))
        made.settle()
        peak = 100
    assert [row["peak_memory_bytes"] for row in made.rows] == [2, 2, 5, 5, 5, 9, 9, 9, 9]
    assert [row["peak_reserved_bytes"] for row in made.rows] == [4, 4, 10, 10, 10, 18, 18, 18, 18]
    assert reads == 5 * [tuple(gpus)]  # as each epoch begins and ends, and between the windows


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
    made = recorder(tmp_path)
    made.clock = CudaClock([])
    made.clock.reserve(2)
    ready = Event.made
    for _ in range(3):
        for _ in range(2):
            one_step(made)
        made.settle()
    assert Event.made == ready == 2 * 12
    # A step has the marks of its start, of three phases, and of its end; whoever settles makes another.
    assert [row["start_s"] for row in made.rows] == [0, 8, 17, 25, 34, 42]
    assert {(row["duration_s"], row["data_s"], row["forward_s"]) for row in made.rows} == {(7, 1, 2)}


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


def steps_at(made: Recorder, marks: list[float], epoch: int = 1) -> list[dict[str, Any]]:
    """Rows of steps whose starts and ends take turns in `marks`."""
    made.clock = Scripted(marks)
    for _ in range(len(marks) // 2):
        with made.step(epoch, window="measured") as step:
            step.add(1, torch.tensor(1.0))
    return made.settle()


def test_windows_are_the_times_of_the_measured_steps_of_each_epoch_by_the_clock_of_the_machine(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    first = steps_at(made, [50.0, 51.0, 53.0, 54.0])
    later = steps_at(made, [80.0, 81.0, 81.0, 85.0], epoch=2)  # after a test of the model
    # A step starts so long after the first of the run, whatever lies between.
    assert [row["start_s"] for row in (*first, *later)] == [0.0, 3.0, 30.0, 31.0]
    made.clock = Scripted([90.0, 91.0])
    with made.step(epoch=2, window="profiled"):
        pass
    made.settle()
    assert made.windows == [pytest.approx([1850.0, 1854.0]), pytest.approx([1880.0, 1885.0])]


def test_steps_late_in_a_run_are_as_far_apart_as_at_its_beginning(tmp_path: Path) -> None:
    # In single precision, milliseconds since a start two days ago are 16 apart.
    day = 86_400.0
    rows = steps_at(recorder(tmp_path), [0.0, 1.0, day, day + 1, 2 * day, 2 * day + 1, 2 * day + 1.001, 2 * day + 2])
    assert rows[3]["start_s"] - rows[2]["start_s"] == pytest.approx(1.001, abs=1e-6)


def test_after_an_interruption_a_step_starts_where_the_last_one_ended(tmp_path: Path) -> None:
    before, after = recorder(tmp_path), recorder(tmp_path)
    steps_at(before, [10.0, 11.0, 12.0, 14.5])
    before.write(tmp_path / "steps.csv")
    after.continue_from((tmp_path / "steps.csv").read_text())
    steps_at(after, [1000.0, 1001.0, 1003.0, 1004.0])  # by the clock of another process
    assert [float(row["start_s"]) for row in after.rows] == [0.0, 2.0, 4.5, 7.5]
    assert [int(row["step"]) for row in after.rows] == [1, 2, 3, 4]


def test_a_trace_shows_no_step_and_no_phase_of_the_warmup(tmp_path: Path) -> None:
    made, shown = recorder(tmp_path), []
    made.capture.range = lambda name: nullcontext(shown.append(name))
    for window in ("warmup", "profiled"):
        with made.step(epoch=1, window=window) as step, made.phase("data"):
            step.add(1, torch.tensor(1.0))
    assert shown == ["warmup", "step", "data"]
    assert [row["data_s"] is None for row in made.settle()] == [False, False]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_reported_and_the_step_is_kept(tmp_path: Path, loss: float) -> None:
    made = recorder(tmp_path)
    one_step(made)
    one_step(made, loss)
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step 2"):
        made.settle()
    assert len(made.rows) == 2
