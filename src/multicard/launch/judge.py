"""The outcome of a job, by what its ranks reported and how its launcher exited."""

import itertools
import re
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from multicard.core.files import is_full
from multicard.core.layout import PROGRESS
from multicard.core.reasons import LONGEST_MESSAGE, Reason
from multicard.core.system import ranks_may_share_gpus
from multicard.core.text import printable
from multicard.launch.supervise import Ended
from multicard.profilers.interface import Profiler

# A rank and its exit code in the list of failures with which torchrun ends.
FAILED_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+) ")
# What gloo, NCCL and the store of a process group say when another rank has gone, in lower case.
LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "connection was likely closed", "remote process exited", "ncclremoteerror", "communicator was aborted",
)  # fmt: skip

LOST_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
ERROR = re.compile(r"error\b|no module named", re.IGNORECASE)
OF_OTHERS = re.compile(rf"{PROGRESS}  |Generated:|\t")  # what this project prints, and nsys at its end
OF_ERROR = re.compile(r"\[rank\d+\]: ")  # how PyTorch begins the lines of a traceback where there are several ranks
REASONS = ("error", "exited")  # of a rank, in the order in which they explain the others
TORCHRUN_ENDS = re.compile(r"torch[./]distributed[./]elastic|^Failures:|^Root Cause")


def judge(
    ended: Ended,
    ranks: list[dict[str, Any]],
    expected: int,
    time_limit_s: float,
    log: Path,
    node_of: Mapping[int, str] | None = None,
) -> tuple[str, Reason | None]:
    """Outcome of a job and, unless it completed, the reason.

    What the ranks reported decides; how a launcher or profiler exited after them does not. Of several failures the
    reason is the one that caused the others: not a connection that broke because the rank at its other end was gone.

    `node_of`: of a job on several nodes, the name of each rank's.
    """
    node_of = node_of or {}
    if len(ranks) == expected and all(record["outcome"] == "completed" for record in ranks):
        early = [record["rank"] for record in ranks if record.get("ended_early")]
        return _judge_exit(early, ended, node_of, log) if early else ("completed", None)
    reasons = {
        outcome: [
            Reason(**record["reason"] | {"node": node_of.get(record["rank"])})
            for record in ranks
            if record["outcome"] == outcome
        ]
        for outcome in ("out_of_memory", "diverged", "failed")
    }
    for outcome in ("out_of_memory", "diverged"):
        if reasons[outcome]:
            return outcome, reasons[outcome][0]
    if ended.timed_out:
        return "timed_out", Reason("timed_out", time_limit_s=time_limit_s)
    silent = sorted(set(range(expected)) - {record["rank"] for record in ranks})
    unreported = [{"rank": rank} | ({"node": node_of[rank]} if rank in node_of else {}) for rank in silent]
    # In the list of failures with which torchrun ends the first to fail comes last.
    listed = [(int(rank), int(code)) for rank, code in FAILED_RANK.findall(text_of(log))]
    failed = sorted(
        (_with_exit(each, ended, listed, log) for each in reasons["failed"]),
        # One that a signal ended was ended by its launcher, after another one had failed.
        key=lambda each: (_lost_a_peer(each), [*REASONS, each.code].index(each.code), (each.exit_code or 0) < 0),
    )
    lost = LOST_NODE.search(text_of(log)) if node_of else None
    if lost and not (failed and not _lost_a_peer(failed[0])):
        return "failed", Reason("node_lost", node=lost[1], unreported=unreported)
    enough = next((record["rank"] for record in ranks if record["outcome"] == "completed"), None)
    if failed and failed[0].code == "too_few_steps" and enough is not None:
        return "failed", Reason("steps_disagree", rank=enough, step=failed[0].steps + 1, node=node_of.get(enough))
    killed, signal_name = _first_killed(silent, ended, listed)
    if failed and not (signal_name and _lost_a_peer(failed[0])):
        if node_of and _lost_a_peer(failed[0]):  # the ranks of a lost node do not report
            return "failed", replace(failed[0], unreported=unreported)
        return "failed", failed[0]
    if signal_name and killed is not None:
        return "failed", Reason("killed", rank=killed, node=node_of.get(killed), signal=signal_name)
    if signal_name:
        return "failed", Reason("killed", signal=signal_name, unreported=unreported)
    return "failed", Reason("exited", exit_code=ended.exit_code, unreported=unreported, message=_last_words(log))


def judge_profiler(reason: Reason, profiler: Profiler, ended: Ended, log: Path) -> Reason:
    """The reason of a failed job of which no rank reported an error: the profiler's, where that failed itself."""
    failure = profiler_failure(profiler, ended, log) if reason.code in ("exited", "killed") else None
    return Reason("profiler_failed", message=failure) if failure else reason


