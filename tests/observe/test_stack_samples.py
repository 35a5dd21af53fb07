"""Samples of the stack show the line of the user's code that takes time, and leave the script as it is."""

import gc
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import multicard
from multicard.observe.host_work import HostWork, OpenWork
from multicard.observe.phases import BACKWARD, DATA, FORWARD, MAYBE_FORWARD, NO_PHASE, TRANSFER
from multicard.observe.record.recorder import Step
from multicard.observe.stack_samples import INTERVAL_S, Place, Stack, StackSample, StackSampler, StackSamples, Switching
from multicard.observe.user_code import Owner, owner_of
from observed_scripts import Server, after_head

# Line 4 waits in a function of a library, which is written in Python; line 7 in one that is not.
TRAIN = """
class Trainer:
    def log(self, values):
        return values.get()

def wait(lock):
    lock.acquire()
"""
HAS_QUALIFIED_NAMES = sys.version_info >= (3, 11)


def compiled(source: str, path: str) -> dict[str, Any]:
    """Return the names that source code defines which lies in a file at `path`."""
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(source, path, "exec"), names)  # noqa: S102 - a file cannot lie in the folder of a user or of multicard
    return names


@contextmanager
def waiting(function: Callable[..., Any], *arguments: Any) -> Iterator[FrameType]:
    """Give the innermost frame of a thread that waits in `function`."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    assert thread.ident is not None
    until = time.monotonic() + 60
    seen: list[int] = []  # instructions of the innermost frame
    while time.monotonic() < until and (len(seen) < 5 or len(set(seen[-5:])) > 1):
        time.sleep(0.01)
        frame = sys._current_frames()[thread.ident]
        seen.append(id(frame.f_code) + frame.f_lasti)
    yield frame


def recorded(place: Place) -> tuple[Any, ...]:
    """Return site, function and called function of a place as they are recorded."""
    samples = StackSamples()
    samples.add(None, StackSample(place, None))
    [line] = samples.record()["lines"]
    return line["site"], line["function"], line["called"]


def test_a_place_is_the_users_innermost_line_with_the_library_function_that_it_calls() -> None:
    trainer = compiled(TRAIN, "/data/train.py")["Trainer"]()
    values: queue.Queue[int] = queue.Queue()
    with waiting(trainer.log, values) as frame:
        found = recorded(Stack().place(frame))
        values.put(1)
    names = ("Trainer.log", "queue.Queue.get") if HAS_QUALIFIED_NAMES else ("log", "queue.get")
    assert found == ("train.py:4", *names)


def test_a_line_that_calls_no_python_of_a_library_names_no_function() -> None:
    wait = compiled(TRAIN, "/data/train.py")["wait"]
    lock = threading.Lock()
    lock.acquire()
    with waiting(wait, lock) as frame:
        assert recorded(Stack().place(frame)) == ("train.py:7", "wait", None)
        lock.release()


def test_frames_of_multicard_are_not_seen() -> None:
    between = str(Path(multicard.__file__).parent / "observe" / "replace.py")
    call = compiled("def call(function, *arguments):\n    function(*arguments)\n", between)["call"]
    train = compiled("def train(call, get):\n    call(get)\n", "/data/train.py")["train"]
    values: queue.Queue[int] = queue.Queue()
    with waiting(train, call, values.get) as frame:
        called = "queue.Queue.get" if HAS_QUALIFIED_NAMES else "queue.get"
        assert recorded(Stack().place(frame)) == ("train.py:2", "train", called)
        values.put(1)


def test_a_stack_without_code_of_the_user_has_no_line() -> None:
    lock = threading.Lock()
    lock.acquire()
    with waiting(lock.acquire) as frame:
        assert recorded(Stack().place(frame)) == (None, None, None)
        lock.release()


def test_packages_are_no_code_of_the_user_and_the_program_is_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = "/opt/other/lib/python3.12/site-packages/trainer/cli.py"
    assert owner_of(installed) is Owner.LIBRARY
    program = installed.replace("cli", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", program, raising=False)
    assert owner_of(program) is Owner.USER
    assert owner_of("/x/multicard/programs/vision/train.py") is Owner.USER


def test_the_phase_of_a_sample_is_that_of_its_step_and_only_measured_steps_count() -> None:
    place = Stack().place(sys._getframe())
    samples = StackSamples()
    work = OpenWork(HostWork(), samples)
    work.add_sample(StackSample(place, DATA))
    work.keep(Step(1, 1, "warmup", start=None))
    for event in (DATA, MAYBE_FORWARD):
        work.add_sample(StackSample(place, event))
    work.settle(BACKWARD)
    work.add_sample(StackSample(place, MAYBE_FORWARD))
    work.settle(NO_PHASE)
    work.add_sample(StackSample(None, NO_PHASE))  # it came too late
    work.keep(Step(2, 1, "measured", start=None))
    record = samples.record()
    assert record["stack_samples"] == 4
    assert sorted((line["phase"] or "", line["samples"]) for line in record["lines"]) == [
        ("", 1), ("data", 1), ("forward", 1),
    ]  # fmt: skip


def test_samples_before_the_first_module_are_of_a_transfer_unless_no_module_is_called() -> None:
    place = Stack().place(sys._getframe())
    samples = StackSamples()
    work = OpenWork(HostWork(), samples)
    work.add_sample(StackSample(place, TRANSFER))  # a module was called after it
    work.add_sample(StackSample(place, FORWARD))
    work.add_sample(StackSample(place, TRANSFER))  # none was
    work.settle_transfer()
    work.keep(Step(1, 1, "measured", start=None))
    counts = {line["phase"]: line["samples"] for line in samples.record()["lines"]}
    assert counts == {"transfer": 1, "forward": 2}


def test_no_samples_are_no_number() -> None:
    assert StackSamples().record() == {"stack_samples": None, "lines": []}


def test_a_late_sample_counts_only_if_the_lock_was_taken_from_the_thread_where_it_was() -> None:
    sampler = StackSampler(lambda find_place: StackSample(find_place(), None))
    interval_s = sys.getswitchinterval()
    assert not sampler.is_shifted(late_s=2 * interval_s, waited_s=0.0)
    assert sampler.is_shifted(late_s=0.5 * interval_s, waited_s=0.0)  # given up at another place
    assert sampler.is_shifted(late_s=2 * interval_s, waited_s=interval_s)  # no CPU was free


def test_the_switch_interval_is_restored_unless_the_script_has_changed_it() -> None:
    plain_s = sys.getswitchinterval()
    try:
        switching = Switching()
        switching.shorten()
        assert sys.getswitchinterval() < plain_s
        switching.restore()
        assert sys.getswitchinterval() == plain_s
        switching.shorten()
        sys.setswitchinterval(0.1)
        switching.restore()
        assert sys.getswitchinterval() == pytest.approx(0.1)
    finally:
        sys.setswitchinterval(plain_s)


def sampled_until(enough: int, function: Callable[[], None]) -> list[Place]:
    """Return the places of this thread while it calls `function`, until there are enough or a minute has passed."""
    places: list[Place] = []

    def note(find_place: Callable[[], Place]) -> StackSample:
        places.append(find_place())
        return StackSample(places[-1], None)

    sampler = StackSampler(note)
    threads = set(threading.enumerate())
    sampler.start()
    [thread] = set(threading.enumerate()) - threads
    until = time.monotonic() + 60
    while len(places) < enough and time.monotonic() < until:
        function()
    sampler.stop()
    thread.join(10 * INTERVAL_S + 10)
    assert not thread.is_alive()
    return places


def test_the_sampler_sees_this_thread_and_ends_when_it_is_stopped() -> None:
    plain_s = sys.getswitchinterval()
    [first, *_] = sampled_until(3, lambda: time.sleep(0.01))
    assert first.code is not None
    assert first.code.co_filename == __file__
    assert sys.getswitchinterval() == plain_s
    not_begun = StackSampler(lambda find_place: StackSample(find_place(), None))
    not_begun.stop()
    not_begun.stop()


class Local:
    """An object that can be watched."""


def test_the_sampler_keeps_nothing_alive_that_the_script_has_dropped() -> None:
    watched: list[weakref.ref[Local]] = []

    def compute() -> None:
        local = Local()
        watched.append(weakref.ref(local))
        time.sleep(0.02)

    gc.disable()
    try:
        assert len(sampled_until(5, compute)) >= 5
        assert [reference() for reference in watched] == [None] * len(watched)
    finally:
        gc.enable()


# Each step sleeps 40 ms in the data set, 60 ms before it calls the model, and 120 ms after its update. A process that
# it forks has the plain interval.
SLEEPING = """
import os
import sys

