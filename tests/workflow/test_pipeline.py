"""The whole pipeline through Snakemake and make, on real training, in a copy of the project."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import forked_python
from browser import CHROMIUM, browser
from conftest import ROOT, TINY, add_digits, path_without_nsys
from multicard.experiment.datasets import Digits
from multicard.experiment.prepared import folder_name

pytestmark = pytest.mark.slow

CONFIG = "config/tiny.yaml"
EXPERIMENT: dict[str, Any] = {
    "fixed": TINY,
    "scenarios": {
        "processes": {
            "question": "Does a second process help?",
            "fixed": {"strategy": "ddp-ds"},
            "vary": {"devices": [1, 2]},
            "figures": ["iteration_time", "speedup", "step_breakdown"],
        },
        "formats": {
            "question": "Which format is <fast> & right?",
            "fixed": {"strategy": "ddp-ds"},  # its first run is also one of the other scenario
            "vary": {"precision": ["fp32", "bf16"]},
            "figures": ["precision"],
        },
    },
}
RUN = "vision_digits_16px_{}_warmup2_profiled3_width0.25_batch8_epochs1_steps8_r1"
LIMIT_S = 1800
DIGITS = folder_name("digits", Digits(source="digits"))

# What is made from all scenarios together, again when one of them changes.
OTHER_DIGITS = {"digits": {"source": "digits", "limit": 500}}
TOGETHER = ["check the papers' claims", "recommend what to change", "write the report"]


def project(folder: Path, experiment: dict[str, Any] = EXPERIMENT) -> Path:
    """Copy the project and give it a small experiment and this environment."""
    made = {".git", ".venv", ".snakemake", "results", "data", "__pycache__", ".pytest_cache", ".ruff_cache"}
    shutil.copytree(ROOT, folder, ignore=lambda _, names: made & set(names))
    (folder / ".venv").symlink_to(sys.prefix)
    write(folder, experiment)
    return folder


def write(folder: Path, experiment: dict[str, Any]) -> None:
    (folder / CONFIG).write_text(yaml.safe_dump(experiment, sort_keys=False))


@contextmanager
def changed_to(folder: Path, experiment: dict[str, Any]) -> Iterator[None]:
    """Let the folder have another experiment for a while."""
    write(folder, experiment)
    try:
        yield
    finally:
        write(folder, EXPERIMENT)


def environment(nsys: bool) -> dict[str, str]:
    return os.environ | {"PATH": os.environ["PATH"] if nsys else path_without_nsys()}


def make(folder: Path, *arguments: str, nsys: bool = False) -> subprocess.CompletedProcess[str]:
    # -o: the environment is this one, whatever its age.
    command = ["make", "-o", ".venv/ready", *arguments, f"CONFIG={CONFIG}"]
    return subprocess.run(
        command, cwd=folder, env=environment(nsys), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def snakemake(
    folder: Path, *arguments: str, config: str = CONFIG, nsys: bool = False
) -> subprocess.CompletedProcess[str]:
    local = ("--profile", "profiles/local", "--configfile", config)
    return forked_python.snakemake(folder, *local, *arguments, environment=environment(nsys), limit_s=LIMIT_S)


def planned(folder: Path, *arguments: str) -> list[str]:
    """What a dry run would do, in its own words."""
    dry = snakemake(folder, "--dry-run", *arguments)
    assert dry.returncode == 0, dry.stderr
    return sorted(re.findall(r"^Job \d+: (.+)$", dry.stdout + dry.stderr, re.M))


def all_of_run(run: str) -> list[str]:
    return [f"run {run}", f"export the trace of {run}", f"extract the activity tables of {run}"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `make demo`, without nsys. Its path has a space in it."""
    folder = project(tmp_path_factory.mktemp("finished") / "my project")
    done = make(folder, "demo")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_every_stage_leaves_its_files(finished: Path) -> None:
    results = finished / "results"
    for run in (RUN.format(kind) for kind in ("ddp-ds_cpu1_fp32", "ddp-ds_cpu2_fp32", "ddp-ds_cpu1_bf16")):
        folder = results / "runs" / run
        assert json.loads((folder / "run.json").read_text())["outcome"] == "completed"
        for name in ("steps.csv", "epochs.csv", "log.txt", "trace/captured.json", "trace/exported.json"):
            assert (folder / name).exists(), name
        assert len(pd.read_parquet(folder / "activity" / "phases.parquet")) > 0
    for scenario, definition in EXPERIMENT["scenarios"].items():
        assert len(pd.read_csv(results / "scenarios" / scenario / "measures.csv")) == 2
        for figure in definition["figures"]:
            for suffix in ("png", "svg", "pdf", "csv"):
                assert (results / "figures" / scenario / f"{figure}.{suffix}").stat().st_size > 0
    assert (finished / "data" / DIGITS / "provenance.json").exists()


