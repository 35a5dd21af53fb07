"""Try all-reduces between the devices of this node, under a time limit, and measure how fast they are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.machine.processes import JobOutput, run_module
from multicard.trace.collectives import bus_bandwidth

JOB = "multicard.machine.all_reduce_job"
# Seconds that processes get to import PyTorch and to connect, in addition to the time limit. A first import from a
# shared file system takes long.
START_S = 120.0
# The stages that a rank reports one after another; "measured" after each size. Then it reports "done". At any time it
# may report "failed" instead.
STAGES = ("started", "connected", "measured")
# The beginning of what faulthandler prints when it ends a process that hangs.
FAULTHANDLER_TIMEOUT = "Timeout ("


@dataclass(frozen=True)
class StageReport:
    """What a rank of the job reports when it reaches a stage."""

    rank: int
    stage: str  # one of `STAGES`, "done" or "failed"
    bytes: int = 0  # size of the messages, if they were measured
    times_s: list[float] = field(default_factory=list)  # if they were measured: see `Exchange`
    error: str = ""  # if the rank failed


@dataclass(frozen=True)
class Exchange:
    """The measured all-reduces of a job, made by `exchange`.

    `times_s`: for each message size in bytes, the seconds of one all-reduce on the slowest rank: a mean for each block
    of repeats. A size that was not measured is missing. `problem`: the first problem, in one line; None if all ranks
    measured all sizes.
    """

    ranks: int
    times_s: dict[int, list[float]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Bus bandwidth of the largest message: 2 (n − 1) / n · bytes / time, with n ranks and the median time.

        At least one size must have been measured. The definition is that of nccl-tests (doc/PERFORMANCE.md).
        """
        size = max(self.times_s)
        return bus_bandwidth("all_reduce", size, self.ranks, median(self.times_s[size])) or 0.0

    def words(self) -> str:
        """Return the result of the largest message in words; at least one size must have been measured."""
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
    """Measure all-reduces between `ranks` processes of this machine: with NCCL on "cuda", with gloo on "cpu".

    `sizes`: bytes of the messages, at least 4 each. `limit_s`: each rank is ended so many seconds after it connected,
    whatever it does then; all ranks are ended `start_s` + `limit_s` seconds after they were started. `variables`:
    environment variables of the job, in addition to those that a run's job gets. `seconds`: time for which each size is
    measured. Slow all-reduces take longer, since at least `multicard.machine.all_reduce_job.BLOCKS` are measured.
    """
    arguments = [device, ",".join(map(str, sizes)), limit_s, seconds]
    job = run_module(JOB, arguments, start_s + limit_s, ranks, variables)
    reports = [StageReport(**fact) for fact in job.facts]
    done = {report.rank for report in reports if report.stage == "done"}
    times_s = {report.bytes: report.times_s for report in reports if report.stage == "measured"}
    # Once all ranks are done, it does not matter how their processes end.
    problem = None if len(done) == ranks else _problem(job, ranks, limit_s)
    return Exchange(ranks, times_s, problem)


def _problem(job: JobOutput, ranks: int, limit_s: float) -> str:
    """Return, in words, the problem of the rank that had one first.

    It is probably the cause: other ranks often fail because one has ended, or hang because one has failed.
    """
    hangs = job.timed_out
    for line in job.lines:
        if line.text.startswith(FAULTHANDLER_TIMEOUT):
            hangs = True
            break
        for fact in line.facts:
            report = StageReport(**fact)
            if report.stage == "failed":
                return f"rank {report.rank}: {report.error}"
    if not hangs:
        return job.ending
    reports = [StageReport(**fact) for fact in job.facts]
    reached = {(report.stage, report.rank) for report in reports}
    counts = Counter(stage for stage, _ in reached)
    stages = ", ".join(f"{counts[stage]} {stage}" for stage in STAGES)
    return f"no end within {limit_s:g} s: of {ranks} ranks {stages}"
