"""Find in one line why a job failed, in the message of Snakemake's plugin for Slurm and in the job's logs."""

import re
from collections.abc import Sequence
from pathlib import Path

from multicard.core.layout import PROGRESS
from multicard.core.text import printable

LONGEST = 300  # characters of a reason
# The end of a log that is read: in Slurm's, commands, which are long, stand several times.
TAIL_BYTES = 20_000
REFUSES = "Slurm refuses the job"
# The plugin's messages (snakemake_executor_plugin_slurm 2.8).
REFUSED = re.compile(r"SLURM sbatch failed\. The error message was '(.*?)'\.\n", re.DOTALL)
ENDED = re.compile(r"SLURM-job '(\S+)' failed.*?SLURM status is: '(\w+)'", re.DOTALL)
# Slurm's states of jobs ("man squeue", JOB STATE CODES).
STATES = {
    "BOOT_FAIL": "had a node that did not start",
    "CANCELLED": "was cancelled (scancel)",
    "DEADLINE": "could not end by its deadline",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "was killed: it needed more memory than it had asked for",
    "TIMEOUT": "exceeded its time limit in Slurm",
}
KILLED_FOR_MEMORY = re.compile(r"oom[-_]?kill|\bOut Of Memory\b", re.IGNORECASE)
# Lines that Snakemake prints for every job that failed, some of them indented, and Slurm for every step.
NO_CAUSE = re.compile(
    r"\s|At least one job did not complete|Exiting because a job|See individual rule error|Complete log|Shutting down"
    r"|Storing output|Removing output|Error in |RuleException|CalledProcessError|WorkflowError|\[\w{3} \w{3}|Command '"
    r"|Elapsed time|Building DAG|Using shell|Provided |Rules claiming|Select jobs|Execute |Job \d+:|Reason: |Runs plan"
    r"|srun: (Terminating|error: .*task \d+: Exited)"
)
# Bash prints so that a signal ended its command, which follows: "bash: line 1: 4711 Killed    python …".
ENDED_BY_SIGNAL = re.compile(r"\S*bash: line \d+:\s+\d+ (\w+(?: \w+)*) {2,}\S")


def cause_of(message: str | None, logs: Sequence[str]) -> str:
    """Return why a job failed.

    `message`: of Snakemake's executor, if there is one; `logs`: existing files, the job's own before that of its Slurm
    job.
    """
    message = message or ""
    if message == REFUSES:
        return message
    refused = REFUSED.search(message)
    if refused:
        lines = [line.removeprefix("sbatch: error: ").strip() for line in refused[1].splitlines()]
        return printable(f"{REFUSES}: {': '.join(filter(None, lines))}", LONGEST)
    last_words = next(filter(None, map(last_line, logs)), None)
    ended = ENDED.search(message)
    if not ended:
        return last_words or message or "its command failed"
    job, state = ended.groups()
    # Where a process of the step was killed, Slurm may have no other state for the job.
    if state == "FAILED" and any(KILLED_FOR_MEMORY.search(_tail(Path(log))) for log in logs):
        state = "OUT_OF_MEMORY"
    if state in STATES:
        return f"its Slurm job {job} {STATES[state]}"
    return f"its Slurm job {job} failed" + (f": {last_words}" if last_words else "")


def last_line(file: str | Path, prefix: str | None = None) -> str | None:
    """Return the last line of a file that may say why a job failed; None if there is none.

    `prefix`: return the last line that begins with it instead, without it.
    """
    lines = [line.rstrip() for line in _tail(Path(file)).splitlines() if line.strip()]
    if prefix:
        lines = [line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]
    else:
        lines = [line for line in lines if not line.startswith(PROGRESS) and not NO_CAUSE.match(line)]
    if not lines:
        return None
    signal = ENDED_BY_SIGNAL.match(lines[-1])
    if signal:
        return f"its command was ended by a signal ({signal[1]})"
    return printable(lines[-1], LONGEST)


def _tail(file: Path) -> str:
    """Return the end of a file; "" if it cannot be read."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