class Sleeping(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.zeros(4), index % 2

def augment():
    time.sleep(0.060)

def log_metrics():
    time.sleep(0.120)

def print_interval():
    os.write(1, f"interval {sys.getswitchinterval():.6f}\\n".encode())

updates = 0
for epoch in range(1000):
    for x, y in DataLoader(Sleeping(), batch_size=8):
        augment()
        loss_of(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        log_metrics()
        updates += 1
        if updates == 10:
            print_interval()
            if os.fork() == 0:
                print_interval()
                os._exit(0)
            os.wait()
"""


@pytest.mark.slow
def test_lines_that_sleep_have_the_samples_of_their_share(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(SLEEPING), measured_steps=30, warmup_steps=2)
    assert found.rank["outcome"] == "completed", found.output
    observed = found.rank["observed"]
    script = (tmp_path / "script.py").read_text().splitlines()
    at = {
        (line["phase"], line["site"], line["function"]): line["samples"] / observed["stack_samples"]
        for line in observed["lines"]
    }
    log = f"script.py:{script.index('    time.sleep(0.120)') + 1}"
    get = f"script.py:{script.index('        time.sleep(0.005)') + 1}"
    augment = f"script.py:{script.index('    time.sleep(0.060)') + 1}"
    # 30 steps are 6.6 s at least: 44 samples or more, as they are 150 ms apart at most. Those that come late on a busy
    # machine show no line.
    assert observed["stack_samples"] >= 35
    assert 0.3 < at[None, log, "log_metrics"] < 0.9
    assert 0.05 < at["data", get, "Sleeping.__getitem__" if HAS_QUALIFIED_NAMES else "__getitem__"] < 0.5
    assert 0.08 < at["transfer", augment, "augment"] < 0.6
    # On a CPU nothing is transferred: the time is one of the forward pass.
    [steps] = found.steps
    measured = [step for step in steps if step["window"] == "measured"]
    assert all(not step["transfer_s"] and float(step["forward_s"]) >= 0.060 for step in measured)
    intervals = [float(line.split()[1]) for line in found.output.splitlines() if line.startswith("interval")]
    assert intervals == [0.0002, 0.005]


# The model is called in line 10, and computes in line 4, within a block.
MODEL = """
class Block:
    def forward(self, lock):
        lock.acquire()
class Network:
    def forward(self, lock):
        Block().forward(lock)

def accuracy(lock):
    return Network().forward(lock)
"""


def test_a_place_in_the_model_has_the_line_that_called_the_model() -> None:
    accuracy = compiled(MODEL, "/data/train.py")["accuracy"]
    lock = threading.Lock()
    lock.acquire()
    with waiting(accuracy, lock) as frame:
        place = Stack().place(frame)
        assert recorded(place)[0] == "train.py:4"
        assert place.caller == "train.py:10"
        lock.release()


# Each pass has four steps of a few milliseconds; what comes between two of them takes half a second.
READING = """
def read():
    time.sleep(0.5)
    return data
for epoch in range(1000):
    for x, y in DataLoader(read(), batch_size=8):
        loss_of(x, y).backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_samples_between_passes_are_in_no_step(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(READING), measured_steps=16, profiled_steps=0)
    observed = found.rank["observed"]
    between = [line for line in observed["lines"] if line["phase"] == "between passes"]
    assert [line["function"] for line in between] == ["read"]
    # Of four passes or three, in each of which at least three of such samples are due.
    assert between[0]["samples"] >= 3
    in_steps = [line for line in observed["lines"] if line["phase"] != "between passes"]
    assert all(line["function"] != "read" for line in in_steps)
    assert sum(line["samples"] for line in in_steps) <= (observed["stack_samples"] or 0)