def test_a_deleted_index_of_activity_tables_is_made_again_without_the_run(finished: Path) -> None:
    run = RUN.format("ddp-ds_cpu1_bf16")
    index = finished / "results" / "runs" / run / "activity" / "tables.json"
    aside = index.rename(index.with_suffix(".aside"))
    try:
        plan = planned(finished)
    finally:
        aside.rename(index)
    assert f"extract the activity tables of {run}" in plan
    assert not [job for job in plan if job.startswith(("run ", "export "))]


def test_both_ranks_of_a_run_are_in_its_tables(finished: Path) -> None:
    phases = pd.read_parquet(finished / "results/runs" / RUN.format("ddp-ds_cpu2_fp32") / "activity" / "phases.parquet")
    per_step = phases.groupby(["rank", "phase"]).size()
    for rank in (0, 1):
        for phase in ("step", "data", "transfer", "forward", "backward", "optimizer"):
            assert per_step[rank, phase] == TINY["profiled_steps"]


def test_records_agree_with_their_traces(finished: Path) -> None:
    status = subprocess.run(
        [str(Path(sys.prefix) / "bin" / "multicard"), "status", "--config", CONFIG],
        cwd=finished, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert status.returncode == 0, status.stdout
    assert status.stdout.splitlines()[-1] == "3 completed"


TUNING = {
    "fixed": {
        "workload": "llm", "model": "tiny", "dataset": "preferences", "precision": "fp32", "batch_size": 2, "steps": 4,
        "sequence_length": 128, "learning_rate": 0.001,
    },
    "vary": {"technique": ["lora", "full"]},
    "figures": ["step_breakdown"],
}  # fmt: skip


def test_what_a_search_ran_a_full_matrix_takes_over(finished: Path) -> None:
    tuned = copy.deepcopy(EXPERIMENT) | {
        "results": "results-tuned",
        "models": {"tiny": {"architecture": "tiny"}},
        "datasets": {"digits": {"source": "digits"}, "preferences": {"source": "shipped-text", "texts": "preferences"}},
        "scenarios": {"tried": {"question": "Which is faster?", **TUNING}},
    }
    (finished / "config/tune.yaml").write_text(yaml.safe_dump(tuned))
    # What a run takes is not known before the first, so there is one.
    done = subprocess.run(
        [str(Path(sys.prefix) / "bin" / "multicard"), "tune", "config/tune.yaml", "--budget", "1s"],
        cwd=finished, env=environment(nsys=False), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = (finished / "results-tuned/runs").iterdir()
    assert json.loads((made / "run.json").read_text())["outcome"] == "completed"
    assert len([line for line in done.stdout.splitlines() if line.startswith("tried ")]) == 1
    assert "no further new configurations: the budget is spent, 1 were not tried" in done.stdout
    assert (finished / "results-tuned/search/tried.png").stat().st_size > 0
    dry = snakemake(finished, "--dry-run", config="config/tune.yaml")
    [left] = re.findall(r"^Job \d+: run (.+)$", dry.stdout + dry.stderr, re.M)
    assert left != made.name


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH (envs/install-chromium.sh)")
def test_the_report_opens_in_a_browser_and_asks_for_nothing(finished: Path) -> None:
    report = finished / "results" / "report.html"
    with browser() as opened:
        opened.open(report)
        opened.wait("document.documentElement.dataset.charts === 'drawn'")
        assert opened.requests == [report.as_uri()]
        assert opened.complaints == []
        assert opened.run("[...document.querySelectorAll('figure')].map((figure) => figure.dataset.figure)") == [
            figure for scenario in EXPERIMENT["scenarios"].values() for figure in scenario["figures"]
        ]
        assert "Which format is <fast> & right?" in opened.run("document.querySelector('#overview').innerText")
        assert opened.run("document.querySelectorAll('#runs-table tbody tr').length") == 3
        assert opened.run("document.querySelectorAll('.claims > li').length") > 0


def test_snakemake_s_report_holds_figures_tables_and_captions(finished: Path) -> None:
    report = (finished / "results" / "snakemake-report.html").read_text()
    for part in ("speedup.png", "precision.png", "runs.csv", "measures.csv", "Does a second process help?"):
        assert part in report
    assert "2 runs, 1 of each configuration" in report


def test_a_second_start_does_nothing(finished: Path) -> None:
    again = make(finished, "demo")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr


def test_a_changed_scenario_reruns_its_changed_runs_and_figures_alone(finished: Path) -> None:
    changed = copy.deepcopy(EXPERIMENT)
    changed["scenarios"]["formats"]["vary"]["precision"] = ["fp32", "fp64"]
    with changed_to(finished, changed):
        assert planned(finished) == sorted(
            [
                *all_of_run(RUN.format("ddp-ds_cpu1_fp64")),
                "measure the scenario formats",
                "draw the figures of the scenario formats",
                *TOGETHER,
            ]
        )


def test_an_added_scenario_reruns_nothing_that_exists(finished: Path) -> None:
    added = copy.deepcopy(EXPERIMENT)
    added["scenarios"]["sizes"] = {
        "question": "Do larger images help?",
        "fixed": {"strategy": "ddp-ds", "devices": 2},
        "vary": {"image_size": [16, 24]},
        "figures": ["step_breakdown"],
    }
    with changed_to(finished, added):
        # The run with 16 px is there already, made for another scenario.
        assert planned(finished) == sorted(
            [
                *all_of_run(RUN.format("ddp-ds_cpu2_fp32").replace("16px", "24px")),
                "measure the scenario sizes",
                "draw the figures of the scenario sizes",
                *TOGETHER,
            ]
        )


def test_data_that_are_prepared_again_repeat_no_run_unless_they_are_defined_otherwise(finished: Path) -> None:
    more = copy.deepcopy(EXPERIMENT)
    more["scenarios"]["formats"]["vary"]["precision"].append("fp64")
    shutil.rmtree(finished / "data")  # as a cluster clears a folder of temporary files
    prepared = snakemake(finished, "--", "prepare")
    assert prepared.returncode == 0, prepared.stderr
    with changed_to(finished, more):
        runs = [job for job in planned(finished) if job.startswith("run ")]
        assert runs == [f"run {RUN.format('ddp-ds_cpu1_fp64')}"]
    assert planned(finished) == []
    with changed_to(finished, EXPERIMENT | {"datasets": OTHER_DIGITS}):
        assert len([job for job in planned(finished) if job.startswith("run ")]) == 3


def test_configurations_that_define_a_data_set_differently_leave_each_other_s_runs_alone(finished: Path) -> None:
    facts = (finished / "data" / DIGITS / "provenance.json").read_text()
    with changed_to(finished, EXPERIMENT | {"datasets": OTHER_DIGITS, "results": "other"}):
        assert "prepare the data set digits" in planned(finished)
        prepared = snakemake(finished, "--", "prepare")
        assert prepared.returncode == 0, prepared.stderr
    assert (finished / "data" / DIGITS / "provenance.json").read_text() == facts
    assert len(list(finished.glob("data/digits-*"))) == 2
    assert planned(finished) == []
    # One that defines it alike shares it.
    with changed_to(finished, EXPERIMENT | {"results": "other"}):
        assert "prepare the data set digits" not in planned(finished)


def test_what_is_said_about_a_scenario_makes_nothing_again_but_the_page(finished: Path) -> None:
    other = copy.deepcopy(EXPERIMENT)
    other["scenarios"]["formats"]["question"] = "Which format is fastest?"
    with changed_to(finished, other):
        assert planned(finished) == ["write the report"]


def test_limits_of_a_machine_make_measures_again_and_no_run(finished: Path) -> None:
    record = finished / "results/machine/node07-cpu.json"
    record.parent.mkdir()
    record.write_text("{}")
    try:
        made = planned(finished)
    finally:
        shutil.rmtree(record.parent)
    names = ("formats", "processes")
    again = [f"{what} the scenario {name}" for name in names for what in ("measure", "draw the figures of")]
    assert made == sorted([*again, *TOGETHER])


def test_another_order_of_the_runs_and_what_is_said_about_the_machine_make_nothing_again(finished: Path) -> None:
    with changed_to(finished, EXPERIMENT | {"order_seed": 1, "cluster": {"cpus_per_node": 16, "nodes": 2}}):
        assert planned(finished) == []


def test_a_changed_program_makes_again_what_it_made_but_no_run_and_no_data(finished: Path) -> None:
    scripts = [finished / "workflow/scripts" / f"{name}.py" for name in ("draw_figures", "launch_run", "prepare_data")]
    texts = [script.read_text() for script in scripts]
    for script, text in zip(scripts, texts, strict=True):
        script.write_text(f"{text}# changed\n")
    try:
        assert planned(finished) == [
            *(f"draw the figures of the scenario {name}" for name in ("formats", "processes")),
            "write the report",
        ]
    finally:
        for script, text in zip(scripts, texts, strict=True):
            script.write_text(text)
    assert planned(finished) == []


def test_a_scenario_taken_away_reruns_no_run_and_no_figure(finished: Path) -> None:
    fewer = copy.deepcopy(EXPERIMENT)
    del fewer["scenarios"]["formats"]
    with changed_to(finished, fewer):
        assert planned(finished) == TOGETHER


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"scenarios": {"a": {"question": "?", "fixed": {"strategy": "dpp"}, "figures": ["step_breakdown"]}}},
            "bad.yaml: scenarios.a.fixed.strategy: found 'dpp', expected one of single, dp, ddp, ddp-ds, fsdp",
        ),
        ({"results": "Makefile/results"}, "bad.yaml: results: cannot write to Makefile/results"),
    ],
)
def test_bad_input_stops_snakemake_with_one_line(finished: Path, change: dict[str, Any], line: str) -> None:
    (finished / "config/bad.yaml").write_text(yaml.safe_dump(EXPERIMENT | change))
    stopped = snakemake(finished, config="config/bad.yaml")
    assert stopped.returncode != 0
    said = [text for text in stopped.stderr.splitlines() if text and not text.startswith("Using profile")]
    assert len(said) == 1
    assert line in said[0]


