"""Run a job on several nodes: Slurm's srun starts `multicard.launch.node` as one or more tasks on each node.

srun kills all tasks when one of them exits with an error, and a few seconds after it gets SIGTERM itself. Files of
ranks that were not copied yet would then be lost. So each task keeps the time limit itself, and a task that has failed
exits only after the others have ended their ranks and copied the files.
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
from multicard.launch.judge import text_of
from multicard.launch.node_ranks import NOT_FOR_SRUN, srun_command
from multicard.launch.start import rank_command, tasks_per_node
from multicard.launch.supervise import Ended, run
from multicard.launch.variables import job_environment
from multicard.launch.watch import Limits
from multicard.runs.parameters import JobParameters

# Seconds that srun may run longer than the job's time limit. Tasks start later than srun, and after the limit they
# have to end their ranks and copy the files.
BEYOND_LIMIT_S = 180.0
# srun has more time between SIGTERM and SIGKILL than a job has, because its tasks have to end their ranks in that time.
SRUN_LIMITS = Limits(grace_s=2 * Limits.grace_s)
NO_ANSWER_OF_SRUN = re.compile(rf"srun: error: .*({NO_ANSWER.pattern})", re.IGNORECASE)


@dataclass(frozen=True)
class Patience:
    """Seconds of waiting for Slurm's controller and for other tasks."""

    # While the controller does not answer, srun is started again after each pause, until `no_answer_s` have passed
    # since its first start.
    pause_s: float = 10.0
    no_answer_s: float = 300.0
    # Time between two looks of a task at the reports of the others.
    look_s: float = 1.0
    # Longest time that a task which has failed waits for the reports of the others. The node of one may be lost.
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
    """Run a job on the nodes of the Slurm job that this process is part of; return the srun command and how it ended.

    `timed_out` is True if srun or any task reached its time limit.

    `shared`: the scratch folder of the run, which all nodes see. `job`: path of job.json in it. `time_limit_s`: seconds
    that each task gives its ranks. `on_line`: called with each line that the job prints.

    Raises `UserError` if Slurm's controller did not answer for `no_answer_s`, so that the job did not start.
    """
    command = srun_command(p, job)
    variables = job_environment(stated=rank_command(p).passed_variables, withheld=NOT_FOR_SRUN)
    patience = patience or Patience()
    node_files = [shared / node_file(NODE, node) for node in range(p.nodes)]
    first_start_at = time.monotonic()
    while True:
        ended = run(command, variables, log, time_limit_s + BEYOND_LIMIT_S, on_line, limits=SRUN_LIMITS)
        has_started = any(file.exists() for file in node_files)
        if ended.exit_code == 0 or has_started:
            break
        # None if srun failed for another reason than that the controller did not answer.
        no_answer = NO_ANSWER_OF_SRUN.search(text_of(log))
        if no_answer is None:
            break
        if time.monotonic() - first_start_at > patience.no_answer_s:
            raise UserError(f"cannot start on the nodes: {no_answer[0]}; start again when Slurm answers")
        time.sleep(patience.pause_s)
    states = states_of_tasks(shared, p.nodes * tasks_per_node(p))
    timed_out = ended.timed_out or any(state.timed_out for state in states)
    return command, replace(ended, timed_out=timed_out)


@dataclass(frozen=True)
class TaskState:
    """How the ranks of a Slurm task ended. `OtherTasks.report` writes it once the task has copied their files.

    `failed` is False if they completed, timed out, or were ended because another task had failed or timed out.
    """

    failed: bool
    timed_out: bool


def states_of_tasks(shared: Path, count: int) -> list[TaskState]:
    """Return the states of those of `count` tasks that have reported theirs to `shared`, the folder that all see."""
    files = [shared / node_file(COPIED, task) for task in range(count)]
    return [TaskState(**read_json(file)) for file in files if file.exists()]


class OtherTasks:
    """The other tasks of a job, seen from task number `task`; each reports to the others by a file in `shared`.

    `count`: number of all tasks of the job, this one included.
    """

    def __init__(self, shared: Path, task: int, count: int, patience: Patience | None = None) -> None:
        self.shared = shared
        self.task = task
        self.count = count
        self._patience = patience or Patience()
        self.have_failed = False  # True once `watched` has ended this task: another task failed or timed out
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
                # Because of the lock, no signal is sent once this process has left the block and copies files.
                with self._lock:
                    if not self._over.is_set():
                        self.have_failed = True
                        os.kill(os.getpid(), signal.SIGTERM)
                return

    def report(self, failed: bool, timed_out: bool) -> None:
        """Report that this task has copied its files, and how its ranks ended.

        If `failed` or `timed_out`, the other tasks end their ranks (`watched`).
        """
        write_json(self.shared / node_file(COPIED, self.task), asdict(TaskState(failed, timed_out)))

    def wait(self) -> None:
        """Wait until all tasks have reported, for `Patience.other_tasks_s` at most: the node of one may be lost.

        This task has reported before.
        """
        deadline = time.monotonic() + self._patience.other_tasks_s
        while len(states_of_tasks(self.shared, self.count)) < self.count and time.monotonic() < deadline:
            time.sleep(self._patience.look_s)
