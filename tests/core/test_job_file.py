"""job.json, as the launcher writes it and the processes of a job read it."""

from pathlib import Path

from job_files import make_job_file
from multicard.core.job_file import read_job


def test_job_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = make_job_file(tmp_path, "nsys", devices=2, device="cuda", measured_steps=None, ablate=("loader",))
    assert read_job(job.write()) == job