def test_two_scenarios_with_one_name_stop_snakemake(finished: Path) -> None:
    text = yaml.safe_dump(EXPERIMENT).replace("  processes:\n", "  formats:\n")
    (finished / "config/bad.yaml").write_text(text)
    stopped = snakemake(finished, config="config/bad.yaml")
    assert stopped.returncode != 0
    assert "config/bad.yaml, line " in stopped.stderr
    assert "the key 'formats' stands here twice" in stopped.stderr


def test_yaml_that_does_not_parse_stops_make_with_one_line(finished: Path) -> None:
    good = (finished / CONFIG).read_text()
    (finished / CONFIG).write_text("scenarios: [1")
    try:
        stopped = make(finished, "demo")
    finally:
        (finished / CONFIG).write_text(good)
    assert stopped.returncode != 0
    lines = [line for line in stopped.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert lines[0].startswith("config/tiny.yaml, line 1, column 14: does not parse as YAML")


@pytest.mark.nsys
def test_with_nsys_on_the_path_reports_and_databases_are_real(digits: Path, tmp_path: Path) -> None:
    experiment = copy.deepcopy(EXPERIMENT)
    del experiment["scenarios"]["formats"]
    folder = project(tmp_path / "project", experiment)
    add_digits(folder, digits)
    run = folder / "results/runs" / RUN.format("ddp-ds_cpu2_fp32")
    done = snakemake(folder, "--", str(run.relative_to(folder) / "activity/tables.json"), nsys=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((run / "run.json").read_text())["profiler"]["used"] == "nsys"
    assert (run / "trace/report.nsys-rep").stat().st_size > 10_000
    assert (run / "trace/report.sqlite").read_bytes().startswith(b"SQLite format 3\0")
    phases = pd.read_parquet(run / "activity/phases.parquet")
    assert phases[phases["phase"] == "step"].groupby("rank").size().to_dict() == {0: 3, 1: 3}
