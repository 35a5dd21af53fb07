"""Clocks that time steps without disturbing them."""

import time
from collections.abc import Sequence

import torch

MARKS_OF_STEP = 12  # start, end, and those of five phases
MOST_RESERVED = 20_000  # CUDA events


class HostClock:
    """Wall time of this process, for work that the CPU does.

    Clocks mark moments now, and give the time between them later: `settle` waits until every mark can be read, outside
    measured steps; `now` gives a mark of this moment and the moment by the clock that processes of a machine share;
    `reserve` makes ready for so many steps; `forget` lets marks so far be used again, all but one; `has_reached` tells,
    without a wait, whether a mark can be read.
    """

    mark = staticmethod(time.perf_counter)

    def settle(self) -> None:
        """Nothing to wait for."""

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start

    def now(self) -> tuple[float, float]:
        """Read both clocks."""
        return time.perf_counter(), time.monotonic()

    def reserve(self, steps: int) -> None:
        """Nothing to make."""

    def forget(self, kept: float | None) -> None:
        """Nothing to use again."""

    def has_reached(self, mark: float) -> bool:
        """A mark is a moment that has passed."""
        return True


class CudaClock:
    """CUDA events on the current stream: the moments when the GPU gets there, read at the end.

    The host is never made to wait inside a step, so a phase lasts as long as it delays the GPU: data that
    arrives while the GPU still computes costs nothing, data that the GPU waits for shows in full.
    An event is made where there is none to use again, since making one takes longer than recording it.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self._devices = devices
        self._free: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._devices[0]))
        self._used.append(event)
        return event

    def reserve(self, steps: int) -> None:
        """Make the events of so many steps; PyTorch makes one when it is first recorded."""
        used, ready = self._used, self._free
        self._used, self._free = [], []
        for _ in range(min(MOST_RESERVED, steps * MARKS_OF_STEP) - len(ready)):
            self.mark()
        self._used, self._free = used, ready + self._used

    def forget(self, kept: torch.cuda.Event | None) -> None:
        """Use the events so far again, all but the one that is kept."""
        self._free += [event for event in self._used if event is not kept]
        self._used = [event for event in self._used if event is kept]

    def has_reached(self, mark: torch.cuda.Event) -> bool:
        """Whether the GPU has."""
        return mark.query()

    def settle(self) -> None:
        """Wait for the GPUs."""
        wait_for(self._devices)

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events."""
        return start.elapsed_time(end) / 1e3

    def now(self) -> tuple[torch.cuda.Event, float]:
        """An event that the GPU has just reached, and that moment."""
        event = self.mark()
        event.synchronize()
        return event, time.monotonic()


def clock_for(devices: Sequence[torch.device]) -> HostClock | CudaClock:
    """Clock that fits the first of a rank's devices, and waits for all."""
    return CudaClock(devices) if devices[0].type == "cuda" else HostClock()


def wait_for(devices: Sequence[torch.device]) -> None:
    """Wait for what is queued on GPUs; CPUs have no queue."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
