"""What Snakemake's console shows under `logger: multicard` of jobs on a cluster."""

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from console_pipeline import Output, Pipeline, prepared
from snakemake_interface_logger_plugins.common import LogEvent

from multicard.config.cluster import Cluster
from multicard.workflow.slurm_queue import Queue, QueuedJob


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


def queued(*jobs: tuple[str, str, str], problem: str | None = None) -> Queue:
    """Slurm's queue with jobs of runs: id, state and run of each."""
    rows = [
        QueuedJob(job, state, "None", "2026-01-01T12:00:00", f"rule_launch_run_wildcards_{run}")
        for job, state, run in jobs
    ]
    return Queue(rows, problem)


def on_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Return a pipeline on a cluster, with `output` to read; it looks often."""
    output = Output(monkeypatch, is_terminal=False)
    for name, seconds in (("LOOK_S", 0.02), ("AT_FIRST_S", 0.1), ("REMIND_S", 0.3)):
        monkeypatch.setattr(f"snakemake_logger_plugin_multicard.console.{name}", seconds)
    pipeline = Pipeline(folder)
    pipeline.output = output
    pipeline.say("Provided remote nodes: 20", event=LogEvent.RESOURCES_INFO, nodes=20)
    pipeline.say("Started", ending=threading.Event(), retries=2)
    return pipeline


def test_on_a_cluster_it_is_said_now_and_then_how_many_runs_are_queued(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(launch_run=4)
    runs = cluster.plan.planned()[:4]
    for run in runs:
        cluster.starts("launch_run", f"run {run}", run=run)
        # An earlier attempt has left it: no sign that the run is running.
        Path(f"results/logs/launch_run/{run}.txt").write_text("")
    states = ["RUNNING", "PENDING", "COMPLETED", "RUNNING"]
    jobs = [(str(7 + n), state, run) for n, (state, run) in enumerate(zip(states, runs, strict=True))]
    # The job of the last run has failed, and the one after it waits.
    jobs += [("11", "PENDING", runs[3])]
    cluster.say("Queue", slurm_queue=queued(*reversed(jobs)))
    cluster.output.wait_for("2 running, 2 queued\n", times=3)
    cluster.say("Queue", slurm_queue=queued(problem="squeue ended with 1, saying: no"))
    cluster.output.wait_for("2 running, 2 queued; Slurm does not answer: squeue ended with 1, saying: no\n")
    cluster.say("Queue", slurm_queue=queued(*[(job, "PENDING", run) for job, _, run in jobs]))
    cluster.output.wait_for("0 running, 4 queued\n")
    cluster.handler.close()


@pytest.mark.parametrize("option", [["--profile", "slurm"], ["--profile=slurm"], ["--jobs", "2"]])
def test_the_results_name_the_profile_by_which_runs_go_to_a_cluster(
    option: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles: list[str | None] = []
    monkeypatch.setattr(
        "snakemake_logger_plugin_multicard.console.print_results", lambda *given: profiles.append(given[-1])
    )
    monkeypatch.setattr("sys.argv", ["snakemake", *option, "--configfile", "mine.yaml"])
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for cluster in (None, Cluster(nodes=2, cpus_per_node=16, gpus_per_node=4)):
        pipeline = Pipeline(folder)
        experiment = pipeline.plan.experiment.model_copy(update={"cluster": cluster})
        pipeline.say("planned", plan=replace(pipeline.plan, experiment=experiment))
        pipeline.say("started", event=LogEvent.WORKFLOW_STARTED, configfiles=[str(folder / "mine.yaml")])
        pipeline.handler.close()
    assert profiles == [None, "slurm" if "slurm" in option[-1] else None]


def test_the_time_left_counts_runs_that_run_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = on_cluster(folder, monkeypatch)
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.time", clock)
    cluster.begins(launch_run=4)
    runs = cluster.plan.planned()
    for run in runs:
        cluster.starts("launch_run", f"run {run}", run=run)
    jobs = [(str(n), "RUNNING", run) for n, run in enumerate(runs)]
    cluster.say("Queue", slurm_queue=queued(*jobs))
    now[0] += 600
    cluster.runs(runs[0])
    # The other three began with it: they end as soon. One after another they would take half an hour.
    now[0] += 1
    cluster.output.wait_for("about 1 minute left; 1 of 4 runs ended, 3 running, 0 queued")
    # Two of them are preempted: two at a time, these take 10 minutes more.
    states = ["COMPLETED", "RUNNING", "PENDING", "PENDING"]
    jobs = [(str(n), state, run) for n, (state, run) in enumerate(zip(states, runs, strict=True))]
    cluster.say("Queue", slurm_queue=queued(*jobs))
    now[0] += 1
    cluster.output.wait_for("about 10 minutes left; 1 of 4 runs ended, 1 running, 2 queued")
    cluster.handler.close()


def test_a_step_that_takes_long_is_named_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(draw_figures=1, write_report=1)
    cluster.starts("draw_figures", "draw the figures of the scenario formats", scenario="formats")
    cluster.output.wait_for("draw the figures")
    time.sleep(1)  # three times as long as until the next line
    cluster.handler.close()
    assert cluster.output.getvalue().count("draw the figures") == 1


SUBMITTING = (
    "SLURM sbatch failed. The error message was '{}'.\n    sbatch call:\n        sbatch --parsable …\n"
    "    sbatch script:\n#!/bin/sh\n…"
)
# As Snakemake 9.27 writes it within a job of Slurm.
KILLED = """Building DAG of jobs...
Using shell: /usr/bin/bash
Provided cores: 2
Rules claiming more threads will be scaled down.
Select jobs to execute...
Execute 1 jobs...

