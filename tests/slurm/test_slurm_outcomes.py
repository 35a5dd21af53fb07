"""Outcomes survive what Slurm and Snakemake do to jobs: memory cgroups, a pipeline that was killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import cluster
import pytest
from slurm_projects import CONFIG, LIMIT_S, command, environment, project, slurm_cluster, snakemake

from conftest import ROOT

pytestmark = pytest.mark.slow

HOG = str(ROOT / "tests/slurm/hog.py")
MEMORY_MB = 2000
EXPERIMENT: dict[str, Any] = {
    "time_limit_min": 10,
    "timing": "shared",
    "fixed": {
        "workload": "script", "launcher": "python", "device": "cpu", "profiler": "none",
        "warmup_steps": 1, "steps": 6, "profiled_steps": 2,
    },
    "scenarios": {
        "memory": {
            "question": "What if one takes too much?",
            "vary": {"command": [[HOG, "0"], [HOG, str(2 * MEMORY_MB)]]},
            "figures": ["step_times"],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of runs by the memory that their script takes."""
    read = (json.loads(path.read_text()) for path in (folder / "results/runs").glob("*/run.json"))
    return {each["parameters"]["command"][-1]: each for each in read}


def submitted(folder: Path) -> list[str]:
    """What sbatch was asked for runs."""
    return [line for line in (folder / "asked").read_text().splitlines() if "rule_launch_run" in line]


@pytest.mark.rare  # every day tests/workflow/test_launch_script.py has an outcome put back that Snakemake deleted
@pytest.mark.skipif(not cluster.MEMORY_CGROUPS, reason="this machine has no memory cgroups of version 1")
def test_a_run_that_its_memory_cgroup_killed_keeps_its_outcome_and_the_report_is_made(
    slurm: Path, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", EXPERIMENT, "scripts")
    done = snakemake(folder, "--set-resources", f"launch_run:mem_mb={MEMORY_MB}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found = records(folder)
    assert found["0"]["outcome"] == "completed"
    killed = found[str(2 * MEMORY_MB)]
    assert (killed["outcome"], killed["reason"]["code"], killed["reason"]["signal"]) == ("failed", "killed", "SIGKILL")
    assert len(submitted(folder)) == 3  # the killed one again, which only put its outcome back
    assert (folder / "results/report.html").exists()
    assert (folder / "results/figures/memory/step_times.png").exists()
    again = snakemake(folder, "--dry-run", "--set-resources", f"launch_run:mem_mb={MEMORY_MB}")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_jobs_of_a_killed_pipeline_are_named_and_their_outcomes_are_kept(slurm: Path, tmp_path: Path) -> None:
    command_line = [str(ROOT / "tests/slurm/hog.py"), "0", str(tmp_path / "go")]
    scenario = {"question": "?", "fixed": {"command": command_line}, "figures": ["step_times"]}
    folder = project(tmp_path / "project", EXPERIMENT | {"scenarios": {"one": scenario}}, "scripts")
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=said, stderr=said
        )
        cluster.wait_for(lambda: [*(folder / "results/runs").glob("*/.scratch-*")] != [], "the run to start", LIMIT_S)
        started.kill()
        started.wait()
    [job] = cluster.jobs(folder)
    [run] = (path.name for path in (folder / "results/runs").iterdir())
    assert cluster.ask("squeue", "--noheader", f"--jobs={job}", "--format=%j").strip() == run
    status = [str(Path(sys.prefix) / "bin/multicard"), "status", "--config", CONFIG, "--profile", "slurm"]
    shown = subprocess.run(status, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "1 running"

    snakemake(folder, "--unlock")
    refused = snakemake(folder, "--until", "launch_run")
    assert refused.returncode != 0
    assert f"{job} ({run})" in refused.stdout + refused.stderr and f"scancel {job}" in refused.stdout + refused.stderr
    assert cluster.jobs(folder) == [job]

    (tmp_path / "go").touch()
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to end", LIMIT_S)
    before = (folder / "results/runs" / run / "run.json").read_text()
    snakemake(folder, "--unlock")
    done = snakemake(folder, "--until", "launch_run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert (folder / "results/runs" / run / "run.json").read_text() == before


@pytest.mark.rare
def test_what_finished_runs_left_is_read_before_the_last_run_that_wants_a_whole_node(
    slurm: Path, tmp_path: Path
) -> None:
    scenario = {"question": "?", "fixed": {"command": [HOG, "0"]}, "repeats": 6, "figures": ["step_times"]}
    experiment = EXPERIMENT | {"timing": "exclusive", "scenarios": {"one": scenario}}
    folder = project(tmp_path / "project", experiment, "scripts")
    done = snakemake(folder, "--until", "extract_activity")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    runs = (folder / "results/runs").glob("*/run.json")
    last = max(datetime.fromisoformat(json.loads(path.read_text())["started"]) for path in runs)
    read = [path.stat().st_mtime for path in (folder / "results/runs").glob("*/activity/tables.json")]
    assert len(read) == 6
    assert min(read) < last.timestamp()
    assert all("--mem=0" in line and "--exclusive" in line for line in submitted(folder))
