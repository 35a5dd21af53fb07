"""What Snakemake's console shows under `logger: multicard`: told by Snakemake's events, of a planned experiment."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from conftest import TINY
from multicard.archive.matrix import Matrix
from multicard.core.files import write_json
from multicard.experiment.load import check
from multicard.workflow.slurm_queue import Queue, QueuedJob
from snakemake_logger_plugin_multicard import LogHandler, LogHandlerSettings

OUTPUT = {
    "printshellcmds": False, "nocolor": True, "quiet": None, "debug_dag": False, "verbose": False,
    "show_failed_logs": True, "stdout": False, "dryrun": False,
}  # fmt: skip
FORMATS = {"question": "?", "vary": {"precision": ["fp32", "fp64"]}, "repeats": 2, "figures": ["step_times"]}


class Pipeline:
    """A pipeline that says to the handler what Snakemake says of one."""

    said: Callable[[], Any]  # what is shown, as `capsys` has it
    output: "Output"

    def __init__(self, folder: Path, console: str = "results", starts: bool = True, **output: bool) -> None:
        self.folder = folder
        plan = {"results": "results", "fixed": TINY, "scenarios": {"formats": FORMATS}}
        self.matrix = Matrix.plan(check(plan, "mine.yaml", outside=False))
        self.handler = LogHandler(SimpleNamespace(**OUTPUT | output), LogHandlerSettings(console))
        self.jobs: dict[str, int] = {}
        self.say("4 runs planned", matrix=self.matrix)
        if starts:
            self.say("started", event=LogEvent.WORKFLOW_STARTED, configfiles=[str(folder / "mine.yaml")])

    def say(self, text: str | None, level: int = logging.INFO, **facts: Any) -> None:
        """Hand over a log record."""
        module = facts.pop("module", "workflow")
        record = logging.LogRecord("snakemake", level, f"{module}.py", 1, text, None, None)
        record.__dict__ |= facts
        self.handler.handle(record)

    def begins(self, **jobs: int) -> None:
        """Say how many jobs of each rule there are."""
        stats = jobs | {"total": sum(jobs.values())}
        self.say("Job stats", event=LogEvent.RUN_INFO, stats=stats)

    def starts(self, rule: str, message: str, **of: str) -> int:
        """Start a job; its number."""
        job = self.jobs.setdefault(message, len(self.jobs) + 1)
        facts = {"jobid": job, "rule_name": rule, "wildcards": of, "rule_msg": message}
        self.say(f"Rule: {rule}", event=LogEvent.JOB_INFO, **facts)
        return job

    def ends(self, job: int) -> None:
        """End it."""
        self.say("Finished", event=LogEvent.JOB_FINISHED, job_id=job)

    def runs(self, run: str, **record: Any) -> None:
        """Start a run, which leaves its record and two steps, and end it."""
        job = self.starts("launch_run", f"run {run}", run=run)
        write_json(self.folder / "results" / "runs" / run / "run.json", {"outcome": "completed"} | record)
        steps = "rank,epoch,step,window,start_s,duration_s\n0,1,1,measured,0.0,0.02\n0,1,2,measured,0.02,0.03\n"
        (self.folder / "results" / "runs" / run / "steps.csv").write_text(steps)
        self.ends(job)

    def draws(self, words: str, varied: list[str]) -> None:
        """Leave the result and a figure of the scenario."""
        found = {"words": words, "varied": varied, "value": {"value": 0.9}}
        write_json(self.folder / "results/scenarios/formats/headline.json", found)
        figure = self.folder / "results/figures/formats/step_times.png"
        figure.parent.mkdir(parents=True)
        figure.write_bytes(b"")
        self.ends(self.starts("draw_figures", "draw the figures of the scenario formats", scenario="formats"))

    def fails(self, job: int, *logs: str, message: str | None = None) -> None:
        """Say that a job failed."""
        facts = {"jobid": job, "log": list(logs), "rule_msg": message, "indent": False}
        self.say("Error in rule", logging.ERROR, event=LogEvent.JOB_ERROR, **facts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs", "scenarios/formats", "logs/launch_run"):
        (tmp_path / "results" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pipeline(folder: Path, capsys: pytest.CaptureFixture[str]) -> Pipeline:
    made = Pipeline(folder)
    made.said = capsys.readouterr
    return made


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Results that are printed, in place of their tables."""
    printed: list[Any] = []
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.print_results", lambda *given: printed.append(given))
    return printed


