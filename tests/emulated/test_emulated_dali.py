"""The DALI loader for a GPU: its batches train as those that DALI makes for a CPU do."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus
from multicard.core.files import read_json

NO_DALI = importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.slow,
    pytest.mark.skipif(NO_DALI, reason="needs nvidia-dali-cuda130"),
]

PROGRAM = """
import json, sys
from pathlib import Path
from multicard.launch.job import run_job
from multicard.workloads.vision.parameters import VisionParameters
stated, data, folder = sys.argv[1:]
run_job(VisionParameters(**json.loads(stated)), Path(data), Path(folder), time_limit_s=1200)
"""


def losses(folder: Path) -> list[float]:
    record = read_json(folder / "run.json")
    assert record["outcome"] == "completed", (folder / "log.txt").read_text()
    return pd.read_csv(folder / "steps.csv")["loss"].tolist()


def test_dali_feeds_two_gpus_what_it_feeds_two_processes_on_a_cpu(
    emulated: EmulatedGpus, digits: Path, tmp_path: Path
) -> None:
    job: dict[str, Any] = TINY | {"strategy": "ddp-ds", "devices": 2, "loader": "dali", "profiler": "none"}
    for device in ("cpu", "cuda"):
        arguments = ["-c", PROGRAM, json.dumps(job | {"device": device}), str(digits), str(tmp_path / device)]
        if device == "cuda":
            done = emulated.run(*arguments, limit_s=1300, gpus=2)
        else:
            done = subprocess.run(
                [sys.executable, *arguments], capture_output=True, text=True, timeout=1300, check=False
            )
        assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)
