"""All-reduces between the devices of this node, under a time limit: whether they end, and how fast they are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.machine.processes import Told, run_module
from multicard.trace.collectives import bus_bandwidth

JOB = "multicard.machine.all_reduce_job"
START_S = 120.0  # for processes to import PyTorch: a first time from a shared file system takes long


@dataclass(frozen=True)
class Exchange:
    """How the all-reduces of a job ended."""

    ranks: int
    # By the bytes of a message, seconds of an all-reduce on the slowest rank, one for each block of repeats.
    sizes: dict[int, list[float]] = field(default_factory=dict)
    problem: str | None = None  # why not all sizes were measured, in one line; None where they were

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Of the largest message, 2 (n - 1) / n · bytes / time: nccl-tests, doc/PERFORMANCE.md."""
        size = max(self.sizes)
        return bus_bandwidth("all_reduce", size, self.ranks, median(self.sizes[size])) or 0.0

    def words(self) -> str:
        """The result of the largest message."""
        size, speed = max(self.sizes), with_unit(self.bus_bandwidth_bytes_per_s, BYTES_PER_S)
        time = with_unit(median(self.sizes[size]), SECONDS)
        return f"{speed} bus bandwidth: {with_unit(size, BYTES)} between {self.ranks} ranks in {time}"


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

    `sizes`: bytes of the messages, of 4 at least. `limit_s`: after which a rank that hangs is ended; all of them are
    `start_s` later at the latest. `more`: variables for the job's environment, beside those that a run's job gets.
    `seconds`: how long each size is measured, or for `multicard.machine.all_reduce_job.BLOCKS` all-reduces.
    """
    arguments = [device, ",".join(map(str, sizes)), limit_s, seconds]
    job = run_module(JOB, arguments, start_s + limit_s, ranks, more)
    done = {fact["rank"] for fact in job.facts if fact["stage"] == "done"}
    measured = {fact["bytes"]: fact["times_s"] for fact in job.facts if fact["stage"] == "measured"}
    # Whatever happened when the processes of finished ranks ended.
    return Exchange(ranks, measured, None if len(done) == ranks else _problem(job, ranks, limit_s))


def _problem(job: Told, ranks: int, limit_s: float) -> str:
    """Give what came first: others often fail because a rank has gone, or hang because one has failed."""
    hangs = job.timed_out
    for text, facts in job.lines:
        if text.startswith("Timeout ("):  # faulthandler's words when its time is over
            hangs = True
            break
        for fact in facts:
            if fact["stage"] == "failed":
                return f"rank {fact['rank']}: {fact['error']}"
    if not hangs:
        return job.ending
    reached = {(fact["stage"], fact["rank"]) for fact in job.facts}
    counts = Counter(stage for stage, _ in reached)
    stages = ", ".join(f"{counts[stage]} {stage}" for stage in ("started", "connected", "measured"))
    return f"no end within {limit_s:g} s: of {ranks} ranks {stages}"
