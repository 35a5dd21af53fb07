"""Who else used the CPUs of a node while its measured steps ran.

Whether a run counts as disturbed is judged later, from these numbers, by `multicard.analysis.runs.conditions`.
"""

import time
from pathlib import Path

from multicard.core.cpu_time import PROC, busy_and_stolen, with_descendants
from multicard.core.system import read_or_none


class OthersMeter:
    """CPU time that processes of other jobs take between `start` and `stop`; several intervals add up.

    A reading takes some 20 µs for each process of the node. So it is made where all ranks wait for each other
    afterwards, or one that comes late would lengthen the first measured step of the others.

    Parameters
    ----------
    launcher
        Id of the process that started the job on this node: it and its descendants are no others. None: not metered,
        as on all ranks of a node but one.
    proc
        Where Linux shows its state.
    """

    def __init__(self, launcher: int | None, proc: Path = PROC):
        self._launcher, self._proc = launcher, proc
        self._began: tuple[float, float, float] | None = None
        self._spent: list[tuple[float, ...]] = []

    def start(self) -> None:
        """Begin an interval."""
        self._began = self._read()

    def stop(self) -> None:
        """End the interval; nothing where none has begun."""
        began, self._began = self._began, None
        if began and (now := self._read()):
            self._spent.append(tuple(after - before for before, after in zip(began, now, strict=True)))

    def record(self) -> dict[str, float] | None:
        """For run.json; None where nothing was metered.

        `others_cpu_s`: CPU time of other processes on the CPUs that the job may use. `stolen_cpu_s`: what the
        hypervisor gave to other virtual machines. `wall_s`: the time that they cover.
        """
        if not self._spent:
            return None
        wall, others, stolen = (sum(column) for column in zip(*self._spent, strict=True))
        return {"others_cpu_s": max(0.0, others), "stolen_cpu_s": max(0.0, stolen), "wall_s": wall}

    def _read(self) -> tuple[float, float, float] | None:
        """Wall time, CPU time of others, and stolen time."""
        if self._launcher is None:
            return None
        counted = read_or_none(lambda: busy_and_stolen(self._proc))
        own = read_or_none(lambda: with_descendants(self._launcher, self._proc))
        return None if counted is None or own is None else (time.monotonic(), counted[0] - own, counted[1])
