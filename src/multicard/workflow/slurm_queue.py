"""A pipeline's jobs in Slurm's queue: name those that do not start, requeue those that were preempted."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from multicard.core.errors import UserError
from multicard.core.system import ask
from multicard.core.text import counted
from multicard.workflow.one_pipeline import Pipeline
from multicard.workflow.submission import Refusal, waiting_submissions

# Seconds between two looks at the queue.
LOOK_S = 30.0
# For how many seconds Slurm is asked to cancel the jobs of a pipeline that ends, and the pause between two attempts. A
# controller that restarts is away for minutes.
CANCEL_LIMIT_S, CANCEL_PAUSE_S = 600.0, 5.0
# A message names at most this many jobs.
LONGEST_LIST = 5
# The columns are id, state, reason, time of submission, working directory and comment of each job.
QUEUE = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%V|%Z|%k"]
# Snakemake's plugin for Slurm begins the comment of each of its jobs with one of these.
COMMENT_PREFIXES = ("rule_", "group_")
# The comment of a job that launches a run is this and the id of the run.
PREFIX_OF_RUN = "rule_launch_run_wildcards_"
# Slurm's reasons ("man squeue", JOB REASON CODES) for which a pending job will never start, and what to do about each.
LIMIT = "ask for less (set-resources in the profile) or use another partition"
HELD = "release it with `scontrol release`"
NEVER = {
    "PartitionTimeLimit": LIMIT,
    "PartitionNodeLimit": LIMIT,
    "BadConstraints": LIMIT,
    "MaxMemPerLimit": LIMIT,
    "InvalidAccount": "state another slurm_account in the profile",
    "InvalidQOS": "state another slurm-qos in the profile",
    "AccountNotAllowed": "state another slurm_account or slurm_partition in the profile",
    "QOSNotAllowed": "state another slurm-qos or slurm_partition in the profile",
    "JobHeldAdmin": "ask the cluster's administrators",
    "JobHeldUser": HELD,
    "launch_failed_requeued_held": HELD,
}
# Reasons that end so are limits on a single job, such as AssocMaxWallDurationPerJobLimit and QOSMaxGRESPerJob.
PER_JOB_SUFFIXES = ("PerJobLimit", "PerJob")
# States of jobs that have not ended.
AT_WORK = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING")


class QueuedJob(NamedTuple):
    """A job of a pipeline, as squeue lists it."""

    id: str
    state: str
    reason: str
    # Time in Slurm's standard format, such as 2026-11-29T13:04:18.
    submitted: str
    # Rule and wildcards of the job.
    comment: str

    @property
    def run(self) -> str | None:
        """Id of the run that the job launches; None if it launches none."""
        return self.comment.removeprefix(PREFIX_OF_RUN) if self.comment.startswith(PREFIX_OF_RUN) else None


class Queue(NamedTuple):
    """Jobs in Slurm's queue. If `squeue` failed, `problem` is the reason and `jobs` is empty or incomplete."""

    jobs: list[QueuedJob]
    problem: str | None


def queue(folder: Path) -> Queue:
    """Return the jobs that pipelines submitted from a folder, in any state: Slurm lists also some that have ended."""
    # Times are compared as text, so Slurm has to print them in its standard format, whatever the user has set.
    answer = ask(QUEUE, environment=os.environ | {"SLURM_TIME_FORMAT": "standard"})
    jobs = []
    for line in answer.lines:
        # The name of a folder may contain "|", so the comment is what follows the last one. If a line is incomplete,
        # its missing columns are empty.
        columns = line.split("|", 4) + [""] * 4
        job, state, reason, submitted, folder_and_comment = columns[:5]
        submitted_from, _, comment = folder_and_comment.rpartition("|")
        if submitted_from == str(folder) and comment.startswith(COMMENT_PREFIXES):
            jobs.append(QueuedJob(job, state, reason, submitted, comment))
    return Queue(jobs, answer.problem)


def refuse_orphans(folder: Path, elsewhere: Pipeline | None) -> None:
    """Raise `UserError` if jobs that an earlier pipeline submitted from this folder have not ended.

    This pipeline would do the same runs as these jobs. The message names them. `elsewhere`: a pipeline that may be
    running on another machine, or None. If there is one, the jobs may be its measurements, so the message does not
    advise to cancel them.
    """
    orphans = [job for job in queue(folder).jobs if job.state in AT_WORK]
    if not orphans:
        return
    named = ", ".join(f"{job.id} ({job.run or job.comment})" for job in orphans[:LONGEST_LIST])
    more = f" and {len(orphans) - LONGEST_LIST} more" if len(orphans) > LONGEST_LIST else ""
    jobs = counted(len(orphans), "Slurm job")
    if elsewhere:
        raise UserError(
            f"{jobs} left from an earlier start in this folder, or of a pipeline that is running on {elsewhere.host} "
            f"({elsewhere}): {named}{more}; wait for their end (their outcomes are kept), or if it is not running any "
            f"more, start again on {elsewhere.host}"
        )
    ids = " ".join(job.id for job in orphans)
    raise UserError(
        f"{jobs} left from an earlier start in this folder: {named}{more}; "
        f"wait for their end (their outcomes are kept), or cancel them: scancel {ids}"
    )


