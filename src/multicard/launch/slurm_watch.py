"""Watch a pipeline's jobs in Slurm's queue: name those that will not start, and requeue those that were preempted."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from multicard.core.system import ask

LOOK_S = 30.0
QUEUE = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%V|%Z|%k"]
# What Snakemake's plugin begins the comment of its jobs with.
COMMENTS = ("rule_", "group_")
# Reasons of Slurm ("man squeue", JOB REASON CODES) that no waiting changes, and what to do.
LIMIT = "ask for less (set-resources in the profile) or use another partition; `multicard doctor --profile …` checks it"
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
PER_JOB = ("PerJobLimit", "PerJob")  # AssocMaxWallDurationPerJobLimit, QOSMaxGRESPerJob, …
# Reasons that pass, but maybe not for a long time.
LONG = ("PartitionDown", "PartitionInactive", "ReqNodeNotAvail", "NodeDown", "AssocMaxJobsLimit", "ReservationDeleted")


@dataclass
class QueueWatch:
    """Looks at the jobs that were submitted from a folder since a time.

    Attributes
    ----------
    folder
        Working directory of the jobs.
    since
        Jobs that were submitted before are not looked at.
    warn
        Takes each message, once per job and reason.
    ending
        Set when the pipeline is told to end: then no job is requeued.
    """

    folder: Path
    since: datetime
    warn: Callable[[str], None]
    ending: threading.Event = field(default_factory=threading.Event)
    _warned: set[tuple[str, str]] = field(default_factory=set)

    def start(self, ending: threading.Event) -> None:
        """Look again and again until `ending` is set, in a thread that ends with the process."""
        self.ending = ending

        def watch() -> None:
            while not ending.wait(LOOK_S):
                self.look()

        threading.Thread(target=watch, name="slurm-watch", daemon=True).start()

    def look(self) -> None:
        """Look at the queue once. When Slurm does not answer, nothing is said: the next look may succeed."""
        # The times are compared as text: in Slurm's own form, whatever the user prefers.
        environment = os.environ | {"SLURM_TIME_FORMAT": "standard"}
        for line in ask(QUEUE, environment=environment).lines:
            job, state, reason, submitted, rest = (line.split("|", 4) + [""] * 5)[:5]
            folder, _, comment = rest.rpartition("|")
            if folder != str(self.folder) or not comment.startswith(COMMENTS) or submitted < self._since:
                continue
            if state == "PENDING":
                self._pending(job, comment, reason)
            elif state == "PREEMPTED" and not self.ending.is_set():  # else Snakemake has cancelled it
                self._requeue(job, comment)

    @property
    def _since(self) -> str:
        return self.since.isoformat(timespec="seconds")

    def _pending(self, job: str, comment: str, reason: str) -> None:
        code = reason.partition(",")[0].strip("() ")
        remedy = NEVER.get(code, LIMIT if code.endswith(PER_JOB) else None)
        if remedy:
            self._once(job, code, f"Slurm job {job} ({comment}) will not start: {reason}; {remedy}")
        elif code.startswith(LONG):
            self._once(job, code, f"Slurm job {job} ({comment}) is waiting: {reason}")

    def _requeue(self, job: str, comment: str) -> None:
        """Put a preempted job back into the queue, unless Slurm has done so.

        Snakemake's plugin takes preemption for an interruption, but Slurm requeues only under PreemptMode=REQUEUE.
        """
        answer = ask(["scontrol", "requeue", job])
        if answer.problem is None:
            self.warn(f"Slurm job {job} ({comment}) was preempted and is requeued")
            self._warned.discard((job, "PREEMPTED"))
        else:
            problem = f"Slurm job {job} ({comment}) was preempted and cannot be requeued: {answer.problem}; "
            self._once(job, "PREEMPTED", problem + "Snakemake waits for it: press Ctrl-C and start again")

    def _once(self, job: str, code: str, message: str) -> None:
        if (job, code) not in self._warned:
            self._warned.add((job, code))
            self.warn(message)
