"""CPU time in which loaders load: that of their workers or, without workers, that of the thread that trains.

It tells whether loading computes, so that more workers need more CPUs, or waits, as for storage.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from multicard.core.system import cpu_seconds
from multicard.observe.loaders import LoaderDescription

# The CPU time of a thread is read by a call of the system, which takes as long as all else that the observer does for a
# batch. So of the batches of a step after its first, one in so many is timed.
ONE_IN = 4


def batches_timed(step: int, batches: int) -> int:
    """Return for how many batches the CPU time of the next one counts; 0 if it is not timed.

    `step`: number of the open step; `batches`: how many it has drawn. Which batches of a step are timed changes from
    step to step, so that each is timed as often as the others, also if one batch in so many takes longest.

    >>> [[batches_timed(step, batches) for batches in range(6)] for step in (1, 2)]
    [[1, 0, 0, 4, 0, 0], [1, 0, 4, 0, 0, 0]]
    """
    if batches == 0:
        return 1
    return 0 if (step + batches) % ONE_IN else ONE_IN


class LoadingCpu:
    """Counts the CPU seconds of the loaders of this process, by their descriptions."""

    def __init__(self) -> None:
        self._ended_s: dict[LoaderDescription, float] = defaultdict(float)  # of batches, and of workers that have ended
        # By the pids of workers that live: whose they are, and their CPU seconds when last looked at.
        self._workers: dict[int, tuple[LoaderDescription, float]] = {}
        # The loader without workers whose batch was timed last, and seconds of its latest batches, which are not in
        # `_ended_s` yet: to look a description up takes longer than to compare it.
        self._latest: LoaderDescription | None = None
        self._latest_s = 0.0

    def add(self, loader: LoaderDescription, seconds: float) -> None:
        """Called when a loader without workers has given a batch, or had none.

        `seconds`: CPU seconds that this took, times the number of batches that it stands for (`batches_timed`).
        """
        if loader is not self._latest:
            self._add_latest()
            self._latest = loader
        self._latest_s += seconds

    def _add_latest(self) -> None:
        if self._latest is not None:
            self._ended_s[self._latest] += self._latest_s
            self._latest_s = 0.0

    def note_workers(self, loader: LoaderDescription, iterator: Any) -> None:
        """Called when an iterator of a loader with workers has given a batch: its thread has only waited for them."""
        if not getattr(iterator, "_multicard_workers", False):
            iterator._multicard_workers = True
            for worker in getattr(iterator, "_workers", ()):
                if worker.pid is not None:
                    self._note(worker.pid, loader)

    def _note(self, pid: int, loader: LoaderDescription) -> None:
        """Note a worker. One that has ended, and had the same pid, has the seconds that were last seen of it."""
        earlier = self._workers.pop(pid, None)
        if earlier is not None:
            self._ended_s[earlier[0]] += earlier[1]
        self._workers[pid] = loader, 0.0

    def look(self) -> None:
        """Note the CPU time of all workers, which may be about to end."""
        for pid, (loader, last_s) in list(self._workers.items()):
            now_s = cpu_seconds(pid)
            if now_s is None:
                # This may be called again while it runs, where garbage ends another iterator.
                if self._workers.pop(pid, None) is not None:
                    self._ended_s[loader] += last_s
            else:
                self._workers[pid] = loader, now_s

    def seconds(self) -> Mapping[LoaderDescription, float]:
        """Return the CPU seconds of each loader so far."""
        self.look()
        self._add_latest()
        total_s = defaultdict(float, self._ended_s)
        for loader, worker_s in self._workers.values():
            total_s[loader] += worker_s
        return total_s