def profiler_failure(profiler: Profiler, ended: Ended, log: Path) -> str | None:
    """In words, how a profiler that wraps a job failed itself, with what it printed; None if it did not."""
    printed = profiler.failure(text_of(log))
    if ended.profiler_failure is None and printed is None:
        return None
    parts = [ended.profiler_failure, printed or _last_words(log)]
    if is_full(Path(tempfile.gettempdir())):  # without space there nsys hangs, or says nothing of that
        parts.append("the disk of its temporary files (TMPDIR) is full")
    if ended.profiler_failed_before:
        parts.append("at an earlier start it failed too")
    return printable(f"{profiler.name}: {'; '.join(filter(None, parts))}", LONGEST_MESSAGE)


def judge_gpus(ranks: list[dict[str, Any]], devices: int) -> tuple[str, Reason | None]:
    """Outcome of a job whose ranks completed on GPUs: failed unless each device was a GPU of its own.

    GPUs are told apart by their UUIDs, which each rank recorded.
    """
    distinct = {gpu["uuid"] for rank in ranks for gpu in rank.get("gpus") or []}
    if len(distinct) >= devices or ranks_may_share_gpus():
        return "completed", None
    return "failed", Reason("wrong_gpus", devices=devices, gpus=len(distinct))


def measured_steps(steps: Path, ranks: int | None = None) -> tuple[int, float] | None:
    """Measured steps that all ranks have made, and the time of one, as `iteration_time_s` counts it; None without one.

    That is of the slowest rank in each epoch. `ranks`: of the job; None of a completed one, where each has steps.
    """
    import pandas as pd

    rows = pd.read_csv(steps, usecols=["rank", "epoch", "step", "window", "start_s", "duration_s"])
    rows = rows.assign(end_s=rows["start_s"] + rows["duration_s"])[rows["window"] == "measured"]
    rows = rows[rows.groupby("step")["rank"].transform("nunique") == (ranks or rows["rank"].nunique())]
    epochs = rows.groupby(["rank", "epoch"])
    elapsed = (epochs["end_s"].max() - epochs["start_s"].min()).groupby("epoch").max().sum()
    count = rows["step"].nunique()
    return (count, float(elapsed / count)) if count else None


def _judge_exit(early: list[int], ended: Ended, node_of: Mapping[int, str], log: Path) -> tuple[str, Reason | None]:
    """Outcome of a job whose ranks have measured all and then left: failed if one of them exited because of an error.

    `early`: the ranks that left by themselves, and could not know their exit code.
    """
    listed = dict(FAILED_RANK.findall(text_of(log)))
    codes = {rank: int(listed.get(str(rank), 0)) if listed else ended.exit_code for rank in early}
    # A signal ends what lingers after that, and some processes as they end.
    rank = next((rank for rank, code in codes.items() if 0 < code < 128), None)
    if rank is None:
        return "completed", None
    message = _last_words(log, of_errors=False)
    return "failed", Reason("exited", rank=rank, node=node_of.get(rank), exit_code=codes[rank], message=message)


def _with_exit(reason: Reason, ended: Ended, listed: list[tuple[int, int]], log: Path) -> Reason:
    """The reason of a rank that made too few steps, by what it said as it exited unless it did so without an error."""
    if reason.code != "too_few_steps":
        return reason
    code = dict(listed).get(reason.rank, 0) if listed else ended.exit_code
    # Python prints what it was told to exit with after all else; an exception would have been recorded.
    return replace(reason, code="exited", exit_code=code, message=_last_words(log, of_errors=False)) if code else reason


def _last_words(log: Path, of_errors: bool = True) -> str | None:
    """The last line that a job printed; None where there is none.

    `of_errors`: of those that tell of an error, if any do; else of those that are of no traceback of a rank.
    """
    lines = itertools.takewhile(lambda line: not TORCHRUN_ENDS.search(line), text_of(log).splitlines())
    said = [line.strip() for line in lines if line.strip() and not OF_OTHERS.match(line)]
    if of_errors:
        said = [line for line in said if ERROR.search(line)] or said
    else:
        said = [line for line in said if not OF_ERROR.match(line)]
    return printable(said[-1], LONGEST_MESSAGE) if said else None


def text_of(log: Path) -> str:
    """What a job printed."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _lost_a_peer(reason: Reason) -> bool:
    return any(sign in (reason.message or "").lower() for sign in LOST_PEER)


def _first_killed(silent: list[int], ended: Ended, listed: list[tuple[int, int]]) -> tuple[int | None, str | None]:
    """The rank that ended first of those that did not report, and the signal, if one killed it; else None.

    Without torchrun's list the rank is not known where several did not report.
    """
    ends: list[tuple[int | None, int]] = [end for end in listed[-1:] + listed[:-1] if end[0] in silent]
    if silent and not listed:
        ends = [(silent[0] if len(silent) == 1 else None, ended.exit_code)]
    if not ends:
        return None, None
    rank, code = ends[0]
    number = -code if code < 0 else code - 128  # as Popen has it, or as a shell or a profiler around the job
    return (rank, signal.Signals(number).name) if number in list(signal.Signals) else (None, None)
