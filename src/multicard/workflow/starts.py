"""Note which jobs of Slurm have started a run, because only these count as attempts at the run.

If Slurm refuses a submission, or a job is cancelled before it starts, Snakemake counts a failure. But this shows
nothing about the run.
"""

from pathlib import Path

# File in the folder of a run that lists the ids of the jobs, one a line.
STARTS = ".starts"


def note_start(folder: Path, job: str) -> None:
    """Note that a job of Slurm has started the run of a folder; a requeued job that starts again is noted only once."""
    if job not in started_jobs(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / STARTS).open("a", encoding="utf-8") as file:
            file.write(f"{job}\n")


def started_jobs(folder: Path, other_than: str | None = None) -> list[str]:
    """Return the ids of the jobs that have started the run of a folder, except the job `other_than`."""
    try:
        jobs = (folder / STARTS).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []
    return [job for job in jobs if job != other_than]


def forget_starts(runs: Path) -> None:
    """Delete the notes of all runs, so that a pipeline that the user starts again counts attempts from 0."""
    for file in runs.glob(f"*/{STARTS}"):
        file.unlink(missing_ok=True)
