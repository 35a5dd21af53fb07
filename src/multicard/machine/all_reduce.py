"""All-reduces between the devices of this node, under a time limit: whether they end, and how fast they are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.machine.processes import JobOutput, run_module
from multicard.trace.collectives import bus_bandwidth

JOB = "multicard.machine.all_reduce_job"
# Processes import PyTorch first, and a first import from a shared file system takes long.
START_S = 120.0
# A rank reaches these stages one after another, then "done" or, from any of them, "failed".
STAGES = ("started", "connected", "measured")
# How faulthandler begins its report of a process that it ends.
FAULTHANDLER_TIMEOUT = "Timeout ("


@dataclass(frozen=True)
class Exchange:
    """The all-reduces of a job, made by `exchange`.

    `times_s`: by the bytes of a message, the seconds of an all-reduce on the slowest rank, one for each block of
    repeats. `problem`: why not all sizes were measured, in one line; None if they were.
    """

    ranks: int
    times_s: dict[int, list[float]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Bus bandwidth of the largest message: 2 (n - 1) / n · bytes / time (nccl-tests, doc/PERFORMANCE.md)."""
        size = max(self.times_s)
        return bus_bandwidth("all_reduce", size, self.ranks, median(self.times_s[size])) or 0.0

    def words(self) -> str:
        """Return the result of the largest message, in words."""
        size = max(self.times_s)
        speed = with_unit(self.bus_bandwidth_bytes_per_s, BYTES_PER_S)
        time = with_unit(median(self.times_s[size]), SECONDS)
        return f"{speed} bus bandwidth: {with_unit(size, BYTES)} between {self.ranks} ranks in {time}"


def exchange(
    device: str,
    ranks: int,
    sizes: Sequence[int],
    limit_s: float,
    variables: dict[str, str] | None = None,
    start_s: float = START_S,
    seconds: float = 1.0,
) -> Exchange:
    """All-reduce messages between processes of this machine: NCCL on "cuda", gloo on "cpu".

    `sizes`: bytes of the messages, at least 4. `limit_s`: after which a rank that hangs is ended; all of them are
    `start_s` later at the latest. `variables`: for the job's environment, beside those that a run's job gets.
    `seconds`: how long each size is measured, if `multicard.machine.all_reduce_job.BLOCKS` all-reduces take no longer.
    """
    arguments = [device, ",".join(map(str, sizes)), limit_s, seconds]
    job = run_module(JOB, arguments, start_s + limit_s, ranks, variables)
    done = {fact["rank"] for fact in job.facts if fact["stage"] == "done"}
    times_s = {fact["bytes"]: fact["times_s"] for fact in job.facts if fact["stage"] == "measured"}
    # Once all ranks are done, it does not matter how their processes end.
    problem = None if len(done) == ranks else _problem(job, ranks, limit_s)
    return Exchange(ranks, times_s, problem)


def _problem(job: JobOutput, ranks: int, limit_s: float) -> str:
    """Return, in words, the problem that came first.

    Other ranks often fail because one has gone, or hang because one has failed.
    """
    hangs = job.timed_out
    for line in job.lines:
        if line.text.startswith(FAULTHANDLER_TIMEOUT):
            hangs = True
            break
        for fact in line.facts:
            if fact["stage"] == "failed":
                return f"rank {fact['rank']}: {fact['error']}"
    if not hangs:
        return job.ending
    reached = {(fact["stage"], fact["rank"]) for fact in job.facts}
    counts = Counter(stage for stage, _ in reached)
    stages = ", ".join(f"{counts[stage]} {stage}" for stage in STAGES)
    return f"no end within {limit_s:g} s: of {ranks} ranks {stages}"
