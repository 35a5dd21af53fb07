"""How runs on several nodes end on a real Slurm: a hang, a failed rank, a controller that is away."""

import csv
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster
import pytest
from slurm_projects import LIMIT_S, command, environment, project, slurm_cluster, snakemake

from conftest import ROOT
from multicard.config.read_run import read_run
from multicard.core.reasons import describe_reason

pytestmark = [pytest.mark.slow, pytest.mark.rare]

SCRIPT = str(ROOT / "tests/slurm/hangs.py")
NEEDED_STEPS = 1 + 6  # warm-up and measured ones; without a profiler none is profiled


def on_two_nodes(*argument: str, **stated: Any) -> dict[str, Any]:
    """An experiment of one run of the script, a rank on each node."""
    fixed = {
        "workload": "script", "device": "cpu", "devices": 2, "nodes": 2, "launcher": "torchrun", "profiler": "none",
        "warmup_steps": 1, "steps": 6, "profiled_steps": 2, "command": [SCRIPT, *argument],
    }  # fmt: skip
    scenario = {"question": "?", "fixed": fixed, "figures": ["step_times"]}
    return {"time_limit_min": 2, "timing": "shared", "scenarios": {"one": scenario}} | stated


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of all nodes, which no other test has."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def run_of(folder: Path) -> Path:
    """Launch the only run of a project, and return its directory."""
    done = snakemake(folder, "--until", "launch_run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    [record] = (folder / "results/runs").glob("*/run.json")
    return record.parent


def test_a_hang_on_two_nodes_ends_at_its_time_limit_with_what_both_had_seen(
    slurm: Path, tmp_path: Path, temporary: Path
) -> None:
    run = run_of(project(tmp_path / "project", on_two_nodes("hang"), "scripts"))
    record = read_run(run)
    assert record.outcome == "timed_out"
    reason = describe_reason(record.reason)
    # A step counts when the next one begins.
    assert re.search(rf"it had made [12] of at least {NEEDED_STEPS} steps", reason), reason
    with (run / "steps.csv").open() as steps:
        assert {row["rank"] for row in csv.DictReader(steps)} == {"0", "1"}, "each node has copied its part"
    assert 120 <= record.wall_time_s < 180
    assert list(temporary.glob("multicard-*")) == []


def test_of_a_rank_that_fails_on_a_node_the_reason_is_kept_and_the_other_node_copies_too(
    slurm: Path, tmp_path: Path, temporary: Path
) -> None:
    run = run_of(project(tmp_path / "project", on_two_nodes("exit"), "scripts"))
    record = read_run(run)
    assert record.outcome == "failed"
    assert "I give up" in describe_reason(record.reason)
    assert list(temporary.glob("multicard-*")) == []


def test_a_job_on_two_nodes_that_starts_while_the_controller_is_away_waits_for_it(slurm: Path, tmp_path: Path) -> None:
    """The controller is stopped as soon as the job's launcher is there, and started again after some seconds."""
    folder = project(tmp_path / "project", on_two_nodes("hang", time_limit_min=1), "scripts")
    said = tmp_path / "said"
    with said.open("w") as out:
        pipeline = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=out, stderr=out
        )
        try:
            cluster.wait_for(lambda: running(folder), "the job to run", LIMIT_S)
            controller = int((slurm / "slurmctld.pid").read_text())
            os.kill(controller, signal.SIGTERM)
            logs = folder / "results/runs"
            cluster.wait_for(
                lambda: any("Unable to" in log.read_text() for log in logs.glob("*/log.txt")), "srun to fail", LIMIT_S
            )
            time.sleep(5)
            cluster.call("slurmctld")
            assert pipeline.wait(timeout=LIMIT_S) == 0
        finally:
            pipeline.kill()
            pipeline.wait()
    [path] = (folder / "results/runs").glob("*/run.json")
    record = read_run(path.parent)
    assert record.outcome == "timed_out", record.reason
    assert re.search("it had made [12] of", describe_reason(record.reason))
    assert len((path.parent / ".starts").read_text().split()) == 1


def running(folder: Path) -> bool:
    lines = cluster.ask("squeue", "--noheader", "--states=running", "--format=%Z").splitlines()
    return str(folder) in lines
