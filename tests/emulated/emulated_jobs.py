"""Jobs and other programs of this project on emulated GPUs, and their references on a CPU."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import ROOT, path_without_nsys, ran
from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run
from multicard.core.reasons import describe_reason

HERE = Path(__file__).parent
GPU_NAME = "Emulated GPU (synthetic)"
LIMIT_S = 3600  # of all jobs of a request
VISION = ("multicard.programs.vision.train", "same_numbers", "torch._dynamo")  # which every optimizer imports
LLM = (
    "multicard.programs.llm.train", "datasets", "omegaconf", "same_numbers", "torch._dynamo",
    "torch.distributed.checkpoint", "torchvision", "networkx", "torch._inductor.decomposition",
)  # fmt: skip
# Its import asks for the GPU, and a process that has done so cannot be forked.
LLM_ON_CPU = (*LLM, "torchtune.training", "torchtune.models.llama3")
# What is stated, as changed sources are, this checkout, and what the tests share.
PLACES = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT / "tests"), str(HERE)]
PATHS = os.pathsep.join(PLACES)


@dataclass(frozen=True)
class Job:
    """A job for `run_jobs.py`; `program` is a module that takes the place of the workload's."""

    parameters: Mapping[str, Any]
    data: Path
    folder: Path
    model: Path | None = None
    program: str | None = None


def asked_for(request: pytest.FixtureRequest) -> list[str]:
    """The runs, by the parameter `name`, that those tests of a module ask for which were selected."""
    selected = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return list(dict.fromkeys(item.callspec.params["name"] for item in selected))


def copy_project(folder: Path, *more: str) -> None:
    """Copy what Snakemake runs, and more parts of the project, without the results that it ships."""
    for part in ("workflow", "profiles", "resources", *more):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "recorded"))


def run_on_gpus(machine: EmulatedGpus, jobs: Sequence[Job], preload: Sequence[str] = VISION, **settings: Any) -> None:
    _run(machine.python, jobs, preload, environment(machine, **settings), on_gpus=True)


def run_on_cpu(jobs: Sequence[Job], preload: Sequence[str] = VISION) -> None:
    _run(sys.executable, jobs, preload, os.environ | {"PATH": path_without_nsys(), "PYTHONPATH": PATHS})


def steps_of(folder: Path, last: int | None = None) -> pd.DataFrame:
    """The steps of a run, which must have completed, of each rank up to the step `last`."""
    record = read_run(folder)
    log = (folder / "log.txt").read_text()
    assert record.outcome == "completed", f"{describe_reason(record.reason)}\n{log[-3000:]}"
    steps = pd.read_csv(folder / "steps.csv")
    return steps if last is None else steps[steps["step"] <= last].reset_index(drop=True)


def environment(machine: EmulatedGpus, **settings: Any) -> dict[str, str]:
    """Environment of a program on emulated GPUs, which finds this checkout and what the tests share."""
    return machine.environment(PYTHONPATH=PATHS, **settings)


def run_program(
    machine: EmulatedGpus, *arguments: Any, cwd: Path | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    return ran(machine.python, *arguments, cwd=cwd, env=environment(machine, **settings), limit_s=LIMIT_S)


def _run(
    python: Path | str, jobs: Sequence[Job], preload: Sequence[str], variables: Mapping[str, str], on_gpus: bool = False
) -> None:
    """Run jobs one after the other; whatever their outcome, each leaves its run directory."""
    with tempfile.TemporaryDirectory() as scratch:
        request = Path(scratch) / "request.json"
        asked = {"preload": preload, "on_gpus": on_gpus, "jobs": [asdict(job) for job in jobs]}
        request.write_text(json.dumps(asked, default=str))
        # As a file, the program would be loaded again by every rank that is forked.
        program = f"from run_jobs import main; main({str(request)!r})"
        done = ran(python, "-c", program, env=dict(variables), limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
