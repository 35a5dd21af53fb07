"""An `sbatch` that waits while Slurm takes no job: `python -m multicard.workflow.submission OPTIONS < SCRIPT`.

Snakemake's plugin for Slurm submits by the `sbatch` that is first on the PATH, and to Snakemake a refused submission is
a failed job, which it repeats at once. So a controller that restarts, or a limit on the jobs of a user, would use up
all attempts at a run within seconds. The pipeline therefore puts this one first on its PATH (`submit_patiently`). It
runs Slurm's and gives its answer, but where that is a refusal for the moment it waits and submits again.
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
from pathlib import Path
from typing import NamedTuple

from multicard.core.files import atomic_write
from multicard.core.system import ask, read_or_none, start_of

PLACE = Path(".snakemake", "multicard")  # in the working directory of the pipeline
PROGRAM, WAITING = PLACE / "bin" / "sbatch", PLACE / "waiting"
# Variables by which the pipeline tells its submissions its folder and process.
FOLDER, PIPELINE = "MULTICARD_SUBMITS_FROM", "MULTICARD_SUBMITTED_BY"
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 60.0  # each wait is twice as long as the one before
NO_ANSWER_LIMIT_S = 3600.0  # as long as the profile has Snakemake ask for the states of jobs
LOOK_S = 0.5
# A limit on how many jobs may be submitted, as Slurm names it (`job_reason_string` in its sources), such as
# QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit.
SUBMIT_LIMIT = re.compile(r"\b\w+Submit\w*Limit\b")
# What Slurm's errors (`slurm_errno.c`) and Linux's say when the controller is busy, away or restarting, in lower case.
NO_ANSWER = (
    "unable to contact slurm controller", "socket timed out", "temporarily unable to accept", "standby mode",
    "transport endpoint is not connected", "zero bytes were transmitted", "resource temporarily unavailable",
    "connection refused", "connection timed out", "connection reset by peer",
)  # fmt: skip


# Snakemake's plugin is told to ask squeue. When the controller is away as it begins to ask, it asks sacct instead, and
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


class Refusal(NamedTuple):
    """Why Slurm takes no job for the moment."""

    reason: str
    is_limit: bool  # on the jobs of a user, rather than no answer


class Submitted(NamedTuple):
    """How sbatch ended, and what it printed."""

    exit_code: int
    output: str = ""
    error: str = ""


def submit_patiently(folder: Path) -> None:
    """Have what this process submits from a folder wait where Slurm takes no job."""
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
    notes = (read_or_none(lambda file=file: json.loads(file.read_text())) for file in (folder / WAITING).glob("*.json"))
    return [Refusal(*note) for note in notes if note]


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
        if any(words in line.lower() for words in NO_ANSWER):
            return Refusal(line.removeprefix("sbatch: error: ").strip(), is_limit=False)
    return None


def submit(arguments: Sequence[str], script: str, environment: Mapping[str, str]) -> Submitted:
    """Submit a script, after waiting where need be; return how Slurm's sbatch ended."""
    folder = Path(environment[FOLDER])
    for_slurm = _environment_of_slurm(environment)
    sbatch = shutil.which("sbatch", path=for_slurm["PATH"])
    if sbatch is None:
        return Submitted(127, error="sbatch: not found on the PATH")
    # By it a job is known that Slurm took although its answer did not come.
    mark = f"# Submission {uuid.uuid4().hex}"
    note = folder / WAITING / f"{os.getpid()}.json"
    wait_s, since, is_in_doubt = FIRST_WAIT_S, time.monotonic(), False
    try:
        while not _is_over(environment[PIPELINE], note.parent):
            ended = _taken(arguments, mark) if is_in_doubt else None
            if ended is None:
                ended = _run(sbatch, arguments, f"{script}\n{mark}\n", for_slurm)
            refused = refusal(ended.error) if ended.exit_code else None
            if refused is None or (not refused.is_limit and time.monotonic() - since > NO_ANSWER_LIMIT_S):
                return ended
            is_in_doubt = is_in_doubt or not refused.is_limit
            with suppress(FileNotFoundError):  # the pipeline is told to end
                note.write_text(json.dumps(refused), encoding="utf-8")
            next_try = time.monotonic() + wait_s
            while time.monotonic() < next_try and not _is_over(environment[PIPELINE], note.parent):
                time.sleep(LOOK_S)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    finally:
        note.unlink(missing_ok=True)
    return Submitted(1, error="the pipeline is told to end")


def _environment_of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what only this program needs: a job gets that of the sbatch that submits it."""
    own = Path(environment[FOLDER]) / PROGRAM.parent
    elsewhere = [part for part in environment["PATH"].split(os.pathsep) if Path(part) != own]
    kept = {name: value for name, value in environment.items() if name not in (FOLDER, PIPELINE)}
    return kept | {"PATH": os.pathsep.join(elsewhere)}


def _is_over(pipeline: str, waiting: Path) -> bool:
    """Whether the pipeline that submits is told to end, or has ended, even by SIGKILL."""
    pid, start = pipeline.split()
    return not waiting.is_dir() or start_of(int(pid)) != start


def _run(sbatch: str, arguments: Sequence[str], script: str, environment: Mapping[str, str]) -> Submitted:
    ended = subprocess.run(
        [sbatch, *arguments], input=script, env=environment, capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip
    return Submitted(ended.returncode, ended.stdout, ended.stderr)


def _taken(arguments: Sequence[str], mark: str) -> Submitted | None:
    """Return the job with a mark in its script, if Slurm has taken it; None if it is known that it has not.

    It takes a job, and its answer is lost, when the controller is slow: the job would run twice.
    """
    name = arguments[arguments.index("--job-name") + 1] if "--job-name" in arguments else ""
    queue = ask(["squeue", "--me", "--noheader", f"--name={name}", "--format=%i"])
    if queue.problem:
        return Submitted(1, error=f"{NO_ANSWER[0]}: {queue.problem}")
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
