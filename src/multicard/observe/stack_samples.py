"""Sample the stack of the thread that trains, in measured steps, to find the lines of the user's code that take time.

`StackSampler` looks at the stack now and then, on a thread of its own. `RecordedEvents` keeps each sample with the open
step, as `StackSample`, until its phase is known. `StackSamples` counts those of all measured steps.
"""

import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

from multicard.core.layout import BETWEEN_PASSES
from multicard.core.values import JsonObject
from multicard.observe.user_code import Owner, owner_of, site_of

# Mean time between two samples, so that they take about a thousandth of the time. Times between them are from half of
# it to one and a half, so that samples do not keep step with the training.
INTERVAL_S = 0.100
# Names of multicard's own threads in a script begin with this.
OWN_THREADS = "multicard"
# The method of a module that computes, and that of a function of autograd.
MODEL_METHOD = "forward"
# At most so many lines are recorded.
MOST_LINES = 50
# While the sampler runs, a thread that waits for Python's lock asks for it after so long: see `Switching`.
SWITCH_S = 0.0002
# A sample that is later than this, and than this share of a step, may show what came after the moment for which it
# stands.
LATE_S = 0.001
LATE_SHARE = 0.02


class Place:
    """Where a thread was: an instruction of the user's code, and the function of a library that it called.

    `code` is None if no code of the user was on the stack, `called` if the instruction called no library, or one that
    is not written in Python. `line`: number of the line in the file. `caller`: the user's line that called the model,
    if the instruction is in the `forward` of a module; else None.
    """

    __slots__ = ("called", "caller", "code", "line", "module")

    def __init__(self, code: CodeType | None, line: int | None, called: FrameType | None, caller: FrameType | None):
        self.caller = None if caller is None else site_of(caller.f_code.co_filename, caller.f_lineno)
        self.code = code
        self.line = line
        self.called: CodeType | None = None if called is None else called.f_code
        self.module: str | None = None if called is None else called.f_globals.get("__name__")


class StackSample:
    """A sample in the open step. `event`: the latest event of the step before it, which tells the phase.

    `place`: None if it is not known.
    """

    __slots__ = ("event", "place")

    def __init__(self, place: Place | None, event: str | None):
        self.place = place
        self.event = event


class StackSamples:
    """Samples of the measured steps, counted by place and phase."""

    def __init__(self) -> None:
        self._total = 0
        self._at: Counter[tuple[Place, str | None]] = Counter()

    def add(self, phase: str | None, sample: StackSample) -> None:
        """Add a sample of a measured step."""
        self._total += 1
        if sample.place is not None:
            self._at[sample.place, phase] += 1

    def add_between_passes(self, sample: StackSample) -> None:
        """Add a sample between two passes over the data, which is in no step and does not count in their number."""
        if sample.place is not None:
            self._at[sample.place, BETWEEN_PASSES] += 1

    def record(self) -> JsonObject:
        """Return the fields of rank.json: the number of samples, and the lines where most of them were.

        A sample whose place is not known is one of that number, but in no line. The number is None if it is zero.
        """
        lines: Counter[tuple[str | None, ...]] = Counter()
        for (place, phase), count in self._at.items():
            lines[phase, *_words(place)] += count
        return {
            "stack_samples": self._total or None,
            "lines": [
                {
                    "phase": phase,
                    "site": site,
                    "function": function,
                    "called": called,
                    "caller": caller,
                    "samples": count,
                }
                for (phase, site, function, called, caller), count in lines.most_common(MOST_LINES)
            ],
        }


def _words(place: Place) -> tuple[str | None, ...]:
    """Return site, function, called function and caller of a place, as records have them."""
    if place.code is None:
        return None, None, None, None
    called = None if place.called is None else f"{place.module}.{_name(place.called)}"
    return site_of(place.code.co_filename, place.line), _name(place.code), called, place.caller


def _name(code: CodeType) -> str:
    """Return the name of a function, with its class where Python keeps that (3.11)."""
    return getattr(code, "co_qualname", code.co_name)


class Stack:
    """Finds the place on the stack of a thread."""

    def __init__(self) -> None:
        # By identities of code objects, which the places keep alive or functions do, and numbers of instructions.
        self._places: dict[tuple[int, ...], Place] = {}
        self._nowhere = Place(None, None, None, None)

    def place(self, frame: FrameType | None) -> Place:
        """Return the place of a stack whose innermost frame is `frame`.

        Frames of multicard itself are skipped, so that a replaced function counts as the original.
        """
        called: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            owner = owner_of(code.co_filename)
            if owner is Owner.USER:
                caller = _caller_of_model(frame) if code.co_name == MODEL_METHOD else None
                of_called = 0 if called is None else id(called.f_code)
                of_caller = (0, 0) if caller is None else (id(caller.f_code), caller.f_lasti)
                key = id(code), frame.f_lasti, of_called, *of_caller
                place = self._places.get(key)
                if place is None:
                    place = self._places[key] = Place(code, frame.f_lineno, called, caller)
                return place
            if owner is not Owner.MULTICARD:
                called = frame
            frame = frame.f_back
        return self._nowhere


def _caller_of_model(frame: FrameType) -> FrameType | None:
    """Return the innermost frame of the user's code that called the model; `frame`: of a `forward` within the model."""
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_name != MODEL_METHOD and owner_of(outer.f_code.co_filename) is Owner.USER:
            return outer
        outer = outer.f_back
    return None


