"""The script that launches a run refuses what cannot run, in one line, before it writes anything; else it starts it."""

import inspect
import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, TINY
from factories import make_run
from machine.faked_programs import put
from multicard.config.read_run import read_run
from multicard.core.layout import KEPT
from multicard.core.reasons import Reason
from multicard.launch import job
from multicard.workflow.kept_outcomes import WITH_RECORD
from multicard.workflow.starts import forget_starts

SCRIPT = str(ROOT / "workflow/scripts/launch_run.py")
TUNING = {"workload": "llm", "model": "tiny", "device": "cpu", "precision": "fp32"}

Launch = Callable[..., list[str]]


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    """Run the script in this process, for a run directory `run`; gives the lines with which it ends, if it does."""

    def launched(parameters: dict[str, Any] | str, data: Path | None = tmp_path, *more: str, out: str = "run") -> Any:
        stated = parameters if isinstance(parameters, str) else json.dumps(parameters)
        command = [SCRIPT, "--parameters", stated, "--out", str(tmp_path / out), *more]
        monkeypatch.setattr(sys, "argv", command + (["--data", str(data)] if data else []))
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as ended:
            return str(ended.code or "").splitlines()
        return []

    return launched


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (TINY | {"strategy": "single", "devices": 2}, ["cannot run here: the strategy single uses one device, not 2"]),
        (TINY | {"epoch": 3}, ["epoch: unknown key (did you mean 'epochs'?)"]),
        (
            TINY | {"devices": 0, "batch_size": "8"},
            [
                "devices: found 0, expected 1 or more",
                "batch_size: found '8', expected a whole number",
            ],
        ),
        ('{"devices": 1', ["do not parse as JSON: Expecting ',' delimiter: line 1 column 14 (char 13)"]),
        ("[1, 2]", ["found [1, 2], expected a mapping of one workload's parameters"]),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_line_for_each_error(
    launch: Launch, tmp_path: Path, parameters: dict[str, Any] | str, says: list[str]
) -> None:
    assert sorted(launch(parameters)) == sorted(f"parameters: {line}" for line in says)
    assert not (tmp_path / "run").exists()


def test_a_missing_folder_is_named(launch: Launch, tmp_path: Path) -> None:
    assert launch(TINY, None) == ["data: missing"]
    assert launch(TINY, tmp_path / "no") == [f"data: no such folder: {tmp_path}/no"]
    assert launch(TUNING, None) == ["data: missing", "model: missing"]
    assert launch(TUNING, tmp_path, "--model", str(tmp_path / "no"))[0] == f"model: no such folder: {tmp_path}/no"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tool", "script", "changes"),
    [
        ("squeue", "echo 'Socket timed out' >&2; exit 1", {"strategy": "ddp", "devices": 2, "nodes": 2}),
        ("nvidia-smi", "echo 'Unknown Error'; exit 255", {"device": "cuda"}),
    ],
)
def test_what_a_busy_node_cannot_tell_is_no_outcome(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, script: str, changes: dict[str, Any]
) -> None:
    """The tools are stand-ins; within a job of Slurm, where what cannot run would be the run's outcome."""
    put(tmp_path, tool, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for name in ("SLURM_JOB_NUM_NODES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    [line] = launch(TINY | changes)
    assert re.fullmatch(rf"cannot tell whether \S+ can run this: {tool} ended with \d+, saying: .+", line)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the job is given in place of being run: it leaves its outputs."""
    arguments: dict[str, Any] = {}
    signature = inspect.signature(job.run_job)

    def run_job(*values: Any) -> None:
        arguments.update(signature.bind(*values).arguments)
        for name in (*WITH_RECORD, "run.json"):
            (arguments["folder"] / name).parent.mkdir(parents=True, exist_ok=True)
            (arguments["folder"] / name).write_text(json.dumps(make_run(arguments["parameters"]).as_json()))

    monkeypatch.setattr(job, "run_job", run_job)
    return arguments


def test_minutes_of_the_time_limit_reach_the_job_as_seconds(
    launch: Launch, given: dict[str, Any], tmp_path: Path
) -> None:
    assert launch(TINY, tmp_path, "--time-limit-min", "0.5", out="other") == []
    assert given["time_limit_s"] == 30
    assert launch(TINY, tmp_path) == []
    assert given["time_limit_s"] == 3600
    assert (given["data"], given["folder"]) == (tmp_path, tmp_path / "run")


SCRIPT_RUN = {
    "workload": "script", "command": ["timed.py"], "folder": str(ROOT / "tests" / "script" / "scripts"),
    "device": "cpu",
}  # fmt: skip


def test_an_outcome_that_snakemake_deleted_is_put_back(launch: Launch, given: dict[str, Any], tmp_path: Path) -> None:
    record = tmp_path / "run" / "run.json"
    assert launch(SCRIPT_RUN, None) == []  # a script needs no data
    before = record.read_text()
    record.unlink()
    given.clear()
    assert launch(SCRIPT_RUN, None) == []
    assert (record.read_text(), given) == (before, {})


def test_a_run_is_lost_when_two_other_jobs_have_started_it_however_often_slurm_refused_or_requeued(
    launch: Launch, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lost"

    def starts_in(number: str) -> dict[str, Any]:
        """Start the run in a job of Slurm, which leaves no outcome; give what the run gets."""
        monkeypatch.setenv("SLURM_JOB_ID", number)
        given.clear()
        assert launch(SCRIPT_RUN, None, out="lost") == []
        return dict(given)

    for number in ("7", "7", "8"):  # one of them is requeued
        assert starts_in(number)
        for name in (KEPT, "run.json"):
            remove(folder / name)
    assert starts_in("9") == {}
    written = read_run(folder)
    assert (written.outcome, written.reason) == ("failed", Reason("job_lost"))
    assert all((folder / name).exists() for name in WITH_RECORD)

    # The user starts the pipeline again, after removing that outcome.
    for name in (KEPT, "run.json"):
        remove(folder / name)
    forget_starts(tmp_path)
    assert starts_in("10")


def test_too_few_samples_are_an_outcome_before_the_job_starts(
    launch: Launch, tmp_path: Path, given: dict[str, Any]
) -> None:
    """Where Snakemake is started by itself, the run was planned before its data were prepared."""
    (tmp_path / "provenance.json").write_text(json.dumps({"train_samples": 7}))
    assert launch(TINY) == [] and not given
    record = read_run(tmp_path / "run")
    assert record.outcome == "failed" and record.reason.code == "cannot_run"
    assert record.reason.message.startswith("batch_size: 8 needs 8 training samples per rank, found 7; set ")
