"""What Slurm refuses for the moment is submitted later, and only jobs that have started count as attempts at a run."""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cluster
import psutil
import pytest
from slurm_projects import HOG, HOGS, LIMIT_S, command, environment, project, slurm_cluster, snakemake

pytestmark = [pytest.mark.slow, pytest.mark.rare]

SHORT = HOGS | {
    "scenarios": {
        "one": {
            "question": "?",
            "fixed": {"command": [HOG, "0"]},
            "figures": ["step_times"],
        }
    },
}
# A stand-in for a controller that is away for a moment, or that has a rule: real ones are not to be had at will.
REFUSES = """\
#!/bin/sh
echo "$@" >> "{folder}/asked"
if [ "$(wc -l < "{folder}/asked")" -le {times} ]; then
    printf 'sbatch: error: %s\\n' {lines} >&2
    exit 1
fi
exec {sbatch} "$@"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


@pytest.mark.parametrize(
    ("lines", "times", "says"),
    [
        (
            "'Batch job submission failed: Socket timed out on send/recv operation'",
            3,
            "",
        ),
        (
            "QOSMaxSubmitJobPerUserLimit 'Batch job submission failed: Job violates accounting/QOS policy (…)'",
            3,
            "Slurm takes no more jobs of yours at a time (QOSMaxSubmitJobPerUserLimit): 1 job wait",
        ),
        (
            "'Batch job submission failed: Invalid account or account/partition combination specified'",
            2,
            "Invalid account",
        ),
    ],
    ids=["no answer", "submit limit", "for good, until it is corrected"],
)
def test_a_run_is_done_however_often_its_submission_was_refused(
    slurm: Path, tmp_path: Path, lines: str, times: int, says: str
) -> None:
    folder = project(tmp_path / "project", SHORT, "scripts")
    sbatch = folder / "bin/sbatch"
    sbatch.write_text(REFUSES.format(folder=folder, times=times, lines=lines, sbatch=shutil.which("sbatch")))
    done = snakemake(folder, "--until", "launch_run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    [run] = (folder / "results/runs").glob("*/run.json")
    assert json.loads(run.read_text())["outcome"] == "completed"
    asked = (folder / "asked").read_text().splitlines()
    assert len(asked) == times + 1
    assert len({re.search(r"--mem (\d+)", line)[1] for line in asked}) == 1, "memory is doubled for lost jobs only"
    assert len((run.parent / ".starts").read_text().split()) == 1
    assert says in done.stderr
    assert "sbatch call" not in done.stderr


def test_a_job_that_slurm_took_without_an_answer_runs_once(slurm: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", SHORT, "scripts")
    sbatch = folder / "bin/sbatch"
    error = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    sbatch.write_text(
        f"#!/bin/sh\necho asked >> {folder}/asked\n"
        f"{shutil.which('sbatch')} \"$@\" > /dev/null\necho '{error}' >&2; exit 1\n"
    )
    done = snakemake(folder, "--until", "launch_run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    [run] = (folder / "results/runs").glob("*/run.json")
    assert json.loads(run.read_text())["outcome"] == "completed"
    assert (folder / "asked").read_text() == "asked\n"
    jobs = cluster.ask("squeue", "--noheader", "--states=all", "--format=%Z").splitlines()
    assert jobs.count(str(folder)) == 1


def test_a_launcher_that_is_killed_is_named_and_its_run_submitted_again(slurm: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = {"question": "?", "fixed": {"command": [HOG, "0", str(go)]}, "figures": ["step_times"]}
    folder = project(tmp_path / "project", SHORT | {"scenarios": {"one": waits}}, "scripts")
    said = tmp_path / "said"
    with said.open("w") as out:
        pipeline = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=out, stderr=out
        )
        try:
            cluster.wait_for(lambda: launchers(folder) != [], "the launcher", LIMIT_S)
            cluster.wait_for(lambda: [*folder.glob("results/runs/*/.starts")] != [], "its start", LIMIT_S)
            for process in launchers(folder):
                process.kill()
            go.touch()
            assert pipeline.wait(timeout=LIMIT_S) == 0, said.read_text()
        finally:
            pipeline.kill()
            pipeline.wait()
    [run] = (folder / "results/runs").glob("*/run.json")
    assert json.loads(run.read_text())["outcome"] == "completed"
    first, *others = (run.parent / ".starts").read_text().split()
    assert len(others) == 1
    [line] = [line for line in said.read_text().splitlines() if f"Slurm job {first}" in line]
    says = rf"its Slurm job {first} failed: its command was ended by a signal \(Killed\)"
    assert re.match(rf"run \S+: {says}; submitted again; log: ", line), line
    assert "failed: run" not in said.read_text()


def launchers(folder: Path) -> list[psutil.Process]:
    """Processes of launch_run.py in a project."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if process.cwd() == str(folder) and len(words) > 1 and words[1].endswith("launch_run.py"):
                found.append(process)
    return found
