"""Pipelines that are interrupted, or started twice, end cleanly, and the next start does only what is missing."""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_pipeline import CONFIG, EXPERIMENT, LIMIT_S, environment, make, planned, project, snakemake

from conftest import add_digits

pytestmark = pytest.mark.slow

SNAKEMAKE = [str(Path(sys.prefix) / "bin" / "snakemake"), "--profile", "profiles/local", "--configfile", CONFIG]
MAKE = ["make", "-o", ".venv/ready", "demo", f"CONFIG={CONFIG}"]
EPOCHS = 24
BUSY = "Directory cannot be locked."


def experiment() -> dict[str, Any]:
    """Two runs, the first of them long enough to be met at work on a busy machine, and one that does not complete."""
    made = copy.deepcopy(EXPERIMENT)
    made["scenarios"]["processes"]["figures"] = ["speedup"]
    made["scenarios"]["formats"] = {
        "question": "Too fast?",
        "fixed": {"learning_rate": 1e30},
        "figures": ["step_breakdown"],
    }
    made["fixed"] = made["fixed"] | {"epochs": EPOCHS, "profiler": "none", "steps_per_epoch": 6, "batch_size": 16}
    return made


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a pipeline in a session of its own, as a terminal would."""
    return subprocess.Popen(
        command, cwd=folder, env=environment(False), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # were it under nohup
    )  # fmt: skip


def wait_for(pipeline: subprocess.Popen[str], *texts: str) -> None:
    """Read until it has printed these one after the other."""
    said, left = "", list(texts)
    for line in pipeline.stdout:
        said += line
        if left[0] in line:
            left.pop(0)
        if not left:
            return
    pytest.fail(f"the pipeline did not print {left[0]!r}:\n{said[-3000:]}")


def at_work(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder, or that run in it."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(str(folder) in argument for argument in process.cmdline())
            if (named or process.cwd() == str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def nobody_left(folder: Path) -> bool:
    deadline = time.monotonic() + 300
    while at_work(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not at_work(folder)


def hidden(folder: Path) -> list[Path]:
    """What is written beside, and would be renamed when whole."""
    stays = (".snakemake_timestamp", ".lock", ".outcome")
    return [path for path in (folder / "results").rglob(".*") if path.name not in stays]


def keep_after_every_epoch(folder: Path) -> None:
    """Have the runs of a copy of the project keep a checkpoint after every epoch, however short."""
    rule = folder / "workflow/rules/run.smk"
    text = rule.read_text()
    limit = '" --time-limit-min {resources.time_limit_min}"'
    assert text.count(limit) == 1
    rule.write_text(text.replace(limit, limit[:-1] + ' --checkpoint-after-s 0"'))


def end_by_ctrl_c(pipeline: subprocess.Popen[str]) -> None:
    os.killpg(pipeline.pid, signal.SIGINT)


def end_by_sigterm(pipeline: subprocess.Popen[str]) -> None:
    """As an operator or a machine that shuts down would, Snakemake alone."""
    os.kill(pipeline.pid, signal.SIGTERM)


def end_by_hangup(pipeline: subprocess.Popen[str]) -> None:
    """As a login shell that is closed does, all processes of the session."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pipeline.pid:
                process.send_signal(signal.SIGHUP)
        except (psutil.Error, ProcessLookupError):
            continue


