"""All-reduces between the devices of this node, under a time limit: whether they end, and how fast they are."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from multicard.core.facts import told
from multicard.core.system import ending
from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.launch.commands import training_command
from multicard.launch.environment import inside_one_machine, job_environment
from multicard.launch.process import run
from multicard.trace.collectives import bus_bandwidth

JOB = "multicard.limits.all_reduce_job"
START_S = 120.0  # for processes to import PyTorch: a first time from a shared file system takes long
GRACE_S = 5.0


@dataclass
class Exchange:
    """How the all-reduces of a job ended.

    Attributes
    ----------
    stages
        The ranks that reached each.
    sizes
        By the bytes of a message, seconds of an all-reduce on the slowest rank, one for each block of repeats.
    problem
        Why not all sizes were measured, in one line; None where they were.
    hung
        Whether it is that nothing came to an end within the limit.
    """

    ranks: int
    stages: dict[str, set[int]] = field(default_factory=dict)
    sizes: dict[int, list[float]] = field(default_factory=dict)
    problem: str | None = None
    hung: bool = False

    def read(self, fact: dict[str, Any]) -> None:
        """Take in what a rank told."""
        self.stages.setdefault(fact["stage"], set()).add(fact["rank"])
        if fact["stage"] == "failed":
            self.problem = self.problem or f"rank {fact['rank']}: {fact['error']}"
        if fact["stage"] == "measured":
            self.sizes[fact["bytes"]] = fact["times_s"]

    @property
    def _largest(self) -> tuple[int, float]:
        """The largest message and the median time of its all-reduces."""
        size = max(self.sizes)
        return size, median(self.sizes[size])

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Of the largest message, 2 (n - 1) / n · bytes / time: nccl-tests, doc/PERFORMANCE.md."""
        size, time = self._largest
        return bus_bandwidth("all_reduce", size, self.ranks, time) or 0.0

    def words(self) -> str:
        """The result of the largest message."""
        speed = with_unit(self.bus_bandwidth_bytes_per_s, BYTES_PER_S)
        size, time = self._largest
        return (
            f"{speed} bus bandwidth: {with_unit(size, BYTES)} between {self.ranks} ranks in {with_unit(time, SECONDS)}"
        )


def exchange(
    device: str,
    ranks: int,
    sizes: Sequence[int],
    limit_s: float,
    more: dict[str, str] | None = None,
    start_s: float = START_S,
    seconds: float = 1.0,
) -> Exchange:
    """All-reduce messages between processes of this machine: NCCL on "cuda", gloo on "cpu".

    Parameters
    ----------
    sizes
        Bytes of the messages, of 4 at least.
    limit_s
        After which a rank that hangs is ended; all of them are `start_s` later at the latest.
    more
        Variables for the job's environment, beside those that a run's job gets.
    seconds
        How long each size is measured, or for `multicard.limits.timing.BLOCKS` all-reduces.
    """
    ended, said = Exchange(ranks), []

    def follow(line: str) -> None:
        first, facts = told(line)
        if first:
            said.append(first)
            # faulthandler's words when its time is over; a failure after them is often that a rank has gone.
            ended.hung = ended.hung or (ended.problem is None and first.startswith("Timeout ("))
        for fact in facts:
            ended.read(fact)

    arguments = [device, ",".join(map(str, sizes)), str(limit_s), str(seconds)]
    command = training_command(JOB, arguments, ranks, distributed=True)
    with tempfile.TemporaryDirectory(prefix="multicard-all-reduce-", ignore_cleanup_errors=True) as scratch:
        environment = inside_one_machine(job_environment(os.environ)) | (more or {})
        process = run(command, environment, Path(scratch, "log.txt"), start_s + limit_s, follow, GRACE_S)
    done = ended.stages.get("done", set())
    if len(done) == ranks:  # whatever happened when the processes ended
        ended.hung, ended.problem = False, None
    elif ended.hung or (process.timed_out and ended.problem is None):
        ended.hung, ended.problem = True, _hang(ended, limit_s)
    elif ended.problem is None:
        ended.problem = ending(process.exit_code, said)
    return ended


def _hang(ended: Exchange, limit_s: float) -> str:
    """Say how far the ranks came."""
    for stage, words in (
        ("measured", "have all-reduced, and then hang"),
        ("connected", "connected, and then hang"),
        ("started", "hang in the first all-reduce"),
    ):
        if reached := ended.stages.get(stage):
            others = ", ".join(map(str, sorted(set(range(ended.ranks)) - reached)))
            which = (
                f"all {ended.ranks} ranks" if not others else f"{len(reached)} of {ended.ranks} ranks (not {others})"
            )
            return f"{which} {words}: no end within {limit_s:g} s"
    return f"none of {ended.ranks} ranks started in time"
