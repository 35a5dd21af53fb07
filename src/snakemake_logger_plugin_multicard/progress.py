"""How far the runs of a pipeline are, and how long the others may take."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from multicard.core.text import natural
from multicard.workflow.slurm_queue import QueuedJob

# Slurm's states of a job whose run is at work, or has ended and Snakemake has not seen it yet.
AT_WORK = ("RUNNING", "COMPLETING", "COMPLETED", "SUSPENDED", "STOPPED")


@dataclass
class Progress:
    """Runs of a pipeline, as its events and Slurm's queue show them; kept by `Console`.

    `now` is a time by `time.monotonic`, which the caller reads.
    """

    total: int = 0
    ended: int = 0
    # When each run that is at work was first seen so.
    _running_since: dict[str, float] = field(default_factory=dict)
    # How long each run that has ended was at work.
    _durations_s: list[float] = field(default_factory=list)
    _most_at_a_time: int = 1

    def start(self, run: str, now: float) -> None:
        """Note that a run has started on this machine."""
        self._running_since[run] = now

    def end(self, run: str, now: float) -> None:
        """Note that a run has an outcome."""
        self.ended += 1
        if run in self._running_since:
            self._durations_s.append(now - self._running_since.pop(run))

    def give_up(self, run: str) -> None:
        """Note that a job of a run has failed, so that the run has no outcome."""
        self._running_since.pop(run, None)

    def look_at_queue(self, jobs: Sequence[QueuedJob], now: float) -> None:
        """Note which runs are at work, by the jobs in Slurm's queue."""
        states: dict[str, str] = {}
        # The last of several jobs of a run counts: those before have failed.
        for job in sorted(jobs, key=lambda job: natural(job.id)):
            if job.run:
                states[job.run] = job.state
        at_work = [run for run, state in states.items() if state in AT_WORK]
        self._running_since = {run: self._running_since.get(run, now) for run in at_work}
        self._most_at_a_time = max(self._most_at_a_time, list(states.values()).count("RUNNING"))

    def count_running(self, runs: Collection[str]) -> int:
        """Return how many of some runs are at work."""
        return len(self._running_since.keys() & set(runs))

    def time_left_s(self, now: float) -> float | None:
        """Return how long the runs that have not ended may take; None until one has ended."""
        if not self._durations_s:
            return None
        elapsed_s = [now - since for since in self._running_since.values()]
        waiting = self.total - self.ended - len(elapsed_s)
        at_a_time = max(self._most_at_a_time, len(elapsed_s))
        return time_left_s(fmean(self._durations_s), elapsed_s, waiting, at_a_time)


def time_left_s(mean_s: float, elapsed_s: Sequence[float], waiting: int, at_a_time: int) -> float:
    """Return after how many seconds the last of some runs ends, if each takes `mean_s`.

    `elapsed_s`: seconds since each of those started that are at work; `waiting`: number of those that follow as others
    end; `at_a_time`: number that may be at work at a time.

    >>> time_left_s(10.0, [4.0, 1.0], waiting=3, at_a_time=2)  # after 6 s, 9 s, 16 s, 19 s and 26 s
    26.0
    """
    idle = [0.0] * (at_a_time - len(elapsed_s))
    ends_s = [max(0.0, mean_s - elapsed) for elapsed in elapsed_s] + idle
    heapq.heapify(ends_s)
    for _ in range(waiting):
        # The run that ends first makes way for the next one.
        heapq.heapreplace(ends_s, ends_s[0] + mean_s)
    return max(ends_s)
