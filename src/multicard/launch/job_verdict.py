"""The verdict on an attempt at a job: by its exit, the reports of its ranks, their GPUs, and whether they trained."""

from collections.abc import Sequence
from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import is_full, mentions_full_disk
from multicard.core.reasons import Reason
from multicard.launch.attempts import Attempt
from multicard.launch.collect import Collected
from multicard.launch.judge import JobFacts, judge, judge_gpus, judge_profiler, text_of
from multicard.launch.supervise import Ended
from multicard.launch.training_checks import judge_training
from multicard.profilers import PROFILERS
from multicard.runs.verdict import Verdict

# Messages about a full disk are searched for in so many characters at the end of a log.
LOG_TAIL = 20_000


def judge_attempt(attempt: Attempt, ended: Ended, collected: Collected) -> Verdict:
    """Return the verdict on a job: by its exit and the reports of its ranks first, then by whether it trained.

    Raises `UserError` if the job failed because a disk was full, so that the user can free space and try again.
    """
    parameters = attempt.parameters
    facts = JobFacts(
        ended=ended,
        reports=collected.reports,
        rank_count=parameters.ranks,
        time_limit_s=attempt.time_limit_s,
        log=text_of(attempt.log),
        node_of=collected.node_of,
    )
    verdict = judge(facts)
    if verdict.outcome == "failed" and verdict.reason is not None:
        # The reason becomes `profiler_failed` if no rank explains the failure and the profiler itself failed.
        reason = judge_profiler(verdict.reason, PROFILERS[attempt.profiler.name], ended, attempt.log)
        verdict = verdict._replace(reason=reason)
    if verdict.outcome == "completed" and parameters.device == "cuda":
        # The job failed if ranks shared a GPU.
        verdict = judge_gpus(collected.reports, parameters.devices)
    verdict = judge_training(parameters, verdict, collected.reports, attempt.scratch)
    if verdict.outcome == "failed" and verdict.reason is not None:
        full_folder = _full_folder(verdict.reason, attempt.log, (attempt.folder, attempt.scratch))
        if full_folder is not None:
            raise UserError(f"{full_folder}: cannot be written: No space left on device; free space and start again")
    return verdict


def _full_folder(reason: Reason, log: Path, folders: Sequence[Path]) -> Path | None:
    """Return the first of `folders` whose disk was full when a job failed; None if none was.

    The reason or the end of the log must have a line about a full disk. Such a line alone proves nothing, because a
    script may complain about another disk: the line has to name the folder, or the folder's disk has to be full now.
    """
    log_end = text_of(log)[-LOG_TAIL:]
    lines = [reason.message or "", *log_end.splitlines()]
    complaints = [line for line in lines if mentions_full_disk(line)]
    for folder in folders:
        is_named = any(str(folder) in line or str(folder.absolute()) in line for line in complaints)
        if is_named or (complaints and is_full(folder)):
            return folder
    return None
