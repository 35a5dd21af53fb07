"""The whole pipeline through Snakemake and make, on real training, in a copy of the project."""

import copy
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from project_copy import CONFIG, environment, make, planned, project, snakemake, write_experiment

from browser import CHROMIUM, browser
from conftest import TINY, add_digits, ran

pytestmark = pytest.mark.slow

EXPERIMENT: dict[str, Any] = {
    "fixed": TINY | {"strategy": "ddp-ds"},
    "scenarios": {
        "processes": {
            "question": "Does a second process help?",
            "vary": {"devices": [1, 2]},
            "figures": ["iteration_time", "speedup", "step_breakdown"],
        },
        "formats": {
            "question": "Which format is <fast> & right?",
            "vary": {"precision": ["fp32"]},  # its run is also the first one of the other scenario
            "figures": ["step_times"],
        },
    },
}
RUN = "vision_digits_16px_{}_warmup2_profiled3_width0.25_batch8_epochs1_steps8_r1"
ONE, TWO = RUN.format("ddp-ds_cpu1_fp32"), RUN.format("ddp-ds_cpu2_fp32")
# What is made from all scenarios together, again when one of them changes.
TOGETHER = ["check the papers' claims, and recommend what to change", "write the report"]
MADE_OF_A_SCENARIO = ("measure the scenario", "draw the figures of the scenario")


def all_of_run(run: str) -> list[str]:
    return [f"run {run}", f"read the trace of {run}"]


