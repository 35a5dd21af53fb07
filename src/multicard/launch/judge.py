"""The verdict on a job, from the reports of its ranks, its log, and the exit code of its launcher."""

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

# A rank and its exit code, in the list of failures that torchrun prints at its end.
FAILED_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+) ")
# Parts of messages, in lower case, that gloo, NCCL and a process group's store raise because another rank has ended.
LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "connection was likely closed", "remote process exited", "ncclremoteerror", "communicator was aborted",
)  # fmt: skip

LOST_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
ERROR = re.compile(r"error\b|no module named", re.IGNORECASE)
# Beginnings of lines that are not the job's own: this project prints them, nsys at its end, or nanobind, with which
# Triton is bound, of what a process that ends with an error has not freed.
NOT_OF_THE_JOB = re.compile(
    rf"{PROGRESS}  |Generated:|\t|nanobind: | - leaked |  ?- \.\.\. skipped|See https://nanobind\."
)
# In a job of several ranks, PyTorch puts this before each line of a traceback.
LINE_OF_TRACEBACK = re.compile(r"\[rank\d+\]: ")
TORCHRUN_ENDS = re.compile(r"torch[./]distributed[./]elastic|^Failures:|^Root Cause")
# A shell reports 128 + N for a process that signal N ended. Below 128, a process exited by itself.
FIRST_SIGNAL_CODE = 128


@dataclass(frozen=True)
class RankExit:
    """The exit code of a rank, negative for a signal; the rank is None if it is not known which of several exited."""

    rank: int | None
    exit_code: int