def test_each_run_has_a_line_and_each_scenario_its_result(pipeline: Pipeline) -> None:
    pipeline.begins(prepare_data=1, launch_run=2, draw_figures=1)
    pipeline.ends(pipeline.starts("prepare_data", "prepare the data set digits", dataset="digits"))
    first, second = pipeline.matrix.planned()[:2]
    reason = {"code": "error", "rank": 0, "message": "no such file"}
    pipeline.runs(first)
    pipeline.runs(second, outcome="failed", reason=reason)
    pipeline.say(None, event=LogEvent.PROGRESS, done=3, total=4)
    pipeline.draws("fp64 10% slower than fp32 (n=2)", ["precision"])
    parameters = [pipeline.matrix.runs[run].parameters for run in (first, second)]
    names = [f"formats precision={p.precision} repeat {p.repeat}" for p in parameters]
    said = pipeline.said()
    # Two steps in 0.05 s.
    assert said.out.splitlines() == [
        "2 runs; results: results/; log: .snakemake/log",
        "prepare the data set digits",
        f"run 1 of 2: {names[0]}: 25.0 ms per step",
        f"run 2 of 2: {names[1]}: failed, rank 0: no such file; log: results/runs/{second}/log.txt",
        "formats: fp64 10% slower than fp32 (n=2) → results/figures/formats/step_times.png",
    ]
    assert said.err == ""


def test_a_job_that_fails_has_a_line_with_its_last_words_and_its_log(pipeline: Pipeline) -> None:
    pipeline.begins(launch_run=2)
    first, second = pipeline.matrix.planned()[:2]
    log = f"results/logs/launch_run/{first}.txt"
    Path(log).write_text("a disk is full\nmulticard:   step 7 of 60\n")
    command = "CalledProcessError in file run.smk, line 98"
    for run, logs, message in ((first, [log, "none.txt"], None), (second, [], "SLURM-job '7' failed")):
        job = pipeline.starts("launch_run", f"run {run}", run=run)
        pipeline.say(command, logging.ERROR, event=LogEvent.ERROR, exception="RuleException")
        pipeline.fails(job, *logs, message=message)
    pipeline.say("Exiting because a job execution failed.", logging.ERROR, module="job_scheduler")
    pipeline.say("At least one job did not complete", logging.ERROR, event=LogEvent.ERROR, exception="WorkflowError")
    pipeline.handler.close()
    assert pipeline.said().err.splitlines() == [
        f"failed: run {first}: a disk is full; log: {log}",
        f"failed: run {second}: SLURM-job '7' failed",
        "not all was made: .snakemake/log says more; the same command makes what is missing",
    ]


def test_a_job_that_succeeds_when_it_is_tried_again_leaves_results(pipeline: Pipeline, shown: list[Any]) -> None:
    pipeline.say("Started", ending=threading.Event(), retries=1)
    pipeline.begins(launch_run=1)
    run = pipeline.matrix.planned()[0]
    pipeline.fails(pipeline.starts("launch_run", f"run {run}", run=run), message="its disk was full")
    pipeline.runs(run)
    pipeline.handler.close()
    assert pipeline.said().err == f"run {run}: its disk was full; tried again\n"
    assert len(shown) == 1


def test_jobs_that_are_ended_with_the_pipeline_are_no_failures(pipeline: Pipeline) -> None:
    ending = threading.Event()
    pipeline.say("Started", ending=ending)
    pipeline.begins(launch_run=1)
    job = pipeline.starts("launch_run", "run a", run="a")
    ending.set()
    pipeline.say("exit code 130", logging.ERROR, event=LogEvent.ERROR, exception="RuleException")
    pipeline.fails(job)
    pipeline.handler.close()
    assert pipeline.said().err == ""


def test_what_no_job_failed_of_and_warnings_are_shown(pipeline: Pipeline) -> None:
    pipeline.begins(launch_run=1)
    for _ in range(2):
        pipeline.say("Slurm job 7 is waiting: AssocMaxJobsLimit", logging.WARNING)
    pipeline.say("MissingInputException in rule a", logging.ERROR, event=LogEvent.ERROR, exception="RuleException")
    pipeline.handler.close()
    assert pipeline.said().err.splitlines()[:2] == [
        "Slurm job 7 is waiting: AssocMaxJobsLimit", "MissingInputException in rule a",
    ]  # fmt: skip