@dataclass
class QueueWatch:
    """Watches the jobs that a pipeline submitted from `folder` since `since`. Made and started by the Snakefile."""

    folder: Path
    since: datetime
    # Is called with each message, once for each job and reason.
    warn: Callable[[str], None]
    # Is called with the queue at each look.
    show: Callable[[Queue], None]
    # Set when the pipeline is to end. From then on no job is requeued.
    ending: threading.Event = field(default_factory=threading.Event)
    # Id of the job, empty for submissions, and reason of each message so far.
    _warned: set[tuple[str, str]] = field(default_factory=set)

    def start(self, ending: threading.Event) -> None:
        """Look every `LOOK_S` seconds until `ending` is set, in a thread that ends with the process.

        When the process ends, `cancel_left` is called.
        """
        self.ending = ending
        atexit.register(self.cancel_left)

        def watch() -> None:
            while not ending.wait(LOOK_S):
                self.look()

        threading.Thread(target=watch, name="slurm-watch", daemon=True).start()

    def look(self) -> None:
        """Look at the queue once, and at the submissions that wait for Slurm to take them."""
        waiting = waiting_submissions(self.folder)
        for refusal in set(waiting):
            self._once("", refusal.reason, _worded(refusal, waiting.count(refusal)))
        jobs, problem = self._queue()
        self.show(Queue(jobs, problem))
        for job in jobs:
            if job.state == "PENDING":
                self._pending(job)
            # If the pipeline is ending, Snakemake has cancelled the job, so it is not requeued.
            elif job.state == "PREEMPTED" and not self.ending.is_set():
                self._requeue(job.id, job.comment)

    def cancel_left(self, limit_s: float = CANCEL_LIMIT_S, pause_s: float = CANCEL_PAUSE_S) -> None:
        """Cancel the jobs that Snakemake left in the queue, if the pipeline got a signal to end.

        It leaves some for two reasons. While Snakemake looks at the queue, its own list of jobs is empty. If the signal
        comes then, it cancels no job (`active_jobs` of snakemake_interface_executor_plugins.executors.remote). And it
        tries only once, so it cancels no job while Slurm's controller is away. Therefore this method asks Slurm until
        it answers. If it has not answered after `limit_s` seconds, a message says how to cancel the jobs.
        """
        if not self.ending.is_set():
            return
        deadline = time.monotonic() + limit_s
        problem = self._cancel()
        if problem and limit_s:
            _say(f"Slurm does not answer ({problem}): asking again for at most {limit_s:g} s")
        while problem and time.monotonic() < deadline:
            time.sleep(pause_s)
            problem = self._cancel()
        if problem:
            _say(f"the Slurm jobs of this pipeline may not be cancelled: {problem}; look with squeue, end with scancel")

    def _cancel(self) -> str | None:
        """Cancel the jobs of this pipeline that are in the queue; return why that failed, or None."""
        jobs, problem = self._queue()
        ids = [job.id for job in jobs if job.state in AT_WORK]
        if problem or not ids:
            return problem
        return ask(["scancel", *ids]).problem

    def _queue(self) -> Queue:
        """Return the queue with only the jobs of this pipeline."""
        since = self.since.isoformat(timespec="seconds")
        jobs, problem = queue(self.folder)
        return Queue([job for job in jobs if job.submitted >= since], problem)

    def _pending(self, job: QueuedJob) -> None:
        """Warn of a pending job if its reason means that it will never start."""
        # Slurm may print a reason in parentheses, with blanks for underscores, and with an explanation after a comma.
        code = job.reason.replace("_", " ").partition(",")[0].strip("() ")
        remedy = NEVER.get(code.replace(" ", "_"))
        if remedy is None and code.endswith(PER_JOB_SUFFIXES):
            remedy = LIMIT
        if remedy:
            self._once(job.id, code, f"Slurm job {job.id} ({job.comment}) will not start: {job.reason}; {remedy}")

    def _requeue(self, job: str, comment: str) -> None:
        """Put a job in the state PREEMPTED back into the queue.

        Snakemake's plugin waits for a preempted job, but Slurm itself requeues a preempted job only under
        PreemptMode=REQUEUE.
        """
        answer = ask(["scontrol", "requeue", job])
        if answer.problem is None:
            self.warn(f"Slurm job {job} ({comment}) was preempted and is requeued")
            # If a later attempt to requeue the job fails, that is a new message.
            self._warned.discard((job, "PREEMPTED"))
        else:
            problem = f"Slurm job {job} ({comment}) was preempted and cannot be requeued: {answer.problem}; "
            self._once(job, "PREEMPTED", problem + "Snakemake waits for it: press Ctrl-C and start again")

    def _once(self, job: str, code: str, message: str) -> None:
        """Warn, unless there was a message about this job and reason before."""
        if (job, code) not in self._warned:
            self._warned.add((job, code))
            self.warn(message)


def _say(message: str) -> None:
    """Print a message; when a process ends, the handlers of logging are closed."""
    print(message, file=sys.stderr, flush=True)


def _worded(refusal: Refusal, count: int) -> str:
    """Return a message on why `count` submissions wait, and on what to do."""
    if refusal.is_limit:
        return (
            f"Slurm takes no more jobs of yours at a time ({refusal.reason}): {counted(count, 'job')} wait to be "
            "submitted until others end; with `jobs` in the profile no larger than that limit none has to wait"
        )
    return f"Slurm takes no job at the moment: {refusal.reason}; it is asked again and again, for an hour"
