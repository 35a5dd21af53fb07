"""How jobs and pipelines end on a real Slurm: a lost node, preemption, cancellation, Ctrl-C, SIGTERM."""

import re
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cluster
import pytest
from slurm_projects import (
    FOR_ENDED,
    LIMIT_S,
    asked_for,
    command,
    environment,
    planned_runs,
    project,
    record,
    slurm_cluster,
    snakemake,
)

from conftest import TINY
from multicard.core.reasons import describe_reason
from multicard.launch.signals import ON_SLURM

pytestmark = pytest.mark.slow

FIRST, SECOND = FOR_ENDED
WAIT_S = LIMIT_S  # on a busy machine
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
if "multicard.workloads.vision.train" in sys.orig_argv:
    import time
    replace = os.replace

    def replace_and_wait(source, target, **places):
        replace(source, target, **places)
        folder, name = os.path.split(target)
        while name == "checkpoint.pt" and not os.path.exists(os.path.join(folder, "{GO}")):
            time.sleep(0.1)

    os.replace = replace_and_wait
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


def waiting_project(folder: Path, experiment: dict[str, Any], digits: Path) -> Path:
    """A project whose runs keep a checkpoint after every epoch and wait there."""
    made = project(folder, experiment, "ended", digits, WAITS)
    rule = made / "workflow/rules/run.smk"
    text, limit = rule.read_text(), '" --time-limit-min {resources.time_limit_min}"'
    assert text.count(limit) == 1
    rule.write_text(text.replace(limit, limit[:-1] + ' --checkpoint-after-s 0"'))
    return made


def kept(folder: Path, *runs: str) -> bool:
    """Whether all of the runs have kept a checkpoint."""
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


@pytest.mark.rare
def test_however_jobs_end_the_others_go_on_and_only_what_is_missing_runs_again(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    folder = waiting_project(tmp_path / "project", ENDED, digits)
    profile = folder / "profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace("# memory_per_node_gb: 250", "memory_per_node_gb: 5"))
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=said, stderr=said
        )
        try:
            cluster.wait_for(lambda: kept(folder, *REPEATED, LOSES_A_NODE), "all runs to keep a checkpoint", WAIT_S)
            jobs = running(folder)
            assert jobs[comment(LOSES_A_NODE)][1] == f"n[{FIRST[1:]}-{SECOND[1:]}]"
            assert {jobs[comment(run)][1] for run in REPEATED} == {FIRST}  # shared with the first
            cluster.lose_node(slurm, SECOND)
            let_go(folder, LOSES_A_NODE)
            lost = folder / "results/runs" / LOSES_A_NODE / "run.json"
            cluster.wait_for(
                lambda: lost.exists() and comment(LOSES_A_NODE) not in running(folder), "the end of a job", WAIT_S
            )
            assert {comment(run) for run in REPEATED} <= running(folder).keys()
            subprocess.run(["scancel", jobs[comment(CANCELLED)][0]], check=True)
            take_the_node = ["srun", "--partition=urgent", f"--nodelist={FIRST}", "--exclusive", "--input=none", "true"]
            subprocess.run(take_the_node, check=True, timeout=WAIT_S)
            preempted = jobs[comment(PREEMPTED)][0]
            assert f"{preempted} PREEMPTED" in cluster.ask("squeue", "--noheader", "--states=all", "--format=%i %T")
            cluster.wait_for(lambda: preempted in requeued(folder), "the preempted job to be requeued", WAIT_S)
            let_go(folder, *REPEATED)
            # The cancelled run may have been submitted again, and preempted too.
            for job in requeued(folder):
                subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
            assert started.wait(timeout=LIMIT_S) == 0
        finally:
            started.kill()
            cluster.start_node(SECOND)
    assert "--exclusive" not in asked_for(folder, PREEMPTED)
    warning = f"Slurm job {preempted} ({comment(PREEMPTED)}) was preempted and is requeued"
    assert (tmp_path / "said").read_text().count(warning) == 1

    lost = record(folder, LOSES_A_NODE)
    assert lost["outcome"] == "failed"
    said = describe_reason(lost["reason"])
    assert re.search(rf"\b1 on {SECOND}", said), said
    assert [node["name"] for node in lost["nodes"]] == [FIRST, SECOND]

    asked = (folder / "asked").read_text().splitlines()
    submitted = {run: [line for line in asked if f"_{run} " in line] for run in REPEATED}
    assert len(submitted[PREEMPTED]) == 1
    first, second = (int(re.search(r"--mem (\d+)", line)[1]) for line in submitted[CANCELLED])
    assert first < second == 5000 < 2 * first
    for run in REPEATED:
        assert re.search("resuming after epoch [12] of 3", (folder / "results/runs" / run / "log.txt").read_text())
        assert record(folder, run)["outcome"] == "completed"
        assert record(folder, run)["resumed"]["epoch"] in (1, 2)  # the cancelled run may have ended twice
    assert not list((folder / "results/runs").glob("*/.scratch-*"))
    assert planned_runs(folder) == []


@pytest.mark.rare
def test_a_job_that_will_not_start_is_named_and_ctrl_c_says_what_it_waits_for(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", ONE_RUN, "ended", digits)
    said = tmp_path / "said"
    too_long = ("--until", "launch_run", "--set-resources", "launch_run:runtime=61")
    with said.open("w") as out:
        started = subprocess.Popen(command(*too_long), cwd=folder, env=environment(folder), stdout=out, stderr=out)
        try:
            # Submitting takes a few seconds, a look at the queue comes every 30.
            cluster.wait_for(lambda: "will not start: PartitionTimeLimit" in said.read_text(), "the reason", WAIT_S)
            second = snakemake(folder, "--until", "launch_run")
            assert second.returncode != 0
            assert "--unlock" in second.stderr
            started.send_signal(signal.SIGINT)
            assert started.wait(timeout=WAIT_S) != 0
        finally:
            started.kill()
    assert "until then this directory stays locked" in said.read_text()
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to be cancelled", WAIT_S)
    assert planned_runs(folder) == [CANCELLED]


@pytest.mark.rare
def test_a_pipeline_that_is_told_to_end_cancels_its_jobs_and_goes_on_when_started_again(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    folder = waiting_project(tmp_path / "project", ONE_RUN, digits)
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=said, stderr=said
        )
        try:
            cluster.wait_for(lambda: kept(folder, CANCELLED), "the run to train", WAIT_S)
            started.terminate()
            assert started.wait(timeout=WAIT_S) != 0
        finally:
            started.kill()
    cluster.wait_for(lambda: not cluster.jobs(folder), "the job to end", WAIT_S)
    scratch = folder / "results/runs"
    cluster.wait_for(lambda: not list(scratch.glob("*/.scratch-*")), "the job to tidy up", WAIT_S)
    assert not (folder / "results/runs" / CANCELLED / "run.json").exists()
    assert planned_runs(folder) == [CANCELLED]


def test_snakemake_s_plugin_never_waits_longer_for_its_next_look_than_ctrl_c_is_said_to_take() -> None:
    """Here it looks every two seconds, so only what the plugin is made of tells the longest time."""
    source = Path(find_spec("snakemake_executor_plugin_slurm").origin).read_text(encoding="utf-8")
    assert re.findall(r"^ +max_sleep_time = (\w+)$", source, re.M) == ["180"]
    assert "in at most three minutes" in ON_SLURM
