"""What the thread of a training loop did while its measured steps ran: it had a CPU, waited for one, or did neither."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from multicard.core.cpu_time import PROC
from multicard.core.system import read_or_none


class ThreadTime:
    """Times of the thread that calls `start` and `stop`; several intervals add up.

    Parameters
    ----------
    proc
        Where Linux shows its state.
    """

    def __init__(self, proc: Path = PROC):
        self._proc = proc
        self._began: tuple[float, ...] | None = None
        self._spent: list[tuple[float, ...]] = []
        self._ran: dict[float, float] = {}  # until each mark
        self._phases: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def start(self) -> None:
        """Begin an interval."""
        self._began = self._read()

    def stop(self) -> None:
        """End the interval; nothing where none has begun."""
        began, self._began = self._began, None
        if began and (now := self._read()) and now[0] == began[0]:
            self._spent.append(tuple(after - before for before, after in zip(began[1:], now[1:], strict=True)))

    def note(self, mark: float) -> None:
        """Note what the thread has run until a mark, in seconds, at which a phase begins or ends."""
        self._ran[mark] = time.thread_time()

    def add(self, phases: Iterable[tuple[str, float, float]]) -> None:
        """Add up phases with the marks of their start and end."""
        for name, start, end in phases:
            spent = self._phases[name]
            spent[0] += end - start
            spent[1] += self._ran[end] - self._ran[start]

    def record(self) -> dict[str, float] | None:
        """For run.json; None where nothing was measured.

        `wall_s`: of all intervals. `ran_s`: on a CPU, of them. `waited_for_cpu_s`: ready to run, but without a CPU; by
        the kernel's account (schedstat: Linux, Documentation/scheduler/sched-stats.rst), which would cost more to read
        at each mark. `<phase>_s`, `<phase>_ran_s`: of each phase.
        """
        if not self._spent:
            return None
        wall, ran, waited = map(sum, zip(*self._spent, strict=True))
        found = {"wall_s": wall, "ran_s": ran, "waited_for_cpu_s": waited}
        for name, (phase_s, ran_s) in self._phases.items():
            found |= {f"{name}_s": phase_s, f"{name}_ran_s": ran_s}
        return found

    def _read(self) -> tuple[float, ...] | None:
        """The thread, wall time, time on a CPU, and time without one although it was ready."""
        text = read_or_none(lambda: (self._proc / "thread-self" / "schedstat").read_text(encoding="ascii"))
        if text is None:
            return None
        return threading.get_native_id(), time.monotonic(), time.thread_time(), int(text.split()[1]) / 1e9
