"""How scripts start and jobs and pipelines end on a real Slurm: launchers, a lost node, preemption, memory, Ctrl-C."""

import csv
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import cluster
import pytest
import yaml
from slurm_projects import (
    FOR_ENDED,
    FOR_SCRIPTS,
    HOG,
    HOGS,
    LIMIT_S,
    asked_for,
    command,
    environment,
    multicard,
    planned_runs,
    project,
    record,
    slurm_cluster,
    snakemake,
)

from conftest import TINY
from multicard.core.reasons import describe_reason
from observed_scripts import has_memory_and_phases
from script.equipment import SHORT as SHORT_SCRIPT
from script.equipment import losses

# Every day test_slurm.py has jobs that end by themselves.
pytestmark = [pytest.mark.slow, pytest.mark.rare]

FIRST, SECOND = FOR_ENDED
SUFFIX = "warmup2_profiled3_profiler-none_width0.25_batch8_epochs3_steps8_r1"
PREEMPTED, CANCELLED = (
    f"vision_digits_16px_ddp-ds_cpu1_fp32_{SUFFIX}",
    f"vision_digits_16px_ddp-ds_cpu1_fp32_seed1_{SUFFIX}",
)
REPEATED = (PREEMPTED, CANCELLED)
LOSES_A_NODE = f"vision_digits_16px_ddp-ds_cpu2_fp32_nodes2_{SUFFIX}"
ENDED: dict[str, Any] = {
    "time_limit_min": 20,
    "timing": "shared",
    "fixed": TINY | {"strategy": "ddp-ds", "epochs": 3, "profiler": "none"},
    "scenarios": {
        "preempted": {"question": "Is it repeated?", "fixed": {"devices": 1}, "figures": ["step_breakdown"]},
        "cancelled": {"question": "Is it repeated?", "fixed": {"seed": 1}, "figures": ["step_breakdown"]},
        "lost": {"question": "Does it end?", "fixed": {"devices": 2, "nodes": 2}, "figures": ["step_breakdown"]},
    },
}
ONE_RUN = ENDED | {"scenarios": {"cancelled": ENDED["scenarios"]["cancelled"]}}
# A run that has kept a checkpoint waits there until it may go on, so that it trains for as long as a test needs.
GO = "go"
WAITS = f"""
if "multicard.programs.vision.train" in sys.orig_argv:
    import time
    replace = os.replace

    def replace_and_wait(source, target, **places):
        replace(source, target, **places)
        folder, name = os.path.split(target)
        while name == "checkpoint.pt" and not os.path.exists(os.path.join(folder, "{GO}")):
            time.sleep(0.1)

    os.replace = replace_and_wait
"""
LAUNCHED: dict[str, Any] = {
    "time_limit_min": 15,
    "timing": "shared",
    "fixed": SHORT_SCRIPT | {"workload": "script", "command": ["ddp.py"]},
    "scenarios": {
        "nodes": {
            "question": "Do the ranks of two nodes find each other?",
            "fixed": {"devices": 4, "nodes": 2},
            "vary": {"launcher": ["torchrun", "srun"]},
            "figures": ["step_breakdown"],
        },
        "node": {
            "question": "Do those of one?",
            "fixed": {"devices": 2, "launcher": "srun"},
            "figures": ["step_breakdown"],
        },
    },
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


def waiting_project(folder: Path, experiment: dict[str, Any], digits: Path) -> Path:
    """A project whose runs keep a checkpoint after every epoch and wait there."""
    return project(folder, experiment, "ended", digits, WAITS)


@contextmanager
def started(folder: Path, said: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline, which only launches its runs and says what it does in a file; it is killed at last."""
    with said.open("w") as out:
        pipeline = subprocess.Popen(
            command("--until", "launch_run", *options), cwd=folder, env=environment(folder), stdout=out, stderr=out
        )
        try:
            yield pipeline
        finally:
            pipeline.kill()
            pipeline.wait()


def kept(folder: Path, *runs: str) -> bool:
    return all((folder / "results/runs" / run / "checkpoint.pt").exists() for run in runs)


def let_go(folder: Path, *runs: str) -> None:
    """Let runs that wait after a checkpoint go on, or not wait."""
    for run in runs:
        (folder / "results/runs" / run / GO).touch()


def comment(run: str) -> str:
    """What Snakemake's plugin has Slurm note of the job of a run."""
    return f"rule_launch_run_wildcards_{run}"


def running(folder: Path) -> dict[str, tuple[str, str]]:
    """Job id and node list of the runs of a project that Slurm runs, by the comment that tells the run."""
    lines = cluster.ask("squeue", "--noheader", "--states=running", "--format=%i %N %Z %k").splitlines()
    jobs = [line.split(maxsplit=3) for line in lines]
    return {noted: (job, nodes) for job, nodes, place, noted in jobs if place == str(folder)}


def requeued(folder: Path) -> list[str]:
    """Ids of the jobs of a project that Slurm has put back and has wait for two minutes."""
    lines = cluster.ask("squeue", "--noheader", "--states=pending", "--format=%i %r %Z").splitlines()
    jobs = [line.split(maxsplit=2) for line in lines]
    return [job for job, reason, place in jobs if (reason, place) == ("BeginTime", str(folder))]


def submitted(folder: Path) -> list[str]:
    return [line for line in (folder / "asked").read_text().splitlines() if "rule_launch_run" in line]


def test_the_ranks_of_a_script_find_each_other_whatever_starts_them(slurm: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", LAUNCHED, "scripts")
    options = ("--until", "launch_run", "--latency-wait", "10", "--max-status-checks-per-second", "1")
    done = multicard(folder, "run", "--", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found = [json.loads(path.read_text()) for path in (folder / "results/runs").glob("*/run.json")]
    of = {(written["parameters"]["launcher"], written["parameters"]["nodes"]): written for written in found}
    assert of.keys() == {("torchrun", 2), ("srun", 2), ("srun", 1)}
    printed = {}
    for name, written in of.items():
        assert written["outcome"] == "completed", written["reason"]
        run, devices = folder / "results/runs" / written["run"], written["parameters"]["devices"]
        with (run / "steps.csv").open() as file:
            steps = list(csv.DictReader(file))
        for rank in map(str, range(devices)):
            of_rank = [step for step in steps if step["rank"] == rank]
            assert [step["window"] for step in of_rank[:6]] == ["warmup"] * 2 + ["measured"] * 4
            assert {step["samples"] for step in of_rank} == {"4"}
            has_memory_and_phases(of_rank[2:6])
        traces = (run / "trace").glob("rank*")
        assert {int(re.findall(r"\d+", trace.name)[0]) for trace in traces} == {*range(devices)}
        printed[name] = losses((run / "log.txt").read_text())[:7]
        if name[1] == 2:
            nodes = [(node["name"], node["ranks"], bool(node["host"]["name"])) for node in written["nodes"]]
            assert nodes == [(FOR_SCRIPTS[0], [0, 1], True), (FOR_SCRIPTS[1], [2, 3], True)]
    assert len(printed["srun", 2]) == 7
    assert printed["srun", 2] == printed["torchrun", 2]
    asked = asked_for(folder, of["torchrun", 2]["run"]).split()
    assert "--cpus-per-task=2" in asked and "--exclusive" not in asked
    # Slurm's daemon started the ranks, not multicard: which CPU time is that of others is not known.
    assert of["srun", 1]["conditions"] == [None]
    assert of["srun", 2]["conditions"] == [None, None]
    assert all(each["others_cpu_s"] >= 0 for each in of["torchrun", 2]["conditions"])


def test_however_jobs_end_only_what_is_missing_runs_again(slurm: Path, digits: Path, tmp_path: Path) -> None:
    folder, said = waiting_project(tmp_path / "project", ENDED, digits), tmp_path / "said"
    profile = folder / "profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace("# memory_per_node_gb: 250", "memory_per_node_gb: 5"))
    with started(folder, said) as pipeline:
        try:
            cluster.wait_for(lambda: kept(folder, *REPEATED, LOSES_A_NODE), "all runs to keep a checkpoint", LIMIT_S)
            jobs = running(folder)
            assert jobs[comment(LOSES_A_NODE)][1] == f"n[{FIRST[1:]}-{SECOND[1:]}]"
            assert {jobs[comment(run)][1] for run in REPEATED} == {FIRST}  # shared with the first
            cluster.lose_node(slurm, SECOND)
            let_go(folder, LOSES_A_NODE)
            lost = folder / "results/runs" / LOSES_A_NODE / "run.json"
            cluster.wait_for(
                lambda: lost.exists() and comment(LOSES_A_NODE) not in running(folder), "the end of a job", LIMIT_S
            )
            assert {comment(run) for run in REPEATED} <= running(folder).keys()
            subprocess.run(["scancel", jobs[comment(CANCELLED)][0]], check=True)
            take_the_node = ["srun", "--partition=urgent", f"--nodelist={FIRST}", "--exclusive", "--input=none", "true"]
            subprocess.run(take_the_node, check=True, timeout=LIMIT_S)
            preempted = jobs[comment(PREEMPTED)][0]
            cluster.wait_for(lambda: preempted in requeued(folder), "the preempted job to be requeued", LIMIT_S)
            let_go(folder, *REPEATED)
            # The cancelled run may have been submitted again, and preempted too.
            for job in requeued(folder):
                subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
            assert pipeline.wait(timeout=LIMIT_S) == 0
        finally:
            cluster.start_node(SECOND)
    assert "--exclusive" not in asked_for(folder, PREEMPTED)
    warning = f"Slurm job {preempted} ({comment(PREEMPTED)}) was preempted and is requeued"
    assert said.read_text().count(warning) == 1
    cancelled = f"run {CANCELLED}: its Slurm job {jobs[comment(CANCELLED)][0]} was cancelled (scancel); submitted again"
    assert cancelled in said.read_text()
    assert "failed: " not in said.read_text()

    lost = record(folder, LOSES_A_NODE)
    assert lost.outcome == "failed"
    reason = describe_reason(lost.reason)
    assert reason.startswith(f"{SECOND} was lost"), reason
    assert re.search(rf"\b1 on {SECOND}", reason), reason
    assert [node.name for node in lost.nodes] == [FIRST, SECOND]

    asked = {run: [line for line in submitted(folder) if f"_{run} " in line] for run in REPEATED}
    assert len(asked[PREEMPTED]) == 1
    first, second = (int(re.search(r"--mem (\d+)", line)[1]) for line in asked[CANCELLED])
    assert first < second == 5000 < 2 * first
    for run in REPEATED:
        assert re.search("resuming after epoch [12],", (folder / "results/runs" / run / "log.txt").read_text())
        assert record(folder, run).outcome == "completed"
        assert record(folder, run).resumed
    assert not list((folder / "results/runs").glob("*/.scratch-*"))
    assert planned_runs(folder) == []


def test_a_pipeline_that_waits_says_for_what_and_one_that_is_told_to_end_cancels_its_jobs(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    folder, said = waiting_project(tmp_path / "project", ONE_RUN, digits), tmp_path / "said"
    with started(folder, said, "--set-resources", "launch_run:runtime=61") as pipeline:  # too long for the partition
        # Submitting takes a few seconds, a look at the queue comes every 30.
        cluster.wait_for(lambda: "will not start: PartitionTimeLimit" in said.read_text(), "the reason", LIMIT_S)
        second = snakemake(folder, "--until", "launch_run")
        assert second.returncode != 0
        assert "--unlock" in second.stderr
        # For other results Snakemake has no lock; the jobs of the first are not to be cancelled.
        (folder / "config/other.yaml").write_text(yaml.safe_dump(ONE_RUN | {"results": "other"}))
        other = snakemake(folder, "--until", "launch_run", "--configfile", "config/other.yaml")
        assert other.returncode != 0
        assert f"a pipeline is running in this folder (process {pipeline.pid} on " in other.stderr
        assert "scancel" not in other.stdout + other.stderr
        pipeline.send_signal(signal.SIGINT)
        assert pipeline.wait(timeout=LIMIT_S) != 0
    assert "until then this directory stays locked" in said.read_text()
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to be cancelled", LIMIT_S)

    with started(folder, said) as pipeline:
        cluster.wait_for(lambda: kept(folder, CANCELLED), "the run to train", LIMIT_S)
        pipeline.terminate()
        assert pipeline.wait(timeout=LIMIT_S) != 0
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to end", LIMIT_S)
    runs = folder / "results/runs"
    cluster.wait_for(lambda: not list(runs.glob("*/.scratch-*")), "the job to tidy up", LIMIT_S)
    assert not (runs / CANCELLED / "run.json").exists()
    assert planned_runs(folder) == [CANCELLED]


def test_a_pipeline_that_is_to_end_while_the_controller_is_away_cancels_its_jobs_when_it_is_back(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    folder, said = waiting_project(tmp_path / "project", ONE_RUN, digits), tmp_path / "said"
    with started(folder, said, "--set-resources", "launch_run:runtime=61") as pipeline:
        cluster.wait_for(lambda: cluster.jobs(folder) != [], "the job to be submitted", LIMIT_S)
        os.kill(int((slurm / "slurmctld.pid").read_text()), signal.SIGTERM)
        try:
            cluster.wait_for(lambda: not (slurm / "slurmctld.pid").exists(), "the controller to end")
            pipeline.send_signal(signal.SIGINT)
            cluster.wait_for(lambda: "Slurm does not answer" in said.read_text(), "the pipeline to ask", LIMIT_S)
        finally:
            cluster.call("slurmctld")
        assert pipeline.wait(timeout=LIMIT_S) != 0
    assert cluster.jobs(folder) == []


def test_jobs_of_a_killed_pipeline_are_named_and_their_outcomes_are_kept(slurm: Path, tmp_path: Path) -> None:
    scenario = {"question": "?", "fixed": {"command": [HOG, "0", str(tmp_path / "go")]}, "figures": ["step_times"]}
    folder = project(tmp_path / "project", HOGS | {"scenarios": {"one": scenario}}, "scripts")
    runs = folder / "results/runs"
    with started(folder, tmp_path / "said"):
        cluster.wait_for(lambda: [*runs.glob("*/.scratch-*")] != [], "the run to start", LIMIT_S)
    [job] = cluster.jobs(folder)
    [run] = (path.name for path in runs.iterdir())
    assert cluster.ask("squeue", "--noheader", f"--jobs={job}", "--format=%k").strip() == comment(run)
    assert multicard(folder, "status").stdout.splitlines()[-1] == "1 running"

    snakemake(folder, "--unlock")
    refused = snakemake(folder, "--until", "launch_run")
    assert refused.returncode != 0
    assert f"{job} ({run})" in refused.stdout + refused.stderr and f"scancel {job}" in refused.stdout + refused.stderr
    assert cluster.jobs(folder) == [job]

    (tmp_path / "go").touch()
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to end", LIMIT_S)
    before = (runs / run / "run.json").read_text()
    snakemake(folder, "--unlock")
    done = snakemake(folder, "--until", "launch_run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert (runs / run / "run.json").read_text() == before


def test_what_finished_runs_left_is_read_before_the_last_run(slurm: Path, tmp_path: Path) -> None:
    scenario = {"question": "?", "fixed": {"command": [HOG, "0"]}, "repeats": 6, "figures": ["step_times"]}
    folder = project(tmp_path / "project", HOGS | {"timing": "exclusive", "scenarios": {"one": scenario}}, "scripts")
    done = snakemake(folder, "--until", "extract_activity")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    runs = (folder / "results/runs").glob("*/run.json")
    last = max(datetime.fromisoformat(json.loads(path.read_text())["started"]) for path in runs)
    read = [path.stat().st_mtime for path in (folder / "results/runs").glob("*/activity/tables.json")]
    assert len(read) == 6
    assert min(read) < last.timestamp()
    assert all("--mem=0" in line and "--exclusive" in line for line in submitted(folder))
