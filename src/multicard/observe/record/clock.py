"""Clocks that time steps without disturbing them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

MARKS_OF_STEP = 12  # the start and end of a step, and of each of its five phases
MOST_RESERVED = 20_000  # no more CUDA events than this are made in advance

# A moment: `HostClock` makes a float, `CudaClock` a `torch.cuda.Event`. Only the clock that made a mark can read it.
Mark = Any


class Clock(Protocol):
    """Marks moments, and measures the time between two marks later."""

    mark: Callable[[], Mark]
    """Return a mark of this moment."""

    def settle(self) -> None:
        """Wait until every mark can be read. Never called within a measured step, because it may wait for the GPU."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks."""

    def now(self) -> tuple[Mark, float]:
        """Return a mark of this moment, and its `time.monotonic`, which all processes of the machine share."""

    def reserve(self, steps: int) -> None:
        """Prepare the marks of `steps` steps, so that marking is fast in these steps."""

    def forget(self, kept: Mark | None) -> None:
        """Allow the clock to reuse all marks made so far, except `kept` (None: all of them)."""

    def has_reached(self, mark: Mark) -> bool:
        """True if a mark can be read without a wait."""


class HostClock:
    """Wall time of this process, for work that the CPU does."""

    def __init__(self) -> None:
        self.mark: Callable[[], Mark] = time.perf_counter

    def settle(self) -> None:
        """Do nothing: a mark can be read at once."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks."""
        return end - start

    def now(self) -> tuple[Mark, float]:
        """Return this moment by `time.perf_counter` and by `time.monotonic`."""
        return time.perf_counter(), time.monotonic()

    def reserve(self, steps: int) -> None:
        """Do nothing: a mark is a number."""

    def forget(self, kept: Mark | None) -> None:
        """Do nothing: a mark is a number."""

    def has_reached(self, mark: Mark) -> bool:
        """Return True: a mark can be read at once."""
        return True


class CudaClock:
    """Marks moments by CUDA events on the current stream of the first device.

    An event holds the moment when the GPU reaches it, and is read later. So the host never waits inside a step, and a
    phase lasts as long as it delays the GPU: a batch that arrives while the GPU still computes costs no time, and the
    time that the GPU waits for a batch counts in full. Events are reused, because making one takes longer than
    recording it.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self.mark: Callable[[], Mark] = self._record_event
        self._devices = devices
        self._free: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []

    def _record_event(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._devices[0]))
        self._used.append(event)
        return event

    def reserve(self, steps: int) -> None:
        """Make events until there are enough unused ones for `steps` steps, at most `MOST_RESERVED`.

        Each is recorded once, because PyTorch creates the CUDA event only when it is first recorded.
        """
        used = self._used
        free = self._free
        self._used = []
        self._free = []
        for _ in range(min(MOST_RESERVED, steps * MARKS_OF_STEP) - len(free)):
            self._record_event()
        self._free = free + self._used
        self._used = used

    def forget(self, kept: Mark | None) -> None:
        """Reuse all events recorded so far, except `kept`."""
        self._free += [event for event in self._used if event is not kept]
        self._used = [event for event in self._used if event is kept]

    def has_reached(self, mark: Mark) -> bool:
        """True if the GPU has reached the event."""
        return mark.query()

    def settle(self) -> None:
        """Wait until all GPUs of the rank have done what is queued on them."""
        wait_for(self._devices)

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two events."""
        return start.elapsed_time(end) / 1e3

    def now(self) -> tuple[Mark, float]:
        """Wait until the GPU reaches a new event; return the event, and `time.monotonic` of that moment."""
        event = self._record_event()
        event.synchronize()
        return event, time.monotonic()


def clock_for(devices: Sequence[torch.device]) -> Clock:
    """Return a rank's clock: it marks moments on the first of the devices, and its `settle` waits for all of them."""
    return CudaClock(devices) if devices[0].type == "cuda" else HostClock()


def wait_for(devices: Sequence[torch.device]) -> None:
    """Wait until the GPUs among the devices have done what is queued on them. A CPU has no queue, so it is skipped."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
