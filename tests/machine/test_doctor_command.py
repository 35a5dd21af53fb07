"""`multicard doctor` as a user types it: on this machine as it is, and with fakes of tools that are not here."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from faked_programs import GARBAGE, Fake, place, put, sinfo

from conftest import ran
from console import multicard
from multicard.core import system
from multicard.machine import doctor as checked
from multicard.machine.probe import TorchFacts, facts_here

SLURM = ("sbatch", "sinfo", "squeue", "sacct")
CHECKS = ("Python", "torch", "NCCL", "GPUs", "nsys", "Slurm", "results folder")

Doctor = Callable[..., tuple[int, dict[str, Any]]]


def config(folder: Path, device: str, **more: object) -> Path:
    path = folder / "mine.yaml"
    scenario = {"question": "?", "fixed": {"device": device}, "vary": {"precision": ["fp32", "bf16"]}}
    stated = {"results": str(folder / "results"), "scenarios": {"a": scenario | {"figures": ["step_breakdown"]}}}
    path.write_text(yaml.safe_dump(stated | more))
    return path


@pytest.mark.slow
def test_this_machine_is_examined_and_nothing_is_left_behind(tmp_path: Path) -> None:
    shown = ran(Path(sys.prefix, "bin/multicard"), "doctor", cwd=tmp_path)
    for name in CHECKS:
        assert f"  {name} " in shown.stdout, shown.stderr
    assert shown.returncode == (0 if shown.stdout.startswith("Ready") else 1)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def facts() -> TorchFacts:
    return facts_here()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (tmp_path / "tools").mkdir()
    return place(tmp_path / "tools", monkeypatch, "nvidia-smi", "nsys", *SLURM)


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: TorchFacts) -> Doctor:
    """Examines this machine and gives the exit code and what was found, by check."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checked, "facts_here", lambda: facts)

    def examined(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
        done = multicard("doctor", "--json", *arguments)
        told = json.loads(done.stdout)
        assert all(set(check) == {"check", "found", "verdict", "do"} for check in told["checks"])
        assert told["errors"] == sum(check["verdict"] == "error" for check in told["checks"])
        return done.returncode, {check["check"]: check for check in told["checks"]}

    return examined


@pytest.mark.slow
def test_runs_on_gpus_need_gpus_or_slurm(doctor: Doctor, fake: Fake, tmp_path: Path) -> None:
    asked = config(tmp_path, "cuda")
    code, without = doctor(asked)
    assert (code, without["runs"]["verdict"]) == (1, "error")
    assert without["runs"]["found"] == "0 of 2 can run here; 2: needs a CUDA GPU, none found"
    for tool in SLURM:
        fake(tool, sinfo(["gpu|up|4|gpu:4"]))
    assert doctor(asked)[1]["runs"]["verdict"] == "warning"
    code, on_cpus = doctor(config(tmp_path, "cpu"))
    assert (code, on_cpus["runs"]["found"]) == (0, "2 of 2 can run here")
    assert set(on_cpus) >= set(CHECKS)


@pytest.mark.slow
def test_doctor_and_runs_give_one_answer_about_a_cluster(doctor: Doctor, fake: Fake, tmp_path: Path) -> None:
    asked = config(tmp_path, "cuda", fixed={"strategy": "ddp", "devices": 8, "nodes": 2})
    cluster = {"cpus_per_node": "16", "gpus_per_node": "4", "nodes": "2"}
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/config.yaml").write_text(yaml.safe_dump({"config": {"cluster": cluster}}))
    arguments = (str(asked), "--profile", "profile")
    found = doctor(*arguments)[1]["runs"]
    assert (found["verdict"], found["found"]) == ("ok", "2 of 2 can run on the cluster")
    assert "2 runs: 2 would run (" in multicard("run", "--dry-run", *arguments).stdout


@pytest.mark.slow
def test_tools_that_talk_nonsense_cost_no_traceback(doctor: Doctor, fake: Fake, tmp_path: Path) -> None:
    for tool in ("nvidia-smi", "nsys", *SLURM):
        fake(tool, GARBAGE)
    shown = multicard("doctor", config(tmp_path, "cpu"))
    assert shown.returncode == 1
    assert "nsys --version prints no version" in " ".join(shown.stdout.split())
    assert shown.stdout.startswith("Not ready: ")
    assert shown.stderr == ""
    assert "\x1b" not in shown.stdout and "\0" not in shown.stdout


def test_what_cannot_be_read_is_one_line() -> None:
    for option in ([], ["--profile"]):
        [line] = multicard("doctor", *option, "none.yaml").stderr.splitlines()
        assert "none.yaml" in line


def test_a_useless_tool_is_one_line_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    put(tmp_path, "endless", "exec yes")
    answer = system.ask(["endless"], limit_s=30)
    assert len(answer.output) == system.READ_BYTES
    assert answer.problem.startswith("endless ended with ")
    (tmp_path / "broken").write_bytes(b"\x7fELF no program")
    (tmp_path / "broken").chmod(0o755)
    assert system.ask(["broken"]).problem == "broken cannot be started: Exec format error"
    assert system.ask(["missing-tool"]).problem == "missing-tool is not on the PATH"
    put(tmp_path, "hanging", f"sleep 600 &\necho $! > {tmp_path}/child; wait")
    assert system.ask(["hanging"], limit_s=0.5).problem == "hanging did not end within 0.5 s"
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 120
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
