"""Copies of the project with a small experiment, and the commands that run their pipelines."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import forked_python
from conftest import MADE, ROOT, path_without_nsys, ran

CONFIG = "config/tiny.yaml"
LIMIT_S = 1800

# `multicard` as installed would run the pipeline of the clone, not that of the copy.
COMMAND_OF_COPY = f"""#!{sys.executable}
from pathlib import Path
from multicard.cli import _pipeline, main
_pipeline.pipeline_folder = Path.cwd
main()
"""


def project(folder: Path, experiment: dict[str, Any]) -> Path:
    """Copy the project, without what was made in it, and give the copy this experiment and this environment."""
    shutil.copytree(ROOT, folder, ignore=lambda _, names: {*MADE, "__pycache__"} & set(names))
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "bin").mkdir()
    (folder / "bin/snakemake").symlink_to(Path(sys.prefix) / "bin" / "snakemake")
    (folder / "bin/multicard").write_text(COMMAND_OF_COPY)
    (folder / "bin/multicard").chmod(0o755)
    write_experiment(folder, experiment)
    return folder


def write_experiment(folder: Path, experiment: dict[str, Any]) -> None:
    (folder / CONFIG).write_text(yaml.safe_dump({"results": "results"} | experiment, sort_keys=False))


def environment(nsys: bool = False) -> dict[str, str]:
    return os.environ | {"PATH": os.environ["PATH"] if nsys else path_without_nsys()}


def make(folder: Path, target: str = "demo") -> subprocess.CompletedProcess[str]:
    """Make the target with this environment, whatever its age (`-o`), as if no other make had started this one."""
    command = ["make", "--no-print-directory", "-o", ".venv/ready", target, f"CONFIG={CONFIG}", "BIN=bin"]
    return ran(*command, cwd=folder, env=environment())


def snakemake(
    folder: Path, *arguments: str, config: str = CONFIG, nsys: bool = False, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    local = ("--profile", "profiles/local", "--configfile", config)
    given = environment(nsys) | dict(variables)
    return forked_python.snakemake(folder, *local, *arguments, environment=given, limit_s=LIMIT_S)


def planned(folder: Path, *arguments: str) -> list[str]:
    """Return the messages of the jobs that a dry run would start, sorted."""
    dry = snakemake(folder, "--dry-run", *arguments)
    assert dry.returncode == 0, dry.stderr
    return sorted(re.findall(r"^Job \d+: (.+)$", dry.stdout + dry.stderr, re.M))