@dataclass(frozen=True)
class JobFacts:
    """Facts about a job that has ended."""

    ended: Ended  # how its command ended: a profiler, torchrun, srun, or the only process
    reports: Sequence[RankReport]  # of the ranks that left one
    rank_count: int  # ranks that the job was to have
    time_limit_s: float
    log: str  # text of the log
    node_of: Mapping[int, str] = field(default_factory=dict)  # name of each rank's node; empty for a job on one node

    @cached_property
    def listed_exits(self) -> list[RankExit]:
        """Failed ranks in torchrun's list; the rank that failed first comes last. Empty without such a list."""
        return [RankExit(int(rank), int(code)) for rank, code in FAILED_RANK.findall(self.log)]

    def listed_code(self, rank: int | None) -> int:
        """Return the exit code of a rank.

        It is the code in torchrun's list, or 0 if that list does not name the rank. Without a list it is the exit code
        of the launcher.
        """
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
        """The silent ranks with their nodes, in the form that a `Reason` holds."""
        return tuple(UnreportedRank(rank, self.node_of.get(rank)) for rank in self.silent_ranks)

    def reasons_of(self, outcome: Outcome) -> list[Reason]:
        """Return the reasons of the ranks that reported this outcome, in the order of the ranks."""
        reports = [report for report in self.reports if report.outcome == outcome and report.reason is not None]
        return [replace(report.reason, node=self.node_of.get(report.rank)) for report in reports if report.reason]

    @cached_property
    def first_failure(self) -> Reason | None:
        """The reported failure that probably caused the other failures; None if no rank reported one.

        A broken connection is not the cause if there is another failure: it breaks because the other rank has ended.
        """
        failures = [_with_exit(reason, self) for reason in self.reasons_of("failed")]
        return min(failures, key=_distance_from_cause, default=None)

    @property
    def has_own_failure(self) -> bool:
        """True if a rank reported a failure other than a broken connection to another rank."""
        return self.first_failure is not None and not lost_a_peer(self.first_failure)

    @cached_property
    def first_killed(self) -> Reason | None:
        """The reason `killed`, if a signal ended the silent rank that ended first; else None.

        By torchrun's list the first one is known. Without the list, the launcher's exit code is that of a silent rank;
        if several ranks are silent, the reason names no rank.
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
    """Return the first verdict that one of `CHECKS` gives: the outcome of a job and, unless it completed, the reason.

    The reports of the ranks decide before exit codes do. If all ranks reported that they completed, the job completed,
    even if the launcher or the profiler failed after them; `_all_ranks_completed` has the only exception.
    """
    for check in CHECKS:
        verdict = check(facts)
        if verdict is not None:
            return verdict
    # Ranks ended without a report, and neither torchrun's list nor a signal explains why.
    message = _last_error(facts.log)
    reason = Reason("exited", exit_code=facts.ended.exit_code, unreported=facts.unreported, message=message)
    return Verdict("failed", reason)


def _all_ranks_completed(facts: JobFacts) -> Verdict | None:
    """Completed, if all ranks reported that they did; but failed, if a rank exited with an error after its report.

    That can happen only to a rank that left its script by itself once everything was measured (`ended_early`).
    """
    if len(facts.reports) != facts.rank_count or any(report.outcome != "completed" for report in facts.reports):
        return None
    for report in facts.reports:
        # The rank wrote its report before it exited, so the report does not have its exit code. Signals are not
        # counted as errors: the launcher sends them to processes that stay on after the measurement, and some
        # processes are killed by one as they exit.
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
    """Failed because Slurm lost a node, unless a rank reported a failure of its own."""
    lost = LOST_NODE.search(facts.log) if facts.node_of else None
    if lost is None or facts.has_own_failure:
        return None
    return Verdict("failed", Reason("node_lost", node=lost[1], unreported=facts.unreported))


def _ranks_disagreed_on_steps(facts: JobFacts) -> Verdict | None:
    """Failed because a rank made too few steps although another rank completed.

    The reason names the first rank that completed, and the first step that the other rank did not make.
    """
    failure = facts.first_failure
    enough = next((report.rank for report in facts.reports if report.outcome == "completed"), None)
    if failure is None or failure.code != "too_few_steps" or failure.steps is None or enough is None:
        return None
    node = facts.node_of.get(enough)
    return Verdict("failed", Reason("steps_disagree", rank=enough, step=failure.steps + 1, node=node))


def _rank_failed(facts: JobFacts) -> Verdict | None:
    """Failed by the reported failure that caused the others.

    No verdict, if that failure is a broken connection and a signal killed a silent rank: then the signal is the cause,
    and `_signal_killed_a_rank` gives the verdict.
    """
    failure = facts.first_failure
    if failure is None:
        return None
    if not lost_a_peer(failure):
        return Verdict("failed", failure)
    if facts.first_killed is not None:
        return None
    if facts.node_of:  # the reason lists the silent ranks, because those of a lost node cannot report
        return Verdict("failed", replace(failure, unreported=facts.unreported))
    return Verdict("failed", failure)


def _signal_killed_a_rank(facts: JobFacts) -> Verdict | None:
    return None if facts.first_killed is None else Verdict("failed", facts.first_killed)


# The first check that gives a verdict decides, so a cause comes before its effects: a rank that ran out of memory
# explains why the job then hung until its time limit, and a lost node explains the broken connections that the other
# ranks report.
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
    """Return `profiler_failed` if the profiler failed and `reason` is only an exit code or a signal; else `reason`."""
    failure = profiler_failure(profiler, ended, log) if reason.code in ("exited", "killed") else None
    return Reason("profiler_failed", message=failure) if failure else reason


def profiler_failure(profiler: Profiler, ended: Ended, log: Path) -> str | None:
    """Return how the profiler that wraps a job failed, in one line, with the error that was printed.

    None if the profiler did not fail itself: the processes show no failure, and the log has no message of one.
    """
    text = text_of(log)
    printed = profiler.failure(text)
    if ended.profiler_failure is None and printed is None:
        return None
    parts = [ended.profiler_failure, printed or _last_error(text)]
    # If this disk is full, nsys hangs, or fails without mentioning the disk.
    if is_full(Path(tempfile.gettempdir())):
        parts.append("the disk of its temporary files (TMPDIR) is full")
    if ended.profiler_failed_before:
        parts.append("at an earlier start it failed too")
    return printable(f"{profiler.name}: {'; '.join(filter(None, parts))}", LONGEST_MESSAGE)


def judge_gpus(reports: Sequence[RankReport], devices: int) -> Verdict:
    """Return the verdict on a job whose ranks completed on GPUs: failed if it used fewer than `devices` distinct GPUs.

    GPUs are distinguished by the UUIDs that the ranks reported.
    """
    distinct = {gpu.uuid for report in reports for gpu in report.gpus or ()}
    if len(distinct) >= devices or ranks_may_share_gpus():  # only checks of this project may share GPUs
        return COMPLETED
    return Verdict("failed", Reason("wrong_gpus", devices=devices, gpus=len(distinct)))


@dataclass(frozen=True)
class MeasuredSteps:
    """The number of measured steps that all ranks made, and the mean time of one in seconds."""

    count: int
    step_s: float


def measured_steps(steps: Path, ranks: int | None = None) -> MeasuredSteps | None:
    """Return number and mean time of the measured steps in a steps.csv; None if no measured step was made by all ranks.

    The time is computed as the measure `iteration_time_s` is: in each epoch, the time from the start of a rank's first
    measured step to the end of its last, of the rank with the longest time; summed over epochs, divided by the steps.

    `ranks`: number of ranks of the job. None means the number of ranks in the file; if the job completed, that is all.

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
    """Return `exited` in place of `too_few_steps`, if the rank's exit code is not 0; any other reason unchanged.

    Such a rank made too few steps because it exited with an error.
    """
    if reason.code != "too_few_steps":
        return reason
    code = facts.listed_code(reason.rank)
    if code == 0:
        return reason
    # The script called sys.exit: an exception would have been reported as the reason. Python prints the argument of
    # sys.exit last, so the last line is the message.
    return replace(reason, code="exited", exit_code=code, message=_last_words(facts.log))


