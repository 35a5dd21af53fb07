"""The verdict on a job, by what its ranks reported and how its launcher exited."""

import itertools
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from multicard.core.files import is_full
from multicard.core.layout import PROGRESS, Outcome
from multicard.core.reasons import LONGEST_MESSAGE, Reason, UnreportedRank
from multicard.core.system import ranks_may_share_gpus
from multicard.core.tables import read_csv
from multicard.core.text import printable
from multicard.launch.supervise import Ended
from multicard.profilers.interface import Profiler
from multicard.runs.rank_report import RankReport
from multicard.runs.verdict import COMPLETED, Verdict

# A rank and its exit code in the list of failures with which torchrun ends.
FAILED_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+) ")
# Parts of the messages of gloo, NCCL and a process group's store when another rank has gone, in lower case.
LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "connection was likely closed", "remote process exited", "ncclremoteerror", "communicator was aborted",
)  # fmt: skip

LOST_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
ERROR = re.compile(r"error\b|no module named", re.IGNORECASE)
# Lines that this project prints, and nsys at its end.
NOT_OF_THE_JOB = re.compile(rf"{PROGRESS}  |Generated:|\t")
# PyTorch begins the lines of a traceback like this where there are several ranks.
LINE_OF_TRACEBACK = re.compile(r"\[rank\d+\]: ")
TORCHRUN_ENDS = re.compile(r"torch[./]distributed[./]elastic|^Failures:|^Root Cause")
# Exit codes from 128 on say that a signal ended the process.
FIRST_SIGNAL_CODE = 128


@dataclass(frozen=True)
class RankExit:
    """A rank that exited, and its code; the rank is None where several may be meant."""

    rank: int | None
    exit_code: int


@dataclass(frozen=True)
class JobFacts:
    """What is known of a job that has ended."""

    ended: Ended
    reports: Sequence[RankReport]
    rank_count: int
    time_limit_s: float
    log: str
    node_of: Mapping[int, str] = field(default_factory=dict)  # node of each rank, of a job on several nodes

    @cached_property
    def listed_exits(self) -> list[RankExit]:
        """Exits that torchrun lists; the first rank that failed comes last."""
        return [RankExit(int(rank), int(code)) for rank, code in FAILED_RANK.findall(self.log)]

    def listed_code(self, rank: int | None) -> int:
        """Return the exit code of a rank: the listed one, 0 of one not listed, the launcher's without a list."""
        if not self.listed_exits:
            return self.ended.exit_code
        codes = {exit_.rank: exit_.exit_code for exit_ in self.listed_exits}
        return codes.get(rank, 0)

    @cached_property
    def silent_ranks(self) -> list[int]:
        """Ranks that left no report."""
        return sorted(set(range(self.rank_count)) - {report.rank for report in self.reports})

    @property
    def unreported(self) -> tuple[UnreportedRank, ...]:
        """The silent ranks, for a reason."""
        return tuple(UnreportedRank(rank, self.node_of.get(rank)) for rank in self.silent_ranks)

    def reasons_of(self, outcome: Outcome) -> list[Reason]:
        """Return the reasons of the ranks that ended so, in the order of the ranks."""
        reports = [report for report in self.reports if report.outcome == outcome and report.reason is not None]
        return [replace(report.reason, node=self.node_of.get(report.rank)) for report in reports if report.reason]

    @cached_property
    def first_failure(self) -> Reason | None:
        """The failure that caused the others: a connection breaks because the rank at its other end was gone."""
        failures = [_with_exit(reason, self) for reason in self.reasons_of("failed")]
        return min(failures, key=_distance_from_cause, default=None)

    @property
    def has_own_failure(self) -> bool:
        """True if a rank failed by itself, not because another one was gone."""
        return self.first_failure is not None and not lost_a_peer(self.first_failure)

    @cached_property
    def first_killed(self) -> Reason | None:
        """The reason why the first silent rank ended, if a signal killed it; else None.

        Without torchrun's list the rank is not known where several are silent.
        """
        if not self.silent_ranks:
            return None
        if self.listed_exits:
            root_cause_first = [*self.listed_exits[-1:], *self.listed_exits[:-1]]
            silent = (ended for ended in root_cause_first if ended.rank in self.silent_ranks)
            first = next(silent, None)
        else:
            only_rank = self.silent_ranks[0] if len(self.silent_ranks) == 1 else None
            first = RankExit(only_rank, self.ended.exit_code)
        signal_name = None if first is None else _signal_of(first.exit_code)
        if first is None or signal_name is None:
            return None
        if first.rank is None:
            return Reason("killed", signal=signal_name, unreported=self.unreported)
        return Reason("killed", rank=first.rank, node=self.node_of.get(first.rank), signal=signal_name)