class Switching:
    """How soon a thread that waits for Python's lock asks the one that has it to give it up: the switch interval.

    By default that is 5 ms. A sampler would come so late that it mostly saw where the lock is given up anyway, as at a
    tensor operation or a sleep, and not the Python code before it. So the interval is short while the sampler runs, but
    only as long as the script has no other thread that runs Python: with one, such as a loader's that pins memory, it
    might train faster.
    """

    def __init__(self) -> None:
        self._plain_s: float | None = None  # what the interval was; None while it is not short

    @property
    def is_short(self) -> bool:
        """True while the interval is short."""
        return self._plain_s is not None

    def shorten(self) -> None:
        """Make the interval short, unless it is."""
        interval_s = sys.getswitchinterval()
        if self._plain_s is None and interval_s > SWITCH_S:
            self._plain_s = interval_s
            sys.setswitchinterval(SWITCH_S)

    def restore(self) -> None:
        """Make the interval what it was, unless the script has changed it in the meantime."""
        plain_s, self._plain_s = self._plain_s, None
        if plain_s is not None and round(sys.getswitchinterval(), 6) == SWITCH_S:
            sys.setswitchinterval(plain_s)


class RunQueue:
    """Time for which the thread that makes this waits for a CPU while it could run, as Linux counts it."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self._last_s = self._total_s()

    def waited_s(self) -> float:
        """Return the seconds since the last call; infinity if the system does not count them."""
        total_s = self._total_s()
        waited_s, self._last_s = total_s - self._last_s, total_s
        return math.inf if self._file < 0 else waited_s

    def close(self) -> None:
        """Close the file that it reads."""
        if self._file >= 0:
            os.close(self._file)

    def _total_s(self) -> float:
        if self._file < 0:
            return 0.0
        _, waited_ns, _ = os.pread(self._file, 96, 0).split()
        return int(waited_ns) / 1e9


class StackSampler:
    """Samples the stack of the thread that makes it, on a thread of its own, from `start` to `stop`.

    `note` is called with a function that finds the place, and returns the sample, whose place becomes None if it turns
    out to have come too late. A forked process has no such thread; it calls `stop`.
    """

    def __init__(self, note: Callable[[Callable[[], Place]], StackSample]):
        self._note = note
        self._thread = threading.get_ident()
        self._own: set[int | None] = {self._thread}  # the thread that trains, and those of multicard
        self._stack = Stack()
        self._switching = Switching()
        self._started_s = 0.0
        self._late_s = LATE_S
        self._is_stopped = False
        self._sleep = threading.Lock()  # held until `stop`
        self._sleep.acquire()

    def start(self) -> None:
        """Begin to take samples."""
        self._own |= {thread.ident for thread in threading.enumerate() if thread.name.startswith(OWN_THREADS)}
        if not self._has_others(sys._current_frames()):
            self._switching.shorten()
        self._started_s = perf_counter()
        thread = threading.Thread(target=self._run, name=f"{OWN_THREADS} stack samples", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process has as many threads as it may
            self.stop()

    def note_step(self) -> None:
        """Note that one step has ended since `start`: its length says what is late."""
        self._late_s = max(LATE_S, LATE_SHARE * (perf_counter() - self._started_s))

    def stop(self) -> None:
        """End it, if it has not ended yet. If it has not begun, it takes no sample when it does."""
        self._switching.restore()
        if not self._is_stopped:
            self._is_stopped = True
            self._sleep.release()

    def _run(self) -> None:
        self._own.add(threading.get_ident())
        random = Random()  # of its own, because the script's random numbers must stay the same
        queue = RunQueue()
        wait_s = INTERVAL_S * random.random()
        due = perf_counter() + wait_s
        try:
            while not self._sleep.acquire(timeout=wait_s):
                late_s = perf_counter() - due
                sample = self._note(self._place)
                # Reading the queue takes as long as the sample, so it is read for late ones only.
                if late_s > self._late_s and self.is_shifted(late_s, queue.waited_s()):
                    sample.place = None
                wait_s = INTERVAL_S * (0.5 + random.random())
                due = perf_counter() + wait_s
        except Exception:  # would go to the script's `threading.excepthook`; the steps are recorded without samples
            self._switching.restore()
        finally:
            queue.close()

    def is_shifted(self, late_s: float, waited_s: float) -> bool:
        """Return True if a late sample may show another place than that where the thread was when it was due.

        `waited_s`: how long this thread waited for a CPU, since the last late sample. If that is not why it is late, it
        has waited for Python's lock. A thread that computes in Python gives it up where it is after a switch interval,
        or after the one call that it is in; before that, at another place.
        """
        return waited_s > self._late_s or late_s < sys.getswitchinterval()

    def _place(self) -> Place:
        """Return the place of the thread that trains, and see whether the switch interval may stay short."""
        frames = sys._current_frames()
        frame, has_others = frames.get(self._thread), self._has_others(frames)
        # They hold this frame, and so themselves and all that the script's functions refer to.
        frames.clear()
        if has_others and self._switching.is_short:
            self._switching.restore()
        return self._stack.place(frame)

    def _has_others(self, frames: dict[int, Any]) -> bool:
        """Return True if the script has another thread that runs Python, or waits in it."""
        return any(thread not in self._own for thread in frames)