def _distance_from_cause(reason: Reason) -> tuple[bool, int, bool]:
    """Return a sort key that is smallest for the failure that caused the others.

    A broken connection is an effect, so it sorts last. Among the others an `error` sorts before an `exited`, and
    `exited` before any other code. A rank that a signal ended sorts after one that exited by itself, because its
    launcher sent the signal after another rank had failed.
    """
    explains = ["error", "exited", reason.code]
    was_ended_by_signal = (reason.exit_code or 0) < 0
    return lost_a_peer(reason), explains.index(reason.code), was_ended_by_signal


def lost_a_peer(reason: Reason) -> bool:
    """True if the message of a reason says that a connection to another rank broke."""
    message = (reason.message or "").lower()
    return any(sign in message for sign in LOST_PEER)


def _signal_of(exit_code: int) -> str | None:
    """Return the name of the signal that ended a process; None if its exit code stands for no signal.

    The code is −N for signal N as `subprocess` has it, or 128 + N as a shell around the process has it.
    """
    number = -exit_code if exit_code < 0 else exit_code - FIRST_SIGNAL_CODE
    return signal.Signals(number).name if number in list(signal.Signals) else None


def _last_error(log: str) -> str | None:
    """Return the last line of the job that mentions an error, else its last line; None if it printed no line."""
    lines = _lines_of_job(log)
    errors = [line for line in lines if ERROR.search(line)]
    return _quoted_last(errors or lines)


def _last_words(log: str) -> str | None:
    """Return the last line of the job that is not in a rank's traceback; None without such a line."""
    return _quoted_last([line for line in _lines_of_job(log) if not LINE_OF_TRACEBACK.match(line)])


def _quoted_last(lines: Sequence[str]) -> str | None:
    return printable(lines[-1], LONGEST_MESSAGE) if lines else None


def _lines_of_job(log: str) -> list[str]:
    """Return the lines, without blank ones, that the job itself printed before torchrun's summary of failures."""
    before_summary = itertools.takewhile(lambda line: not TORCHRUN_ENDS.search(line), log.splitlines())
    return [line.strip() for line in before_summary if line.strip() and not NOT_OF_THE_JOB.match(line)]


def text_of(log: Path) -> str:
    """Return the text of a job's log; "" if there is no log."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
