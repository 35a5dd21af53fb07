"""What tests of training scripts share: an environment like a user's, without multicard in it, and runs of scripts."""

import csv
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from multicard.launch.job import run_job
from multicard.workloads.script.parameters import ScriptParameters

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 1800
# As short as it can be: each of its windows.
SHORT: dict[str, Any] = {
    "device": "cpu",
    "folder": str(SCRIPTS),
    "warmup_steps": 2,
    "steps": 4,
    "profiled_steps": 2,
    "profiler": "kineto",
}


@pytest.fixture(scope="session")
def user_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has the packages of this one, but for multicard."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    # Path files of a folder that a path file names are not read, so an editable install of multicard is left out, but
    # for the copy of the pipeline that it brings, which is no package.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "packages.pth").write_text("\n".join(packages))
    python = str(folder / "bin" / "python")
    found = subprocess.run(
        [python, "-c", "import torch, importlib.util as u; s = u.find_spec('multicard'); print(s and s.origin)"],
        env=_plain(dict(os.environ)),
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "None", found.stderr
    return python


class Script:
    """A run of a script, and what it left.

    Attributes
    ----------
    record, steps, log
        Of run.json; rows of steps.csv; what the script printed.
    """

    def __init__(self, folder: Path, **given: Any) -> None:
        self.folder = folder
        with patch.dict(os.environ, _plain(dict(os.environ)), clear=True):  # PYTHONPATH may name this package
            self.record = run_job(ScriptParameters(**SHORT | given), None, folder, time_limit_s=LIMIT_S)
        self.log = (folder / "log.txt").read_text()
        assert self.record["outcome"] == "completed", f"{self.record['reason']}\n{self.log}"
        with (folder / "steps.csv").open() as file:
            self.steps = list(csv.DictReader(file))

    def of_rank(self, rank: int) -> list[dict[str, str]]:
        """Steps of one rank, in order."""
        return [step for step in self.steps if int(step["rank"]) == rank]

    def log_without_observer(self) -> str:
        """What the same command prints where nothing observes it."""
        ended = subprocess.run(
            self.record["command"],
            cwd=self.record["parameters"]["folder"],
            env=_plain(dict(os.environ)) | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout


def losses(log: str) -> list[str]:
    """Every loss that a script printed, digit by digit."""
    return re.findall(r"\bloss:? ?(\d[\d.e-]*\d)", log)


def _plain(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which the observer is not found."""
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "MULTICARD_OBSERVE")}
