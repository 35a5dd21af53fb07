"""Runs scripts under the observer as jobs run them: a folder first on PYTHONPATH, and a variable."""

import csv
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import multicard
from job_files import make_job_file
from multicard.core.layout import PHASES
from multicard.observe import OBSERVE, OBSERVER_SITE

LIMIT_S = 900  # of a script, on a machine that does other things too
WINDOWS = {"warmup_steps": 1, "measured_steps": 3, "profiled_steps": 2}
STEPS = 8  # of these, with two that settle the profiler

# Up to here most scripts are the same: 32 samples in batches of 8, so 4 updates in a pass.
HEAD = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
def loss_of(x, y, model=model):
    return nn.functional.cross_entropy(model(x), y)
"""

# Imports torch once, and runs each script in a process of its own that it forks.
# As in frozen_imports.py, what it imported is no garbage.
SERVER = """
import gc, importlib, json, os, runpy, signal, sys
import torch
import torch._dynamo  # as the first optimizer does, at a second each
gc.collect(), gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    for name in asked["imported"]:
        importlib.import_module(name)
        gc.freeze()
    if os.fork() == 0:
        signal.alarm(LIMIT_S)
        log = os.open(asked["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2), os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["MULTICARD_OBSERVE"] = asked["job"]
        os.chdir(asked["folder"])
        sys.argv = asked["command"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
""".replace("LIMIT_S", str(LIMIT_S))


@dataclass
class Observed:
    """What a script under the observer left."""

    exit_code: int
    output: str
    ranks: list[dict[str, Any]]
    processes: list[dict[str, Any]]
    steps: list[list[dict[str, str]]] = field(default_factory=list)

    @property
    def rank(self) -> dict[str, Any]:
        """Record of the only rank."""
        [record] = self.ranks
        return record

    def of(self, window: str, rank: int = 0) -> list[dict[str, str]]:
        """Steps of a window."""
        return [step for step in self.steps[rank] if step["window"] == window]


def has_memory_and_phases(
    steps: Sequence[dict[str, str]],
    phases: Sequence[str] = ("data", "forward", "backward", "optimizer"),
    least_bytes: float = 100e6,
) -> None:
    """Memory and these phases of every step are known, and the phases are parts of the step.

    On a CPU PyTorch alone is resident with more than `least_bytes`.
    """
    assert steps
    for step in steps:
        assert int(step["peak_memory_bytes"]) > least_bytes
        times = [float(step[f"{phase}_s"]) for phase in phases]
        assert min(times) > 0
        assert sum(float(step[f"{phase}_s"] or 0) for phase in PHASES) <= float(step["duration_s"]) + 1e-6


def printed(output: str, name: str) -> list[str]:
    """The words that follow a name."""
    [line] = [line for line in output.splitlines() if line.startswith(f"{name} ")]
    return line.split()[1:]


def after_head(script: str) -> str:
    """The script after its head, with the indent of its lines taken off."""
    return HEAD + textwrap.dedent(script)


def site(folder: Path) -> Path:
    """Make the folder that is put first on PYTHONPATH."""
    folder.mkdir()
    (folder / "sitecustomize.py").symlink_to(OBSERVER_SITE)
    (folder / "multicard").symlink_to(Path(multicard.__file__).parent)
    return folder


def environment(
    folder: Path, job: Path, before: Path | None = None, source: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables of an observed process; `before`: what PYTHONPATH was."""
    places = os.pathsep.join(str(place) for place in (folder, before) if place)
    return {**source, "PYTHONPATH": places, OBSERVE: str(job), "OMP_NUM_THREADS": "1"}


def write_job(tmp_path: Path, script: str, **stated: Any) -> tuple[Path, list[str]]:
    """Write script.py, and job.json in the folder `scratch`; give the latter and a command that names the former."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    of_job = {name: stated.pop(name) for name in ("profiler", "time_limit_s") if name in stated}
    job = make_job_file(scratch, **of_job, **WINDOWS | stated)
    return job.write(), [str(tmp_path / "script.py")]


def left(tmp_path: Path, exit_code: int, output: str) -> Observed:
    """Read what was left."""
    scratch = tmp_path / "scratch"

    def records(pattern: str) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(scratch.glob(pattern))]

    steps = []
    for file in sorted(scratch.glob("steps.csv.rank*")):
        with file.open(newline="") as opened:
            steps.append(list(csv.DictReader(opened)))
    return Observed(exit_code, output, records("rank.json.rank*"), records("process.json.*"), steps)


def run(
    tmp_path: Path, script: str, command: Sequence[str] = (), before: Path | None = None, **stated: Any
) -> Observed:
    """Run a script as a program of its own; `command` comes before it, and `before` was PYTHONPATH."""
    job, words = write_job(tmp_path, script, **stated)
    done = subprocess.run(
        [sys.executable, *command, *words],
        env=environment(site(tmp_path / "observer"), job, before), cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return left(tmp_path, done.returncode, done.stdout)


class Server:
    """A process that has torch, and runs scripts."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def run(self, tmp_path: Path, script: str, imported: Sequence[str] = (), **stated: Any) -> Observed:
        """Run a script in a process of its own, for which modules are `imported` before, as for those that follow."""
        job, command = write_job(tmp_path, script, **stated)
        log = tmp_path / "log.txt"
        return left(tmp_path, self.start(job, command, tmp_path, log, imported), log.read_text())

    def start(
        self, job: Path | str, command: Sequence[str], folder: Path | str, log: Path, imported: Sequence[str] = ()
    ) -> int:
        """Run a script and its arguments as the process of a job, in a folder; give its exit code."""
        asked = {"job": str(job), "command": list(command), "folder": str(folder), "log": str(log)}
        asked["imported"] = list(imported)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def serving(
    folder: Path, python: Path | str = sys.executable, variables: Mapping[str, str] = os.environ, observed: bool = True
) -> Iterator[Server]:
    """Start the process that runs scripts, by this interpreter and with these variables, under the observer or not."""
    job, _ = write_job(folder, "")
    own = environment(site(folder / "observer"), job, source=variables)
    if not observed:
        own = {name: value for name, value in own.items() if name not in ("PYTHONPATH", OBSERVE)}
    command = [str(python), "-c", SERVER]
    with subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Server(process)
        process.terminate()  # a worker that another test forked may hold its standard input open


def server_fixture(scope: Literal["module", "session"], observed: bool) -> Any:
    """A fixture that runs scripts, under the observer or without it."""

    @pytest.fixture(scope=scope)
    def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with serving(tmp_path_factory.mktemp("server"), observed=observed) as process:
            yield process

    return started


server = server_fixture("session", observed=True)
