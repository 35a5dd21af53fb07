"""Clocks that time steps without disturbing them."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments now, and gives the time between them later."""

    def mark(self) -> Any:
        """Note this moment."""

    def settle(self) -> None:
        """Wait until every mark can be read; call it outside measured steps."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks."""

    def now(self) -> tuple[Any, float]:
        """A mark of this moment, and this moment by the clock that processes of a machine share; call it likewise."""


class HostClock:
    """Wall time of this process, for work that the CPU does."""

    mark = staticmethod(time.perf_counter)

    def settle(self) -> None:
        """Nothing to wait for."""

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start

    def now(self) -> tuple[float, float]:
        """Read both clocks."""
        return time.perf_counter(), time.monotonic()


class CudaClock:
    """CUDA events on the current stream: the moments when the GPU gets there, read at the end.

    The host is never made to wait inside a step, so a phase lasts as long as it delays the GPU: data that
    arrives while the GPU still computes costs nothing, data that the GPU waits for shows in full.

    Parameters
    ----------
    devices
        All that the rank computes on.
    on
        Whose current stream is timed, if that is not the current device.
    """

    def __init__(self, devices: Sequence[torch.device], on: torch.device | None = None):
        self._devices, self._on = devices, on

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(None if self._on is None else torch.cuda.current_stream(self._on))
        return event

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


def clock_for(device: torch.device, devices: Sequence[torch.device] = ()) -> Clock:
    """Clock that fits the device which does the work, and waits for all `devices` of the rank if these are more."""
    return CudaClock(devices or (device,)) if device.type == "cuda" else HostClock()


def wait_for(devices: Sequence[torch.device]) -> None:
    """Wait for what is queued on GPUs; CPUs have no queue."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
