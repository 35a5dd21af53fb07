"""The tests' cluster, and copies of the project whose jobs go there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster
import pytest
import yaml

from conftest import MADE, ROOT, add_digits, ran
from multicard.config.read_run import read_run
from multicard.runs.record import RunRecord

# Partitions for some tests each, by the memory of their nodes (MB): small ones, and such for several runs at a time.
PARTITIONS = {"gpu": 8192, "scripts": 64_000, "ended": 64_000}
SMALL, FOR_SCRIPTS, FOR_ENDED = (("n1", "n2"), ("n3", "n4"), ("n5", "n6"))
CONFIG = "config/tiny.yaml"
# A script that takes memory, and an experiment without scenarios, whose runs are as short as they can be.
HOG = str(ROOT / "tests/slurm/hog.py")
HOGS: dict[str, Any] = {
    "time_limit_min": 10,
    "timing": "shared",
    "fixed": {
        "workload": "script", "launcher": "python", "device": "cpu", "profiler": "none",
        "warmup_steps": 1, "steps": 6, "profiled_steps": 2,
    },
}  # fmt: skip
LIMIT_S = 1800
# The nodes have for Python as many CPUs as for Slurm: a machine of two cores trains eight processes, slowly.
CPUS = "import os\nos.sched_getaffinity = lambda process: set(range(16))\n"
# Snakemake's plugin looks at its jobs again after 1 s, 11 s, 21 s and so on, which no option changes.
LOOK_OFTEN = """
import sys
if "--profile" in sys.orig_argv:
    import asyncio
    sleep = asyncio.sleep
    asyncio.sleep = lambda delay, result=None: sleep(min(delay, 2), result)
"""


@contextmanager
def slurm_cluster(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of the cluster, which the workers of xdist share: a machine has one place to configure one."""
    base = factory.getbasetemp()
    try:
        with cluster.shared(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, PARTITIONS) as folder:
            yield folder
    except cluster.NoCluster as reason:
        pytest.skip(f"no Slurm: {reason}")


def project(
    folder: Path,
    experiment: dict[str, Any],
    partition: str = "gpu",
    digits: Path | None = None,
    sitecustomize: str = "",
    submits: bool = True,
) -> Path:
    """Copy the project and give it an experiment, a partition, and an sbatch that notes what it is asked for.

    Without `digits` it prepares them itself. `sitecustomize`: what every Python of the pipeline and its jobs executes
    when it starts. `submits`: whether that sbatch goes on to submit, or only notes and fails.
    """
    shutil.copytree(ROOT, folder, symlinks=True, ignore=lambda _, names: {*MADE, "__pycache__"} & set(names))
    if digits:
        add_digits(folder, digits)
    (folder / CONFIG).write_text(yaml.safe_dump({"results": "results"} | experiment, sort_keys=False))
    profile = folder / "profiles/slurm/config.yaml"
    text = profile.read_text()
    assert text.count("slurm_partition: gpu\n") == 1
    profile.write_text(text.replace("slurm_partition: gpu\n", f"slurm_partition: {partition}\n"))
    (folder / "cpus").mkdir()
    (folder / "cpus/sitecustomize.py").write_text(CPUS + LOOK_OFTEN + sitecustomize)
    sbatch = folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    then = f'exec {shutil.which("sbatch")} "$@"' if submits else "exit 1"
    sbatch.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/asked"\n{then}\n')
    sbatch.chmod(0o755)
    return folder


def command(*arguments: str) -> list[str]:
    here = [str(Path(sys.prefix) / "bin" / "snakemake"), "--profile", "slurm", "--configfile", CONFIG]
    return [*here, "--latency-wait", "10", "--max-status-checks-per-second", "1", *arguments]


def environment(folder: Path) -> dict[str, str]:
    python_path = os.pathsep.join(filter(None, [f"{folder}/cpus", os.environ.get("PYTHONPATH")]))
    return os.environ | {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": python_path}


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(*command(*arguments), cwd=folder, env=environment(folder))


def multicard(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = [str(Path(sys.prefix) / "bin/multicard"), name, CONFIG, "--profile", "profiles/slurm"]
    return ran(*here, *arguments, cwd=folder, env=environment(folder))


def planned_runs(folder: Path) -> list[str]:
    dry = snakemake(folder, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    return sorted(re.findall(r"^Job \d+: run (.+)$", dry.stdout + dry.stderr, re.M))


def record(folder: Path, run: str) -> RunRecord:
    return read_run(folder / "results/runs" / run)


def asked_for(folder: Path, run: str) -> str:
    return next(line for line in (folder / "asked").read_text().splitlines() if f"_{run} " in line)
