"""An `sbatch` that waits while Slurm takes no job: `python -m multicard.workflow.submission OPTIONS < SCRIPT`.

Snakemake's plugin for Slurm submits by the `sbatch` that is first on the PATH, and to Snakemake a refused submission is
a failed job, which it repeats at once. So a controller that restarts, or a limit on the jobs of a user, would use up
all attempts at a run within seconds. The pipeline therefore puts this one first on its PATH (`submit_patiently`). It
runs Slurm's and passes on its answer, but after a refusal for the moment it waits and submits again.
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
# Holds a note of each submission that waits. Without this folder, none waits: the pipeline ends.
WAITING = FOLDER_OF_MULTICARD / "waiting"
# Variables by which submissions learn the folder and the process of their pipeline.
FOLDER = "MULTICARD_SUBMITS_FROM"
PIPELINE = "MULTICARD_SUBMITTED_BY"
# A limit on how many jobs may be submitted, as Slurm names it (`job_reason_string` in its sources), such as
# QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit.
SUBMIT_LIMIT = re.compile(r"\b\w+Submit\w*Limit\b")

# The profile has Snakemake's plugin ask squeue. If the controller is away at first, the plugin asks sacct instead, and
# where there is no accounting that fails for an hour (`check_active_jobs`). This sacct then asks squeue.
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
    """Seconds between submissions of a script that Slurm refuses for the moment."""

    # Each wait is twice as long as the one before.
    first_wait_s: float = 5.0
    longest_wait_s: float = 60.0
    # A controller may stay away so long; the profile has Snakemake ask for the states of jobs as long.
    no_answer_s: float = 3600.0
    # How often a waiting submission looks whether its pipeline has ended.
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
    """Put this module's sbatch first on the PATH of this process, for what it submits from a folder."""
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
    """Have the submissions from a folder that wait, and all later ones, end without a job."""
    shutil.rmtree(folder / WAITING, ignore_errors=True)


def waiting_submissions(folder: Path) -> list[Refusal]:
    """Return why each submission from a folder that waits at the moment does."""
    refusals = (_read_note(file) for file in (folder / WAITING).glob("*.json"))
    return [waiting for waiting in refusals if waiting is not None]


def _read_note(file: Path) -> Refusal | None:
    """Return the refusal in a note; None if the submission has just ended, or is writing the note."""
    return read_or_none(lambda: Refusal(*json.loads(file.read_text())))


def refusal(printed: str) -> Refusal | None:
    r"""Return why sbatch, by what it printed as it failed, may succeed later; None if it may not.

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

    `arguments`: options of sbatch; `environment`: of this process, as `submit_patiently` has set it.
    """
    waiting = Path(environment[FOLDER]) / WAITING
    pipeline = environment[PIPELINE]
    environment_of_job = _environment_of_job(environment)
    sbatch = shutil.which("sbatch", path=environment_of_job["PATH"])
    if sbatch is None:
        return Submitted(127, error="sbatch: not found on the PATH")
    # A comment in the script identifies a job that Slurm has taken although its answer was lost.
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
            # Without the folder, the pipeline ends.
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
    """Return the environment without what only this program needs: a job gets that of the sbatch that submits it."""
    programs = Path(environment[FOLDER]) / PROGRAM.parent
    path = [folder for folder in environment["PATH"].split(os.pathsep) if Path(folder) != programs]
    variables = {name: value for name, value in environment.items() if name not in (FOLDER, PIPELINE)}
    return variables | {"PATH": os.pathsep.join(path)}


def _is_over(pipeline: str, waiting: Path) -> bool:
    """Return True if the pipeline that submits ends, or has ended, even by SIGKILL."""
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

    When the controller is slow, Slurm takes a job and its answer is lost: submitted again, the job would run twice.
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
