"""What the thread of a training loop did while its measured steps ran: it had a CPU, waited for one, or did neither."""

import threading
import time
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

    def start(self) -> None:
        """Begin an interval."""
        self._began = self._read()

    def stop(self) -> None:
        """End the interval; nothing where none has begun."""
        began, self._began = self._began, None
        if began and (now := self._read()) and now[0] == began[0]:
            self._spent.append(tuple(after - before for before, after in zip(began[1:], now[1:], strict=True)))

    def record(self) -> dict[str, float] | None:
        """For run.json; None where nothing was measured.

        `wall_s`: of all intervals. `ran_s`: on a CPU, of them. `waited_for_cpu_s`: ready to run, but without a CPU; by
        the kernel's account (schedstat: Linux, Documentation/scheduler/sched-stats.rst).
        """
        if not self._spent:
            return None
        wall, ran, waited = map(sum, zip(*self._spent, strict=True))
        return {"wall_s": wall, "ran_s": ran, "waited_for_cpu_s": waited}

    def _read(self) -> tuple[float, ...] | None:
        """The thread, wall time, time on a CPU, and time without one although it was ready."""
        text = read_or_none(lambda: (self._proc / "thread-self" / "schedstat").read_text(encoding="ascii"))
        if text is None:
            return None
        return threading.get_native_id(), time.monotonic(), time.thread_time(), int(text.split()[1]) / 1e9