@pytest.fixture(scope="module")
def folder(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = project(tmp_path_factory.mktemp("interrupted") / "my project", experiment())
    add_digits(made, digits)
    keep_after_every_epoch(made)
    return made


def test_a_pipeline_ended_by_ctrl_c_hangup_sigterm_or_a_kill_goes_on_where_it_was(folder: Path) -> None:
    runs = folder / "results" / "runs"
    for end, when in (
        (end_by_ctrl_c, "checkpoint after epoch"),
        (end_by_hangup, "checkpoint after epoch"),
        (end_by_sigterm, "resuming after epoch"),
    ):
        pipeline = started(SNAKEMAKE, folder)
        wait_for(pipeline, when)
        end(pipeline)
        pipeline.communicate(timeout=300)
        assert pipeline.returncode != 0
        assert nobody_left(folder), at_work(folder)
        assert not list(runs.glob("*ddp-ds*/run.json"))
        assert not hidden(folder)
        # Snakemake removes what it declared of an interrupted job; this it does not know. Which run it starts with, it
        # chooses again each time, so there may be one of each.
        assert 1 <= len(list(runs.glob("*ddp-ds*/checkpoint.pt"))) <= 2

    # The kernel's kill of `make demo`, in the middle of the run after a whole one. Of the three, the one that diverges
    # may be the first, or the one that is killed, and then be as quick.
    pipeline = started(MAKE, folder)
    wait_for(pipeline, ": completed, ", "epoch ")
    os.killpg(pipeline.pid, signal.SIGKILL)
    pipeline.communicate(timeout=300)
    assert nobody_left(folder), at_work(folder)
    whole = {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/run.json")}
    assert 1 <= len(whole) <= 2
    # Snakemake cannot tell a killed pipeline from one that is running.
    refused = make(folder, "demo")
    assert refused.returncode != 0
    assert "--unlock" in refused.stdout + refused.stderr
    assert snakemake(folder, "--unlock").returncode == 0
    assert len([line for line in planned(folder) if line.startswith("run ")]) == 3 - len(whole)

    done = make(folder, "demo")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ended = re.findall(r"^multicard: .*: (?:completed|diverged).* \(\d+ s\)$", done.stdout + done.stderr, re.M)
    assert len(ended) == 3 - len(whole)
    assert (folder / "results/snakemake-report.html").exists()
    assert not hidden(folder)
    records = {path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/run.json")}
    assert sorted(record["outcome"] for record in records.values()) == ["completed", "completed", "diverged"]
    assert sum(record["resumed"] is not None for record in records.values()) >= 1
    for name, written in whole.items():
        assert (runs / name / "run.json").stat().st_mtime_ns == written
    assert not list(runs.glob("*/checkpoint.pt"))
    assert planned(folder) == []

    # An outcome is a result, until its folder is deleted.
    [diverged] = [runs / name for name, record in records.items() if record["outcome"] == "diverged"]
    diverged.rename(folder / "away")
    assert f"run {diverged.name}" in planned(folder)
    (folder / "away").rename(diverged)


def test_a_second_pipeline_is_refused_and_the_first_goes_on(folder: Path) -> None:
    runs, until_run = folder / "results" / "runs", ("--until", "launch_run")
    if not runs.exists():
        assert snakemake(folder, *until_run).returncode == 0
    [diverged] = [path for path in runs.iterdir() if "ddp-ds" not in path.name]
    shutil.rmtree(diverged)
    pipeline = started([*SNAKEMAKE, *until_run], folder)
    wait_for(pipeline, ": starting, ")
    try:
        os.killpg(pipeline.pid, signal.SIGSTOP)  # however long the others take
        for second in [started(MAKE, folder), started(SNAKEMAKE, folder)]:
            said, _ = second.communicate(timeout=LIMIT_S)
            assert second.returncode != 0
            assert said.count(BUSY) == 1
            assert "--unlock" in said
            assert "Traceback" not in said
        os.killpg(pipeline.pid, signal.SIGCONT)
        said, _ = pipeline.communicate(timeout=LIMIT_S)
    finally:
        if pipeline.poll() is None:  # a check has failed
            os.killpg(pipeline.pid, signal.SIGCONT)
            end_by_ctrl_c(pipeline)
            pipeline.communicate(timeout=300)
    assert pipeline.returncode == 0, said[-3000:]
    assert len(re.findall(r": diverged.* \(\d+ s\)", said)) == 1
    assert planned(folder, *until_run) == []
