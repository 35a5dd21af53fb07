"""What Snakemake's console shows under `logger: multicard`: told by Snakemake's events, of a planned experiment."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from console_pipeline import Output, Pipeline, prepared
from snakemake_interface_logger_plugins.common import LogEvent

from multicard.cli._console import say
from multicard.core.files import write_json
from snakemake_logger_plugin_multicard.terminal import Terminal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


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
    first, second = pipeline.plan.planned()[:2]
    reason = {"code": "error", "rank": 0, "message": "no such file"}
    pipeline.runs(first)
    pipeline.runs(second, outcome="failed", reason=reason)
    pipeline.say(None, event=LogEvent.PROGRESS, done=3, total=4)
    pipeline.draws("fp64 10% slower than fp32 (n=2)", "gain_precision")
    parameters = [pipeline.plan.runs[run].parameters for run in (first, second)]
    names = [f"formats, {p.precision}, repeat {p.repeat}" for p in parameters]
    said = pipeline.said()
    # Two steps in 0.05 s.
    assert said.out.splitlines() == [
        "2 runs; results: results/; log: .snakemake/log",
        "shuffled order, so that a machine that slows down affects all alike",
        "prepare the data set digits",
        f"run 1 of 2: {names[0]}: 25.0 ms per step",
        f"run 2 of 2: {names[1]}: failed, rank 0: no such file; log: results/runs/{second}/log.txt",
        "formats: fp64 10% slower than fp32 (n=2) → results/figures/formats/step_times.png",
    ]
    assert said.err == ""


def test_the_runs_of_a_command_and_its_time_stand_before_the_results(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "snakemake_logger_plugin_multicard.console.print_results", lambda *_: print("report: results/report.html")
    )
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.time", SimpleNamespace(monotonic=lambda: 1000.0))

    def last_lines(made: int, **earlier: Any) -> list[str]:
        pipeline = Pipeline(folder, **earlier)
        pipeline.begins(launch_run=made)
        for run in pipeline.plan.planned()[:made]:
            pipeline.runs(run)
        pipeline.handler.close()
        return capsys.readouterr().out.splitlines()[-2:]

    assert last_lines(2, began=550.0, earlier_runs=16) == ["18 runs in 7 min 30 s", "report: results/report.html"]
    assert last_lines(1, began=975.0) == ["1 run in 25 s", "report: results/report.html"]
    assert last_lines(0, began=999.0)[0].startswith("no run is missing: only what is made of the runs; ")


def test_a_run_whose_steps_are_damaged_has_a_line_that_says_so(pipeline: Pipeline) -> None:
    pipeline.begins(launch_run=2)
    first, second = pipeline.plan.planned()[:2]
    pipeline.runs(first, steps="")
    pipeline.runs(second)
    lines = pipeline.said().out.splitlines()
    assert lines[-2].endswith(f": results/runs/{first}/steps.csv: empty, expected a header")
    assert lines[-1].endswith(": 25.0 ms per step")


def test_a_job_that_fails_has_a_line_with_its_last_words_and_its_log(pipeline: Pipeline) -> None:
    pipeline.begins(launch_run=2)
    first, second = pipeline.plan.planned()[:2]
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
    run = pipeline.plan.planned()[0]
    pipeline.fails(pipeline.starts("launch_run", f"run {run}", run=run), message="its disk was full")
    pipeline.runs(run)
    pipeline.handler.close()
    assert pipeline.said().err == f"run {run}: its disk was full; tried again\n"
    assert len(shown) == 1


def test_results_that_cannot_be_printed_are_told(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise AttributeError("a fault of ours")

    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.print_results", fails)
    pipeline.begins(launch_run=1)
    pipeline.runs(pipeline.plan.planned()[0])
    pipeline.handler.close()
    assert pipeline.said().err.splitlines()[-1] == "AttributeError: a fault of ours"


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


def test_with_only_errors_nothing_else_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(folder, "errors")
    pipeline.begins(launch_run=1)
    pipeline.runs(pipeline.plan.planned()[0])
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


def test_on_a_terminal_the_last_line_is_the_current_run_with_its_step_and_the_time_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(monkeypatch, is_terminal=True)
    monkeypatch.setattr("snakemake_logger_plugin_multicard.console.LOOK_S", 0.05)
    monkeypatch.setenv("COLUMNS", "200")
    pipeline = Pipeline(folder)
    pipeline.begins(launch_run=2)
    first, second = pipeline.plan.planned()[:2]
    pipeline.runs(first)
    Path(f"results/logs/launch_run/{second}.txt").write_text("multicard:   step 7 of 60\nmulticard: a: remark\n")
    pipeline.starts("launch_run", f"run {second}", run=second)
    output.wait_for("step 7 of 60")
    pipeline.handler.close()
    p = pipeline.plan.runs[second].parameters
    state = f"about 1 minute left; run 2 of 2: formats, {p.precision}, repeat {p.repeat}: step 7 of 60"
    assert f"\r\x1b[K{state}" in output.getvalue()
    assert output.getvalue().endswith("\r\x1b[K"), "it does not stay"


def test_where_nothing_is_to_be_done_the_results_are_shown(pipeline: Pipeline, folder: Path, shown: list[Any]) -> None:
    write_json(folder / "results/scenarios/formats/answer.json", {"sentence": "as before", "rows": [], "figure": None})
    pipeline.say("Nothing to be done (all requested files are present and up to date).")
    for _ in range(2):  # as Snakemake does
        pipeline.handler.close()
    assert pipeline.said().out.splitlines() == ["Nothing to be done: the results are there", "formats: as before"]
    assert shown == [(pipeline.plan.experiment, Path("mine.yaml"), {"formats": "formats: as before"}, None)]


def test_lines_on_a_terminal_break_between_words_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output = Output(monkeypatch, is_terminal=True)
    Terminal(keeps_state=True).line("4 runs; results: results/mine/; log: .snakemake/log/2026-11-30T085822.549976.log")
    command = "multicard run 'a file with spaces.yaml' --retry-failed"
    say(f"next, to run again what did not complete: {command}")
    lines = [line.removeprefix("\r\x1b[K") for line in output.getvalue().splitlines()]
    assert lines == [
        "4 runs; results: results/mine/; log:",
        "  .snakemake/log/2026-11-30T085822.549976.log",
        "next, to run again what did not",
        "  complete:",
        f"  {command}",
    ]