@contextmanager
def changed_to(folder: Path, experiment: dict[str, Any]) -> Iterator[None]:
    """Let the folder have another experiment for a while."""
    write_experiment(folder, experiment)
    try:
        yield
    finally:
        write_experiment(folder, EXPERIMENT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `make demo`, without nsys. Its path has a space in it."""
    folder = project(tmp_path_factory.mktemp("finished") / "my project", EXPERIMENT)
    done = make(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "said").write_text(done.stdout)
    return folder


def test_the_demo_says_what_it_found(finished: Path) -> None:
    said, step = (finished / "said").read_text(), r"[\d.]+ m?s per step"
    assert re.match(r"2 runs; results: results/; log: \.snakemake/log/\S+\.snakemake\.log\n", said)
    runs = re.findall(rf"^run (\d) of 2: processes, devices ([12]): {step}$", said, re.M)
    assert [number for number, _ in runs] == ["1", "2"] and sorted(devices for _, devices in runs) == ["1", "2"]
    # On a busy machine one run may seem to scale beyond ideal, which is said there.
    speedup = r"2 processes [\d.]+× as fast as 1 process \(n=1\), [\d.]+% efficient[^→]*"
    assert re.search(rf"^processes: {speedup} → results/figures/processes/speedup\.png$", said, re.M)
    assert re.search(r"^formats: [\d.]+ m?s \(n=1\) per step → results/figures/formats/step_times\.png$", said, re.M)
    report, following = said.splitlines()[-2:]
    assert report == "report: results/report.html"
    assert following.startswith(f"next, for intervals, set repeats: 3 in {CONFIG}")
    assert len(said.splitlines()) < 20


def test_every_stage_leaves_its_files(finished: Path) -> None:
    results = finished / "results"
    for run in (ONE, TWO):
        for name in ("steps.csv", "epochs.csv", "log.txt", "trace/captured.json", "trace/exported.json"):
            assert (results / "runs" / run / name).exists(), name
    done = ran(Path(sys.prefix, "bin/multicard"), "status", CONFIG, cwd=finished)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 completed")
    for scenario, definition in EXPERIMENT["scenarios"].items():
        [values] = definition["vary"].values()
        assert len(pd.read_csv(results / "scenarios" / scenario / "measures.csv")) == len(values)
        for figure in definition["figures"]:
            for suffix in ("png", "svg", "pdf", "csv"):
                assert (results / "figures" / scenario / f"{figure}.{suffix}").stat().st_size > 0
    phases = pd.read_parquet(results / "runs" / TWO / "activity" / "phases.parquet")
    per_step = phases.groupby(["rank", "phase"]).size().unstack()
    assert list(per_step.index) == [0, 1]
    for phase in ("step", "data", "transfer", "forward", "backward", "optimizer"):
        assert set(per_step[phase]) == {TINY["profiled_steps"]}, phase
    assert make(finished, "snakemake-report").returncode == 0
    report = (finished / "snakemake-report.html").read_text()
    for part in ("speedup.png", "step_times.png", "runs.csv", "measures.csv", "Does a second process help?"):
        assert part in report
    assert "2 runs, 1 of each configuration" in report


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH (envs/install-chromium.sh)")
def test_the_report_opens_in_a_browser_and_asks_for_nothing(finished: Path) -> None:
    report = finished / "results" / "report.html"
    with browser() as opened:
        opened.open(report)
        assert opened.requests == [report.as_uri()]
        assert opened.complaints == []
        # The page itself adds one step on every rank.
        drawn = "[...document.querySelectorAll('figure:not(.timeline)')].map((figure) => figure.dataset.figure)"
        assert opened.run(drawn) == [
            figure for scenario in EXPERIMENT["scenarios"].values() for figure in scenario["figures"]
        ]
        assert "Which format is <fast> & right?" in opened.run("document.querySelector('#overview').innerText")
        assert opened.run("document.querySelectorAll('#runs tbody tr').length") == 2
        assert opened.run("document.querySelectorAll('.claims').length") == 0  # none is judged on CPUs


def test_a_second_start_does_nothing_and_a_deleted_index_is_made_without_the_run(finished: Path) -> None:
    assert planned(finished) == []
    index = finished / "results" / "runs" / ONE / "activity" / "tables.json"
    aside = index.rename(index.with_suffix(".aside"))
    try:
        plan = planned(finished)
    finally:
        aside.rename(index)
    assert f"read the trace of {ONE}" in plan
    assert not [job for job in plan if job.startswith("run ")]


def test_a_changed_and_an_added_scenario_run_what_is_new_in_them_alone(finished: Path) -> None:
    changed = copy.deepcopy(EXPERIMENT)
    changed["scenarios"]["formats"]["vary"]["precision"].append("fp64")
    changed["scenarios"]["sizes"] = {
        "question": "Do larger images help?",
        "fixed": {"devices": 2},
        "vary": {"image_size": [16, 24]},  # the run with 16 px is there already, made for another scenario
        "figures": ["step_breakdown"],
    }
    with changed_to(finished, changed):
        assert planned(finished) == sorted(
            [
                *all_of_run(RUN.format("ddp-ds_cpu1_fp64")),
                *all_of_run(TWO.replace("16px", "24px")),
                *(f"{what} {name}" for what in MADE_OF_A_SCENARIO for name in ("formats", "sizes")),
                *TOGETHER,
            ]
        )


def test_what_is_said_of_a_scenario_the_order_and_the_machine_make_nothing_again_but_the_page(finished: Path) -> None:
    other = copy.deepcopy(EXPERIMENT) | {"order_seed": 1, "cluster": {"cpus_per_node": 16, "nodes": 2}}
    other["scenarios"]["formats"]["question"] = "Which format is fastest?"
    with changed_to(finished, other):
        assert planned(finished) == ["write the report"]


def test_a_scenario_taken_away_and_limits_of_a_machine_rerun_no_run(finished: Path) -> None:
    fewer = copy.deepcopy(EXPERIMENT)
    del fewer["scenarios"]["formats"]
    with changed_to(finished, fewer):
        assert planned(finished) == TOGETHER
    record = finished / "results/machine/node07-cpu.json"
    record.parent.mkdir()
    record.write_text("{}")
    try:
        made = planned(finished)
    finally:
        shutil.rmtree(record.parent)
    again = [f"{what} {name}" for what in MADE_OF_A_SCENARIO for name in EXPERIMENT["scenarios"]]
    assert made == sorted([*again, *TOGETHER])


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


def test_data_that_are_prepared_again_repeat_no_run_and_other_data_are_other_runs(finished: Path) -> None:
    shutil.rmtree(finished / "data")  # as a cluster clears a folder of temporary files
    assert snakemake(finished, "--", "prepare").returncode == 0
    assert planned(finished) == []
    [facts] = finished.glob("data/digits-*/provenance.json")
    before = facts.read_text()
    # A configuration that defines the data set otherwise leaves those of this one alone.
    with changed_to(finished, EXPERIMENT | {"datasets": {"digits": {"source": "digits", "limit": 500}}}):
        assert len([job for job in planned(finished) if job.startswith("run ")]) == 2
        assert snakemake(finished, "--", "prepare").returncode == 0
    assert facts.read_text() == before
    assert len(list(finished.glob("data/digits-*"))) == 2
    # One that defines it alike shares it.
    with changed_to(finished, EXPERIMENT | {"results": "other"}):
        assert "prepare the data set digits" not in planned(finished)
    assert planned(finished) == []


def test_bad_input_stops_snakemake_and_make_with_one_line(finished: Path) -> None:
    scenario = {"question": "?", "fixed": {"strategy": "dpp"}, "figures": ["step_breakdown"]}
    (finished / "config/bad.yaml").write_text(yaml.safe_dump(EXPERIMENT | {"scenarios": {"a": scenario}}))
    stopped = snakemake(finished, config="config/bad.yaml")
    assert stopped.returncode != 0
    [said] = [text for text in stopped.stderr.splitlines() if text and not text.startswith("Using profile")]
    found = (
        "scenarios.a.fixed.strategy: found 'dpp' (did you mean 'dp'?), expected one of single, dp, ddp, ddp-ds, fsdp"
    )
    assert f"bad.yaml: {found}" in said
    twice = yaml.safe_dump(EXPERIMENT | {"scenarios": {"a": {}, "b": {}}}).replace("  b: {}\n", "  a: {}\n")
    (finished / "config/bad.yaml").write_text(twice)
    assert "the key 'a' stands here twice" in snakemake(finished, config="config/bad.yaml").stderr
    good = (finished / CONFIG).read_text()
    (finished / CONFIG).write_text("scenarios: [1")
    try:
        stopped = make(finished)
    finally:
        (finished / CONFIG).write_text(good)
    assert stopped.returncode != 0
    [line] = [line for line in stopped.stderr.splitlines() if not line.startswith("make")]
    assert line.startswith("config/tiny.yaml, line 1, column 14: does not parse as YAML")


TUNING = {
    "fixed": {
        "workload": "llm", "device": "cpu", "model": "tiny", "dataset": "preferences", "precision": "fp32",
        "batch_size": 2, "steps": 4, "sequence_length": 128, "learning_rate": 0.001,
    },
    "vary": {"technique": ["lora", "full"]},
    "figures": ["step_breakdown"],
}  # fmt: skip


@pytest.mark.rare
def test_what_a_search_ran_a_full_matrix_takes_over(tmp_path: Path) -> None:
    tuned = {
        "models": {"tiny": {"architecture": "tiny"}},
        "datasets": {"preferences": {"source": "shipped-text", "texts": "preferences"}},
        "scenarios": {"tried": {"question": "Which is faster?", **TUNING}},
    }
    folder = project(tmp_path / "project", tuned)
    # What a run takes is not known before the first, so there is one.
    tune = (Path(sys.prefix, "bin/multicard"), "tune", CONFIG, "--budget", "1s")
    done = ran(*tune, cwd=folder, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = (folder / "results/runs").iterdir()
    assert json.loads((made / "run.json").read_text())["outcome"] == "completed"
    assert len([line for line in done.stdout.splitlines() if line.startswith("tried ")]) == 1
    assert "no further new configurations: the budget is spent, 1 were not tried" in done.stdout
    assert (folder / "results/search/tried.png").stat().st_size > 0
    [left] = [job for job in planned(folder) if job.startswith("run ")]
    assert left != f"run {made.name}"


@pytest.mark.rare
@pytest.mark.nsys
def test_with_nsys_on_the_path_reports_and_databases_are_real(digits: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", EXPERIMENT)
    add_digits(folder, digits)
    run = folder / "results/runs" / TWO
    done = snakemake(folder, "--", str(run.relative_to(folder) / "activity/tables.json"), nsys=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((run / "run.json").read_text())["profiler"]["used"] == "nsys"
    assert (run / "trace/report.nsys-rep").stat().st_size > 10_000
    assert (run / "trace/report.sqlite").read_bytes().startswith(b"SQLite format 3\0")
    phases = pd.read_parquet(run / "activity/phases.parquet")
    assert phases[phases["phase"] == "step"].groupby("rank").size().to_dict() == {0: 3, 1: 3}
