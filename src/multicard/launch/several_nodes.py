"""Run a job on several nodes: Slurm's srun starts `multicard.launch.node` on each, and ends none too early.

srun kills the tasks of all nodes a few seconds after it gets SIGTERM, and when one of them has failed. So the nodes
keep the time limit themselves, and one that has failed waits until the others have ended and copied what their ranks
wrote.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import read_json, write_json
from multicard.core.layout import COPIED, NODE, node_file
from multicard.core.slurm import NO_ANSWER
from multicard.experiment.workload import WORKLOADS
from multicard.launch.judge import text_of
from multicard.launch.node_ranks import NOT_FOR_SRUN, srun_command
from multicard.launch.supervise import Ended, run
from multicard.launch.variables import job_environment
from multicard.launch.watch import Limits
from multicard.runs.parameters import JobParameters

# Nodes may take so much longer than the job's time limit: to start later than srun, to end their ranks, and to copy.
BEYOND_LIMIT_S = 180.0
# srun gets more time to end than a job, since on each node a launcher ends its ranks first.
SRUN_LIMITS = Limits(grace_s=2 * Limits.grace_s)
NO_ANSWER_OF_SRUN = re.compile(rf"srun: error: .*({NO_ANSWER.pattern})", re.IGNORECASE)


@dataclass(frozen=True)
class Patience:
    """Seconds of waiting for Slurm's controller and for other nodes."""

    # Between two starts of the nodes, and for all of them, while the controller does not answer.
    pause_s: float = 10.0
    no_answer_s: float = 300.0
    # Between two looks of a task at the others.
    look_s: float = 1.0
    # For the other tasks, after one has failed: one of them may be lost.
    other_tasks_s: float = 60.0


def run_on_nodes(
    p: JobParameters,
    shared: Path,
    job: Path,
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    patience: Patience | None = None,
) -> tuple[list[str], Ended]:
    """Run a job on the nodes of this process's job of Slurm; return the command and how it ended.

    `shared`: the scratch folder of the run, which all nodes see; `job`: job.json in it.

    Raises `UserError` if Slurm's controller does not answer for long: that is no outcome of the job.
    """
    launching = WORKLOADS[p.workload].launching(p)
    command = srun_command(p, job)
    variables = job_environment(stated=launching.passed_variables, withheld=NOT_FOR_SRUN)
    patience = patience or Patience()
    node_files = [shared / node_file(NODE, node) for node in range(p.nodes)]
    first_start_at = time.monotonic()
    while True:
        ended = run(command, variables, log, time_limit_s + BEYOND_LIMIT_S, on_line, limits=SRUN_LIMITS)
        has_started = any(file.exists() for file in node_files)
        if ended.exit_code == 0 or has_started:
            break
        no_answer = NO_ANSWER_OF_SRUN.search(text_of(log))
        if no_answer is None:
            break
        if time.monotonic() - first_start_at > patience.no_answer_s:
            raise UserError(f"cannot start on the nodes: {no_answer[0]}; start again when Slurm answers")
        time.sleep(patience.pause_s)
    states = states_of_tasks(shared, p.nodes * launching.tasks_per_node)
    timed_out = ended.timed_out or any(state.timed_out for state in states)
    return command, replace(ended, timed_out=timed_out)


@dataclass(frozen=True)
class TaskState:
    """How a task of Slurm ended, written by `OtherTasks.report` once it has copied what its ranks wrote."""

    failed: bool
    timed_out: bool


def states_of_tasks(shared: Path, count: int) -> list[TaskState]:
    """Return the states of the tasks that have ended, of `count`; `shared`: the folder that all of them see."""
    files = [shared / node_file(COPIED, task) for task in range(count)]
    return [TaskState(**read_json(file)) for file in files if file.exists()]


class OtherTasks:
    """The other tasks of Slurm that run a job, as one of them sees them in the folder that all share."""

    def __init__(self, shared: Path, task: int, count: int, patience: Patience | None = None) -> None:
        self.shared = shared
        self.task = task
        self.count = count
        self._patience = patience or Patience()
        self.have_failed = False  # True once this task is to end because of another one
        self._over = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Send SIGTERM to this process when another task has failed or reached the time limit during the block."""
        watch = threading.Thread(target=self._watch, name="other-tasks", daemon=True)
        watch.start()
        try:
            yield
        finally:
            with self._lock:
                self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._patience.look_s):
            states = states_of_tasks(self.shared, self.count)
            if any(state.failed or state.timed_out for state in states):
                # The lock keeps the signal from a process that has just left the block, and copies.
                with self._lock:
                    if not self._over.is_set():
                        self.have_failed = True
                        os.kill(os.getpid(), signal.SIGTERM)
                return

    def report(self, failed: bool, timed_out: bool) -> None:
        """Let the others know that this task has copied everything, and how it ended."""
        write_json(self.shared / node_file(COPIED, self.task), asdict(TaskState(failed, timed_out)))

    def wait(self) -> None:
        """Wait until the others have reported, but not for ever: one of them may be lost."""
        deadline = time.monotonic() + self._patience.other_tasks_s
        while len(states_of_tasks(self.shared, self.count)) < self.count and time.monotonic() < deadline:
            time.sleep(self._patience.look_s)