def test_jobs_of_a_group_fail_in_one_line(pipeline: Pipeline) -> None:
    pipeline.begins(judge_claims=1, recommend=1)
    jobs = [pipeline.starts(rule, rule) for rule in ("judge_claims", "recommend")]
    Path("results/logs/recommend.txt").write_text("measures.csv: missing\n")
    infos = [{"jobid": job, "log": [f"results/logs/{rule}.txt"]} for job, rule in zip(jobs, pipeline.jobs, strict=True)]
    facts = {"job_error_info": infos, "aux_logs": [], "groupid": "conclusions"}
    pipeline.say("Error in group", logging.ERROR, event=LogEvent.GROUP_ERROR, **facts)
    pipeline.say(
        "Error in rule", logging.ERROR, event=LogEvent.JOB_ERROR, jobid=jobs[0], log=[], rule_msg=None, indent=True
    )
    said = "failed: judge_claims; recommend: measures.csv: missing; log: results/logs/recommend.txt\n"
    assert pipeline.said().err == said


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


def test_with_only_errors_nothing_else_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(folder, "errors")
    pipeline.begins(launch_run=1)
    pipeline.runs(pipeline.matrix.planned()[0])
    pipeline.say("Slurm job 7 is waiting: AssocMaxJobsLimit", logging.WARNING)
    pipeline.handler.close()
    assert capsys.readouterr() == ("", "Slurm job 7 is waiting: AssocMaxJobsLimit\n")


@pytest.mark.parametrize("stated", [{"console": "full"}, {"dryrun": True, "stdout": True}, {"starts": False}])
def test_a_dry_run_what_runs_nothing_and_the_full_console_are_snakemake_s(
    stated: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline(folder, **stated)
    pipeline.say("Unlocked working directory.")
    pipeline.handler.close()
    said = capsys.readouterr()
    assert (said.out if "stdout" in stated else said.err).splitlines()[-1] == "Unlocked working directory."


class Output(StringIO):
    """Standard output that another thread writes to; reading what pytest captures may lose what comes meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal
        monkeypatch.setattr(sys, "stdout", self)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until a text was written so many times."""
        while self.getvalue().count(text) < times:
            time.sleep(0.01)


def test_on_a_terminal_the_last_line_is_the_current_run_with_its_step_and_the_time_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(monkeypatch, is_terminal=True)
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.LOOK_S", 0.05)
    monkeypatch.setenv("COLUMNS", "200")
    pipeline = Pipeline(folder)
    pipeline.begins(launch_run=2)
    first, second = pipeline.matrix.planned()[:2]
    pipeline.runs(first)
    Path(f"results/logs/launch_run/{second}.txt").write_text("multicard:   step 7 of 60\nmulticard: a: remark\n")
    pipeline.starts("launch_run", f"run {second}", run=second)
    output.wait_for("step 7 of 60")
    pipeline.handler.close()
    p = pipeline.matrix.runs[second].parameters
    state = f"about 1 minute left; run 2 of 2: formats precision={p.precision} repeat {p.repeat}: step 7 of 60"
    assert f"\r\x1b[K{state}" in output.getvalue()
    assert output.getvalue().endswith("\r\x1b[K"), "it does not stay"


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
    runs = cluster.matrix.planned()[:4]
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


def test_the_time_left_counts_runs_that_run_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = on_cluster(folder, monkeypatch)
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.time", clock)
    cluster.begins(launch_run=4)
    runs = cluster.matrix.planned()
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
    run = cluster.matrix.planned()[0]
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
    runs = cluster.matrix.planned()[:2]
    for _ in range(3):
        for run in runs:
            cluster.fails(cluster.starts("launch_run", f"run {run}", run=run), message=SUBMITTING.format(error))
    cluster.handler.close()
    assert capsys.readouterr().err.splitlines() == [
        f"run {runs[0]}: {says}; submitted again",
        *(f"failed: run {run}: {says}" for run in runs),
        "not all was made: .snakemake/log says more; the same command makes what is missing",
    ]


def test_where_nothing_is_to_be_done_the_results_are_shown(pipeline: Pipeline, folder: Path, shown: list[Any]) -> None:
    write_json(folder / "results/scenarios/formats/headline.json", {"words": "as before", "varied": [], "value": None})
    pipeline.say("Nothing to be done (all requested files are present and up to date).")
    for _ in range(2):  # as Snakemake does
        pipeline.handler.close()
    assert pipeline.said().out.splitlines() == ["Nothing to be done: the results are there", "formats: as before"]
    assert shown == [(pipeline.matrix.experiment, Path("mine.yaml"))]
