"""Note which jobs of Slurm have started a run, since only these are attempts at it.

A submission that Slurm refuses, or a job that is cancelled while it waits, is a failure to Snakemake, but shows nothing
about the run.
"""

from pathlib import Path

STARTS = ".starts"  # file in the folder of a run: ids of jobs, one a line


def note_start(folder: Path, job: str) -> None:
    """Note that a job of Slurm has started the run of a folder; a job that was requeued is noted once."""
    if job not in started_jobs(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / STARTS).open("a", encoding="utf-8") as file:
            file.write(f"{job}\n")


def started_jobs(folder: Path, other_than: str | None = None) -> list[str]:
    """Return the ids of the jobs that have started the run of a folder, but `other_than`."""
    try:
        jobs = (folder / STARTS).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []
    return [job for job in jobs if job != other_than]


def forget_starts(runs: Path) -> None:
    """Forget the starts of all runs: a pipeline that the user starts again counts from the start."""
    for file in runs.glob(f"*/{STARTS}"):
        file.unlink(missing_ok=True)