def judge(facts: JobFacts) -> Verdict:
    """Return the outcome of a job and, unless it completed, the reason: the first verdict of `CHECKS`.

    What the ranks reported decides; how a launcher or profiler exited after them does not.
    """
    for check in CHECKS:
        verdict = check(facts)
        if verdict is not None:
            return verdict
    # The ranks are gone without a word, and neither torchrun nor a signal explains it.
    message = _last_error(facts.log)
    reason = Reason("exited", exit_code=facts.ended.exit_code, unreported=facts.unreported, message=message)
    return Verdict("failed", reason)


def _all_ranks_completed(facts: JobFacts) -> Verdict | None:
    """Completed, unless a rank that left by itself, after all was measured, exited because of an error."""
    if len(facts.reports) != facts.rank_count or any(report.outcome != "completed" for report in facts.reports):
        return None
    for report in facts.reports:
        # Such a rank left its report before it exited, so its exit code is known from outside only. Codes of signals
        # do not count: they end what lingers after the measurement, and some processes as they end.
        code = facts.listed_code(report.rank)
        if report.ended_early and 0 < code < FIRST_SIGNAL_CODE:
            node, message = facts.node_of.get(report.rank), _last_words(facts.log)
            return Verdict("failed", Reason("exited", rank=report.rank, node=node, exit_code=code, message=message))
    return COMPLETED


def _memory_ran_out(facts: JobFacts) -> Verdict | None:
    reasons = facts.reasons_of("out_of_memory")
    return Verdict("out_of_memory", reasons[0]) if reasons else None


def _loss_diverged(facts: JobFacts) -> Verdict | None:
    reasons = facts.reasons_of("diverged")
    return Verdict("diverged", reasons[0]) if reasons else None


def _reached_time_limit(facts: JobFacts) -> Verdict | None:
    if not facts.ended.timed_out:
        return None
    return Verdict("timed_out", Reason("timed_out", time_limit_s=facts.time_limit_s))


def _lost_node(facts: JobFacts) -> Verdict | None:
    """A node that Slurm lost, unless a rank failed by itself before."""
    lost = LOST_NODE.search(facts.log) if facts.node_of else None
    if lost is None or facts.has_own_failure:
        return None
    return Verdict("failed", Reason("node_lost", node=lost[1], unreported=facts.unreported))


def _ranks_disagreed_on_steps(facts: JobFacts) -> Verdict | None:
    """A rank that made too few steps while another one made all of them."""
    failure = facts.first_failure
    enough = next((report.rank for report in facts.reports if report.outcome == "completed"), None)
    if failure is None or failure.code != "too_few_steps" or failure.steps is None or enough is None:
        return None
    node = facts.node_of.get(enough)
    return Verdict("failed", Reason("steps_disagree", rank=enough, step=failure.steps + 1, node=node))


def _rank_failed(facts: JobFacts) -> Verdict | None:
    """The first failure that a rank reported, unless it followed from a signal that killed another one."""
    failure = facts.first_failure
    if failure is None:
        return None
    if not lost_a_peer(failure):
        return Verdict("failed", failure)
    if facts.first_killed is not None:
        return None
    if facts.node_of:  # the ranks of a lost node do not report
        return Verdict("failed", replace(failure, unreported=facts.unreported))
    return Verdict("failed", failure)


def _signal_killed_a_rank(facts: JobFacts) -> Verdict | None:
    return None if facts.first_killed is None else Verdict("failed", facts.first_killed)


# Their order is the rule: a rank that ran out of memory explains why the job then hung until its time limit, and a
# node that was lost explains the broken connections that the other ranks report.
CHECKS: tuple[Callable[[JobFacts], Verdict | None], ...] = (
    _all_ranks_completed,
    _memory_ran_out,
    _loss_diverged,
    _reached_time_limit,
    _lost_node,
    _ranks_disagreed_on_steps,
    _rank_failed,
    _signal_killed_a_rank,
)


def judge_profiler(reason: Reason, profiler: Profiler, ended: Ended, log: Path) -> Reason:
    """Return the reason of a failed job of which no rank reported an error: the profiler's, if that failed itself."""
    failure = profiler_failure(profiler, ended, log) if reason.code in ("exited", "killed") else None
    return Reason("profiler_failed", message=failure) if failure else reason


