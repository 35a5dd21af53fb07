"""How a job on several nodes is run: Slurm's srun starts `multicard.launch.node` on each, and none is ended too early.

srun kills the tasks of all nodes a few seconds after it gets SIGTERM, and when one of them has failed. So the nodes
keep the time limit themselves, and one that has failed waits until the others have ended and copied what their ranks
left.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import read_json, write_json
from multicard.core.layout import COPIED, NODE, node_file
from multicard.experiment.workload import WORKLOADS
from multicard.launch.judge import text_of
from multicard.launch.node_ranks import NOT_FOR_SRUN, srun_command
from multicard.launch.supervise import GRACE_S, Ended, run
from multicard.launch.variables import job_environment
from multicard.runs.parameters import JobParameters

LOOK_S = 1.0
# That nodes may take longer than the job's time limit: to start later than srun, to end their ranks, and to copy.
BEYOND_LIMIT_S = 180.0
PATIENCE_S = 60.0  # with which a node that failed waits for the others
NO_ANSWER_LIMIT_S = 300.0  # for which the nodes are started again and again while Slurm's controller does not answer
WAIT_S = 10.0
# How srun says that the controller does not answer.
NO_ANSWER = re.compile(r"srun: error: .*(Unable to contact slurm controller|Socket timed out|Connection refused)")


def run_on_nodes(
    p: JobParameters, shared: Path, job: Path, log: Path, time_limit_s: float, on_line: Callable[[str], None]
) -> tuple[list[str], Ended]:
    """Run a job on the nodes of this process's job of Slurm; return the command and how it ended.

    `shared`: the scratch folder of the run, which all nodes see.

    Raises `UserError` if Slurm's controller does not answer for long: that is no outcome of the job.
    """
    launching = WORKLOADS[p.workload].launching(p)
    command = srun_command(p, job)
    variables = job_environment(stated=launching.passed_variables, withheld=NOT_FOR_SRUN)
    since = time.monotonic()
    while True:
        ended = run(command, variables, log, time_limit_s + BEYOND_LIMIT_S, on_line, 2 * GRACE_S)
        has_started = any((shared / node_file(NODE, node)).exists() for node in range(p.nodes))
        if ended.exit_code == 0 or has_started or not (problem := _no_answer(log)):
            break
        if time.monotonic() - since > NO_ANSWER_LIMIT_S:
            raise UserError(f"cannot start on the nodes: {problem}; start again when Slurm answers")
        time.sleep(WAIT_S)
    states = states_of_tasks(shared, p.nodes * launching.tasks_per_node)
    return command, replace(ended, timed_out=ended.timed_out or any(state["timed_out"] for state in states))


def _no_answer(log: Path) -> str | None:
    """Return what srun said if Slurm's controller did not answer it; None if it did."""
    found = NO_ANSWER.search(text_of(log))
    return found[0] if found else None


def states_of_tasks(shared: Path, count: int) -> list[dict[str, Any]]:
    """Return how tasks of Slurm have ended, of those that have copied what their ranks left."""
    files = [shared / node_file(COPIED, task) for task in range(count)]
    return [read_json(file) for file in files if file.exists()]


class OtherTasks:
    """The other tasks of Slurm that run a job, as one of them sees them in the folder that all share."""

    def __init__(self, shared: Path, task: int, count: int) -> None:
        self.shared, self.task, self.count = shared, task, count
        self.have_failed = False  # so that this one is to end
        self._over = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell this process to end, by SIGTERM, when another task has failed or reached the time limit."""
        watch = threading.Thread(target=self._watch, name="other-tasks", daemon=True)
        watch.start()
        try:
            yield
        finally:
            with self._lock:
                self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            states = states_of_tasks(self.shared, self.count)
            if any(state["failed"] or state["timed_out"] for state in states):
                with self._lock:
                    if not self._over.is_set():
                        self.have_failed = True
                        os.kill(os.getpid(), signal.SIGTERM)
                return

    def report(self, failed: bool, timed_out: bool) -> None:
        """Tell the others that all has been copied, and how this task ended."""
        write_json(self.shared / node_file(COPIED, self.task), {"failed": failed, "timed_out": timed_out})

    def wait(self) -> None:
        """Wait until the others have reported, but not for ever: one of them may be lost."""
        deadline = time.monotonic() + PATIENCE_S
        while len(states_of_tasks(self.shared, self.count)) < self.count and time.monotonic() < deadline:
            time.sleep(LOOK_S)
