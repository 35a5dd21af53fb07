"""An `sbatch` that waits while Slurm takes no job: `python -m multicard.workflow.submission OPTIONS < SCRIPT`.

Snakemake's plugin for Slurm calls the `sbatch` that is first on the PATH. If Slurm refuses the submission, Snakemake
counts a failed job, and repeats the job at once. So while the controller restarts, or the user has as many jobs as a
limit allows, all attempts at a run would fail within seconds. The pipeline therefore puts this program first on its
PATH (`submit_patiently`). It calls Slurm's own `sbatch` and prints what that prints, but if Slurm refuses the job only
for the moment, it waits and submits the job again.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from multicard.core.files import atomic_write
from multicard.core.slurm import CONTROLLER_AWAY, NO_ANSWER
from multicard.core.system import ask, read_or_none, start_of

# Paths in the working directory of the pipeline.
FOLDER_OF_MULTICARD = Path(".snakemake", "multicard")
PROGRAM = FOLDER_OF_MULTICARD / "bin" / "sbatch"
# Folder with a note of each submission that waits. It is deleted when the pipeline is to end (`stop_submitting`); then
# submissions stop waiting, and submit nothing.
WAITING = FOLDER_OF_MULTICARD / "waiting"
# Environment variables that pass the folder and the process (pid and start) of a pipeline to its submissions.
FOLDER = "MULTICARD_SUBMITS_FROM"
PIPELINE = "MULTICARD_SUBMITTED_BY"
# Slurm's names of limits on how many jobs may be submitted (`job_reason_string` in its sources), such as
# QOSMaxSubmitJobPerUserLimit and AssocGrpSubmitJobsLimit.
SUBMIT_LIMIT = re.compile(r"\b\w+Submit\w*Limit\b")

# The profile makes Snakemake's plugin get the states of jobs from squeue. If the controller does not answer at first,
# the plugin calls sacct instead. On a cluster without accounting, sacct fails, and the plugin goes on calling it for an
# hour (`check_active_jobs`). This script replaces sacct on the pipeline's PATH: it calls Slurm's own sacct, and, if
# that fails, squeue.
SACCT = """\
#!/bin/sh
PATH={path}
sacct "$@" && exit
while [ $# -gt 1 ]; do
    [ "$1" = --name ] && exec squeue --noheader --states=all --format='%i|%T' "--name=$2"
    shift
done
exit 1
"""


@dataclass(frozen=True)
class Patience:
    """How long a submission waits while Slurm refuses it for the moment, in seconds."""

    # Each wait between two tries is twice as long as the one before, up to the longest.
    first_wait_s: float = 5.0
    longest_wait_s: float = 60.0
    # If Slurm does not answer, and the first try was longer ago than this, the submission fails. The profile makes
    # Snakemake try to get the states of jobs for equally long.
    no_answer_s: float = 3600.0
    # Time between two looks of a waiting submission at whether its pipeline is over.
    look_s: float = 0.5


class Refusal(NamedTuple):
    """Why Slurm takes no job for the moment."""

    reason: str
    # True for a limit on the jobs of a user, False if Slurm did not answer.
    is_limit: bool


class Submitted(NamedTuple):
    """Exit code and output of sbatch."""

    exit_code: int
    output: str = ""
    error: str = ""


def submit_patiently(folder: Path) -> None:
    """Put this module's sbatch, and `SACCT`, first on the PATH of this process, which submits jobs from a folder."""
    shutil.rmtree(folder / WAITING, ignore_errors=True)
    (folder / WAITING).mkdir(parents=True)
    program = (folder / PROGRAM).absolute()
    _write_program(program, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {__name__} "$@"\n')
    _write_program(program.with_name("sacct"), SACCT.format(path=shlex.quote(os.environ["PATH"])))
    os.environ[PIPELINE] = f"{os.getpid()} {start_of(os.getpid())}"
    os.environ[FOLDER] = str(folder.absolute())
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def _write_program(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)


def stop_submitting(folder: Path) -> None:
    """Make the submissions from a folder that wait, and all later ones, end without submitting a job."""
    shutil.rmtree(folder / WAITING, ignore_errors=True)


def waiting_submissions(folder: Path) -> list[Refusal]:
    """Return the refusal of each submission from a folder that waits at the moment."""
    refusals = (_read_note(file) for file in (folder / WAITING).glob("*.json"))
    return [waiting for waiting in refusals if waiting is not None]


def _read_note(file: Path) -> Refusal | None:
    """Return the refusal in a note; None if the submission has just deleted the note, or is still writing it."""
    return read_or_none(lambda: Refusal(*json.loads(file.read_text())))


def refusal(printed: str) -> Refusal | None:
    r"""Return why Slurm refused a job for the moment, so that submitting it later may succeed; None if it will not.

    `printed`: what an sbatch that failed printed as its error.

    >>> refusal("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    Refusal(reason='Batch job submission failed: Socket timed out on send/recv operation', is_limit=False)
    >>> refusal("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates …")
    Refusal(reason='AssocMaxSubmitJobLimit', is_limit=True)
    >>> refusal("sbatch: error: Batch job submission failed: Invalid account")
    """
    if limit := SUBMIT_LIMIT.search(printed):
        return Refusal(limit[0], is_limit=True)
    for line in reversed(printed.splitlines()):
        if NO_ANSWER.search(line):
            return Refusal(line.removeprefix("sbatch: error: ").strip(), is_limit=False)
    return None


def submit(
    arguments: Sequence[str], script: str, environment: Mapping[str, str], patience: Patience | None = None
) -> Submitted:
    """Submit a script, again and again while Slurm refuses it for the moment; return how the last sbatch ended.

    If the pipeline is over before Slurm takes the job, return a failure. `arguments`: options of sbatch. `environment`:
    that of this process, with the variables that `submit_patiently` has set.
    """
    waiting = Path(environment[FOLDER]) / WAITING
    pipeline = environment[PIPELINE]
    environment_of_job = _environment_of_job(environment)
    sbatch = shutil.which("sbatch", path=environment_of_job["PATH"])
    if sbatch is None:
        return Submitted(127, error="sbatch: not found on the PATH")
    # This comment in the script identifies the job if Slurm takes it and its answer is lost.
    mark = f"# Submission {uuid.uuid4().hex}"
    note = waiting / f"{os.getpid()}.json"
    first_try_at = time.monotonic()
    patience = patience or Patience()
    wait_s = patience.first_wait_s
    may_be_taken = False
    try:
        while not _is_over(pipeline, waiting):
            ended = _submitted_before(arguments, mark) if may_be_taken else None
            if ended is None:
                ended = _run(sbatch, arguments, f"{script}\n{mark}\n", environment_of_job)
            refused = refusal(ended.error) if ended.exit_code else None
            if refused is None:
                return ended
            if not refused.is_limit:
                if time.monotonic() - first_try_at > patience.no_answer_s:
                    return ended
                may_be_taken = True
            # The folder is missing if the pipeline is to end; then nobody reads the note.
            with suppress(FileNotFoundError):
                note.write_text(json.dumps(refused), encoding="utf-8")
            next_try_at = time.monotonic() + wait_s
            while time.monotonic() < next_try_at and not _is_over(pipeline, waiting):
                time.sleep(patience.look_s)
            wait_s = min(2 * wait_s, patience.longest_wait_s)
    finally:
        note.unlink(missing_ok=True)
    return Submitted(1, error="the pipeline is told to end")


def _environment_of_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables, and the folder of the PATH, that only this program needs.

    Slurm's sbatch gets this environment, because its job inherits it.
    """
    programs = Path(environment[FOLDER]) / PROGRAM.parent
    path = [folder for folder in environment["PATH"].split(os.pathsep) if Path(folder) != programs]
    variables = {name: value for name, value in environment.items() if name not in (FOLDER, PIPELINE)}
    return variables | {"PATH": os.pathsep.join(path)}


def _is_over(pipeline: str, waiting: Path) -> bool:
    """Return True if the pipeline is to end, so that `waiting` is deleted, or its process has ended, even by SIGKILL.

    `pipeline`: pid and start of the process, separated by a blank.
    """
    pid, start = pipeline.split()
    return not waiting.is_dir() or start_of(int(pid)) != start


def _run(sbatch: str, arguments: Sequence[str], script: str, environment: Mapping[str, str]) -> Submitted:
    ended = subprocess.run(
        [sbatch, *arguments], input=script, env=environment, capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip
    return Submitted(ended.returncode, ended.stdout, ended.stderr)


def _submitted_before(arguments: Sequence[str], mark: str) -> Submitted | None:
    """Return what sbatch would have printed for the job with a mark in its script; None if Slurm has no such job.

    If the controller is slow, Slurm may take a job and its answer may be lost. If the job were submitted again, it
    would run twice. If Slurm does not list its jobs, return an error that `refusal` takes for one for the moment.
    """
    name = arguments[arguments.index("--job-name") + 1] if "--job-name" in arguments else ""
    queue = ask(["squeue", "--me", "--noheader", f"--name={name}", "--format=%i"])
    if queue.problem:
        return Submitted(1, error=f"{CONTROLLER_AWAY}: {queue.problem}")
    for job in queue.lines:
        if mark in ask(["scontrol", "write", "batch_script", job, "-"]).output:
            return Submitted(0, f"{job}\n")
    return None


if __name__ == "__main__":
    try:
        submitted = submit(sys.argv[1:], sys.stdin.read(), os.environ)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(submitted.output)
    sys.stderr.write(submitted.error)
    sys.exit(submitted.exit_code)