def profiler_failure(profiler: Profiler, ended: Ended, log: Path) -> str | None:
    """Return how a profiler that wraps a job failed itself, with what it printed; None if it did not."""
    text = text_of(log)
    printed = profiler.failure(text)
    if ended.profiler_failure is None and printed is None:
        return None
    parts = [ended.profiler_failure, printed or _last_error(text)]
    if is_full(Path(tempfile.gettempdir())):  # without space there nsys hangs, or does not mention it
        parts.append("the disk of its temporary files (TMPDIR) is full")
    if ended.profiler_failed_before:
        parts.append("at an earlier start it failed too")
    return printable(f"{profiler.name}: {'; '.join(filter(None, parts))}", LONGEST_MESSAGE)


def judge_gpus(reports: Sequence[RankReport], devices: int) -> Verdict:
    """Return the verdict on a job whose ranks completed on GPUs: failed unless each device was a GPU of its own.

    GPUs are distinguished by the UUIDs that each rank reported.
    """
    distinct = {gpu.uuid for report in reports for gpu in report.gpus or ()}
    if len(distinct) >= devices or ranks_may_share_gpus():
        return COMPLETED
    return Verdict("failed", Reason("wrong_gpus", devices=devices, gpus=len(distinct)))


@dataclass(frozen=True)
class MeasuredSteps:
    """Steps of the measured window that all ranks have made, and the time of one."""

    count: int
    step_s: float


def measured_steps(steps: Path, ranks: int | None = None) -> MeasuredSteps | None:
    """Return the measured steps in a steps.csv, timed as `iteration_time_s` is; None if there is none.

    The slowest rank in each epoch decides. `ranks`: those of the job; None of a completed one, where each has steps.

    Raises `UserError` if the file is missing or damaged.
    """
    rows = read_csv(steps, needed=["rank", "epoch", "step", "window", "start_s", "duration_s"])
    rows = rows.assign(end_s=rows["start_s"] + rows["duration_s"])[rows["window"] == "measured"]
    rank_count = ranks or rows["rank"].nunique()
    rows = rows[rows.groupby("step")["rank"].transform("nunique") == rank_count]
    epochs = rows.groupby(["rank", "epoch"])
    elapsed_of_rank = epochs["end_s"].max() - epochs["start_s"].min()
    elapsed_s = elapsed_of_rank.groupby("epoch").max().sum()
    count = rows["step"].nunique()
    return MeasuredSteps(count, float(elapsed_s / count)) if count else None


def _with_exit(reason: Reason, facts: JobFacts) -> Reason:
    """Return the reason of a rank that made too few steps: how it exited, if that was because of an error."""
    if reason.code != "too_few_steps":
        return reason
    code = facts.listed_code(reason.rank)
    if code == 0:
        return reason
    # Python prints the argument of sys.exit after all else; an exception would have been recorded.
    return replace(reason, code="exited", exit_code=code, message=_last_words(facts.log))


def _distance_from_cause(reason: Reason) -> tuple[bool, int, bool]:
    """Return a key by which the failure that caused others sorts first.

    A broken connection is a consequence. An error explains an exit, and an exit explains the rest. A rank that a signal
    ended was ended by its launcher, after another one had failed.
    """
    explains = ["error", "exited", reason.code]
    was_ended_by_signal = (reason.exit_code or 0) < 0
    return lost_a_peer(reason), explains.index(reason.code), was_ended_by_signal


def lost_a_peer(reason: Reason) -> bool:
    """True if the message says that a connection to another rank broke."""
    message = (reason.message or "").lower()
    return any(sign in message for sign in LOST_PEER)


def _signal_of(exit_code: int) -> str | None:
    """Return the name of the signal that ended a process, by its code as Popen has it, or a shell around the job."""
    number = -exit_code if exit_code < 0 else exit_code - FIRST_SIGNAL_CODE
    return signal.Signals(number).name if number in list(signal.Signals) else None


def _last_error(log: str) -> str | None:
    """Return the last line that mentions an error, else the last line that the job printed; None without a line."""
    lines = _lines_of_job(log)
    errors = [line for line in lines if ERROR.search(line)]
    return _quoted_last(errors or lines)


def _last_words(log: str) -> str | None:
    """Return the last line that the job printed and that is in no traceback of a rank; None without one."""
    return _quoted_last([line for line in _lines_of_job(log) if not LINE_OF_TRACEBACK.match(line)])


def _quoted_last(lines: Sequence[str]) -> str | None:
    return printable(lines[-1], LONGEST_MESSAGE) if lines else None


def _lines_of_job(log: str) -> list[str]:
    """Return the lines that the job itself printed, before torchrun's own summary."""
    before_summary = itertools.takewhile(lambda line: not TORCHRUN_ENDS.search(line), log.splitlines())
    return [line.strip() for line in before_summary if line.strip() and not NOT_OF_THE_JOB.match(line)]


def text_of(log: Path) -> str:
    """Return what a job printed; "" where it printed nothing."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
