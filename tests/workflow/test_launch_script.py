"""The script that launches a run refuses what cannot run, in one line, before it writes anything; else it starts it."""

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, TINY
from multicard.core.system import usable_cpus
from multicard.launch import job
from multicard.launch.kept import OUTPUTS

pytestmark = pytest.mark.slow

SCRIPT = str(ROOT / "workflow/scripts/launch_run.py")
TUNING = {"workload": "llm", "model": "tiny", "device": "cpu", "precision": "fp32"}


def launch(parameters: str, data: Path | None, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--parameters", parameters]
    command += [*(["--data", data] if data else []), "--out", out, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)


def refusal(parameters: str, data: Path, out: Path, *more: str) -> list[str]:
    """The lines that refuse a run, of which nothing may have begun."""
    ended = launch(parameters, data, out, *more)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert not out.exists()
    return ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": "dp", "devices": 2}, "cannot run here: the strategy dp needs two or more GPUs"),
        ({"strategy": "single", "devices": 2}, "cannot run here: the strategy single uses one device, not 2"),
        (
            {"strategy": "ddp", "devices": usable_cpus() + 1},
            f"cannot run here: needs {usable_cpus() + 1} devices, {usable_cpus()} found",
        ),
        ({"devices": 0}, "devices: found 0, input should be greater than or equal to 1"),
        ({"device": "gpu"}, "device: found 'gpu', expected one of cpu, cuda (did you mean 'cpu'?)"),
        ({"epoch": 3}, "epoch: not a parameter of the workload vision (did you mean 'epochs'?)"),
        ({"workload": "audio"}, "workload: found 'audio', expected one of vision, llm, script, adopted"),
        ({"workload": ["vision"]}, "workload: found ['vision'], expected one of vision, llm, script, adopted"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(
    digits: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    assert refusal(json.dumps(TINY | changes), digits, tmp_path / "run") == [f"parameters: {says}"]


def test_a_run_that_trains_on_data_is_refused_without_them(tmp_path: Path) -> None:
    assert refusal(json.dumps(TINY), None, tmp_path / "run") == [
        "data: missing, expected the folder of the prepared data set"
    ]


def test_every_bad_parameter_has_a_line_of_its_own(digits: Path, tmp_path: Path) -> None:
    lines = refusal(json.dumps(TINY | {"devices": 0, "batch_size": "8"}), digits, tmp_path / "run")
    assert sorted(lines) == [
        "parameters: batch_size: found '8', input should be a valid integer",
        "parameters: devices: found 0, input should be greater than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ('{"devices": 1', "do not parse as JSON: Expecting ',' delimiter: line 1 column 14 (char 13)"),
        ("", "do not parse as JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1, 2]", "found [1, 2], expected a mapping"),
    ],
)
def test_what_is_no_mapping_of_parameters_is_refused(digits: Path, tmp_path: Path, parameters: str, says: str) -> None:
    assert refusal(parameters, digits, tmp_path / "run") == [f"parameters: {says}"]


def test_a_missing_folder_is_named(digits: Path, tmp_path: Path) -> None:
    lines = refusal(json.dumps(TINY), tmp_path / "no", tmp_path / "run")
    assert lines == [f"data: no such folder: {tmp_path}/no"]
    lines = refusal(json.dumps(TUNING), digits, tmp_path / "run")
    assert lines == ["model: missing, expected the folder of the prepared language model"]
    lines = refusal(json.dumps(TUNING), digits, tmp_path / "run", "--model", str(tmp_path / "no"))
    assert lines[0] == f"model: no such folder: {tmp_path}/no"


@pytest.mark.parametrize(
    ("tool", "script", "changes", "says"),
    [
        (
            "squeue",
            "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1",
            {"strategy": "ddp", "devices": 2, "nodes": 2},
            "squeue ended with 1, saying: slurm_load_jobs error: Socket timed out",
        ),
        (
            "nvidia-smi",
            "echo 'Unable to determine the device handle: Unknown Error'; exit 255",
            {"device": "cuda"},
            "nvidia-smi ended with 255, saying: Unable to determine the device handle: Unknown Error",
        ),
    ],
)
def test_what_a_busy_node_cannot_tell_is_no_outcome(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, script: str, changes: dict[str, Any],
    says: str,
) -> None:  # fmt: skip
    """The tools are stand-ins; within a job of Slurm, where what cannot run would be the run's outcome."""
    fake = tmp_path / "bin" / tool
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for name in ("SLURM_JOB_NUM_NODES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    [line] = refusal(json.dumps(TINY | changes), digits, tmp_path / "run")
    assert re.fullmatch(rf"cannot tell whether \S+ can run this: {re.escape(says)}", line)


@pytest.mark.parametrize(
    ("stated", "limit_s", "checkpoint_after_s"),
    [
        ([], 3600, 30),
        (["--time-limit-min", "2"], 120, 30),
        (["--time-limit-min", "0.5", "--checkpoint-after-s", "0"], 30, 0),
    ],
)
def test_minutes_of_the_time_limit_reach_the_job_as_seconds_and_so_does_the_checkpoint_interval(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: list[str], limit_s: float,
    checkpoint_after_s: float,
) -> None:  # fmt: skip
    given: dict[str, Any] = {}
    signature = inspect.signature(job.run_job)

    def run_job(*values: Any) -> None:
        given.update(signature.bind(*values).arguments)
        for name in OUTPUTS:
            (given["folder"] / name).parent.mkdir(parents=True, exist_ok=True)
            (given["folder"] / name).write_text("{}")

    monkeypatch.setattr(job, "run_job", run_job)
    command = [SCRIPT, "--parameters", json.dumps(TINY), "--data", str(digits), "--out", str(tmp_path / "run"), *stated]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(SCRIPT, run_name="__main__")
    assert (given["time_limit_s"], given["checkpoint_after_s"]) == (limit_s, checkpoint_after_s)
    assert (given["data"], given["folder"]) == (digits, tmp_path / "run")


def test_an_outcome_that_snakemake_deleted_is_put_back_and_a_job_that_slurm_ended_twice_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = {"warmup_steps": 1, "steps": 2, "profiled_steps": 1, "profiler": "none", "device": "cpu"}
    script = {"workload": "script", "command": ["timed.py"], "folder": str(ROOT / "tests" / "script" / "scripts")}
    given, run = json.dumps(script | windows), tmp_path / "run"
    first = launch(given, None, run)  # a script needs no data
    assert first.returncode == 0, first.stderr
    before = (run / "run.json").read_text()
    assert json.loads(before)["outcome"] == "completed"
    (run / "run.json").unlink()
    again = launch(given, None, run, "--attempt", "2")
    assert (again.returncode, "its outcome is kept" in again.stderr) == (0, True), again.stderr
    assert (run / "run.json").read_text() == before

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    lost = launch(given, None, tmp_path / "lost", "--attempt", "3")
    assert lost.returncode == 0, lost.stderr
    written = json.loads((tmp_path / "lost" / "run.json").read_text())
    assert (written["outcome"], written["reason"]) == ("failed", {"code": "job_lost"})
    assert all((tmp_path / "lost" / name).exists() for name in ("steps.csv", "epochs.csv", "trace/captured.json"))