[Sat Nov 28 23:27:45 2026]
Job 0: run a
Reason: Forced execution
/usr/bin/bash: line 1: 22781 Killed                  python "$SCRIPTS/launch_run.py" --parameters '{}'
RuleException:
CalledProcessError in file "workflow/rules/run.smk", line 89:
Command 'set -euo pipefail; python "$SCRIPTS/launch_run.py"' returned non-zero exit status 137.
[Sat Nov 28 23:27:46 2026]
Error in rule launch_run:
    message: None
    jobid: 0
    log: results/logs/launch_run/a.txt (check log file(s) for error details)
    shell:
        python "$SCRIPTS/launch_run.py" --parameters '{}'
        (command exited with non-zero exit code)
Shutting down, this might take some time.
Exiting because a job execution failed. Look above for error messages
Storing output in storage.
Elapsed time: 0:00:01.785255
WorkflowError:
At least one job did not complete successfully.
srun: error: n3: task 0: Exited with exit code 1
"""
ENDED = (
    "SLURM-job '7' failed, SLURM status is: '{}'. Detailed failure reason unavailable (…).For further error details …"
)


@pytest.mark.parametrize(
    ("message", "of_slurm", "of_launcher", "says"),
    [
        (
            ENDED.format("CANCELLED"),
            "At least one job did not complete successfully.",
            "x",
            "its Slurm job 7 was cancelled (scancel)",
        ),
        (ENDED.format("TIMEOUT"), "", "", "its Slurm job 7 exceeded its time limit in Slurm"),
        (
            ENDED.format("FAILED"),
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n"
            "At least one job did not complete successfully.",
            "",
            "its Slurm job 7 was killed: it needed more memory than it had asked for",
        ),
        (
            ENDED.format("FAILED"),
            "/bin/bash: line 1: module: command not found\nAt least one job did not complete successfully.",
            "",
            "its Slurm job 7 failed: /bin/bash: line 1: module: command not found",
        ),
        (ENDED.format("FAILED"), KILLED, "", "its Slurm job 7 failed: its command was ended by a signal (Killed)"),
        (ENDED.format("FAILED"), "x", "data: no such folder", "its Slurm job 7 failed: data: no such folder"),
    ],
)
def test_a_job_that_slurm_ended_says_how_and_that_it_is_submitted_again(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    message: str,
    of_slurm: str,
    of_launcher: str,
    says: str,
) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(launch_run=1)
    run = cluster.plan.planned()[0]
    logs = [f"results/logs/launch_run/{run}.txt", "slurm.log"]
    for log, text in zip(logs, (of_launcher, of_slurm), strict=True):
        Path(log).write_text(text)
    for again in (True, True, False):
        job = cluster.starts("launch_run", f"run {run}", run=run)
        cluster.fails(job, *logs, message=message)
        line = (
            f"run {run}: {says}; submitted again; log: {logs[0]}"
            if again
            else f"failed: run {run}: {says}; log: {logs[0]}"
        )
        assert capsys.readouterr().err == f"{line}\n"


def test_refused_submissions_have_one_line_and_runs_that_are_given_up_one_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(launch_run=2)
    error = (
        "sbatch: error: invalid partition specified: no\n"
        "sbatch: error: Batch job submission failed: Invalid partition name"
    )
    says = "Slurm refuses the job: invalid partition specified: no: Batch job submission failed: Invalid partition name"
    runs = cluster.plan.planned()[:2]
    for _ in range(3):
        for run in runs:
            cluster.fails(cluster.starts("launch_run", f"run {run}", run=run), message=SUBMITTING.format(error))
    cluster.handler.close()
    assert capsys.readouterr().err.splitlines() == [
        f"run {runs[0]}: {says}; submitted again",
        *(f"failed: run {run}: {says}" for run in runs),
        "not all was made: .snakemake/log says more; the same command makes what is missing",
    ]


@pytest.mark.parametrize(("slurm", "says"), [(None, "Slurm refuses the job"), ("8", "its command failed")])
def test_of_a_group_on_a_cluster_it_is_known_whether_slurm_took_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slurm: str | None, says: str
) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(judge_claims=1)
    job = cluster.starts("judge_claims", "judge_claims")
    facts = {"job_error_info": [{"jobid": job, "log": []}], "aux_logs": [], "groupid": "conclusions"}
    facts |= {"external_jobid": slurm} if slurm else {}
    cluster.say("Error in group", logging.ERROR, event=LogEvent.GROUP_ERROR, **facts)
    assert capsys.readouterr().err == f"judge_claims: {says}; submitted again\n"


def test_what_the_login_node_does_itself_is_tried_and_not_submitted_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on_cluster(folder, monkeypatch)
    cluster.begins(prepare_data=1)
    cluster.fails(cluster.starts("prepare_data", "prepare the data set a"), message="no network")
    assert capsys.readouterr().err == "prepare the data set a: no network; tried again\n"
