"""Clocks that time steps without disturbing them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

MARKS_OF_STEP = 12  # start, end, and those of five phases
MOST_RESERVED = 20_000  # CUDA events

# A moment: a float of `HostClock`, a `torch.cuda.Event` of `CudaClock`. Only the clock that made it can read it.
Mark = Any


class Clock(Protocol):
    """Marks moments now, and measures the time between them later."""

    mark: Callable[[], Mark]
    """Mark this moment."""

    def settle(self) -> None:
        """Wait until every mark can be read; not to be called within measured steps."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks."""

    def now(self) -> tuple[Mark, float]:
        """Return a mark of this moment, and this moment by the clock that all processes of the machine share."""

    def reserve(self, steps: int) -> None:
        """Prepare the marks of so many steps."""

    def forget(self, kept: Mark | None) -> None:
        """Allow the marks so far to be reused, all but one."""

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
        """Read both clocks."""
        return time.perf_counter(), time.monotonic()

    def reserve(self, steps: int) -> None:
        """Do nothing: a mark is a number."""

    def forget(self, kept: Mark | None) -> None:
        """Do nothing: a mark is a number."""

    def has_reached(self, mark: Mark) -> bool:
        """Return True: a mark can be read at once."""
        return True


class CudaClock:
    """CUDA events on the current stream: the moments when the GPU gets there, read at the end.

    The host is never made to wait inside a step, so a phase lasts as long as it delays the GPU: data that
    arrives while the GPU still computes costs nothing, data that the GPU waits for shows in full.
    An event is made only if there is none to reuse, since making one takes longer than recording it.
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
        """Make the events of so many steps; PyTorch makes one when it is first recorded."""
        used = self._used
        free = self._free
        self._used = []
        self._free = []
        for _ in range(min(MOST_RESERVED, steps * MARKS_OF_STEP) - len(free)):
            self._record_event()
        self._free = free + self._used
        self._used = used

    def forget(self, kept: Mark | None) -> None:
        """Reuse the events so far, all but the one that is kept."""
        self._free += [event for event in self._used if event is not kept]
        self._used = [event for event in self._used if event is kept]

    def has_reached(self, mark: Mark) -> bool:
        """True if the GPU has reached the event."""
        return mark.query()

    def settle(self) -> None:
        """Wait for the GPUs."""
        wait_for(self._devices)

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two events."""
        return start.elapsed_time(end) / 1e3

    def now(self) -> tuple[Mark, float]:
        """Return an event that the GPU has just reached, and that moment."""
        event = self._record_event()
        event.synchronize()
        return event, time.monotonic()


def clock_for(devices: Sequence[torch.device]) -> Clock:
    """Return a clock that times the first of a rank's devices, and waits for all."""
    return CudaClock(devices) if devices[0].type == "cuda" else HostClock()


def wait_for(devices: Sequence[torch.device]) -> None:
    """Wait for what is queued on GPUs; CPUs have no queue."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
