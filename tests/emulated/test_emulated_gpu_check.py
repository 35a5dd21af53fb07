"""The GPU check, from its configuration to what is to be sent, on two emulated GPUs."""

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from emulated_jobs import GPU_NAME, LIMIT_S, copy_project, environment

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

# Its own configuration takes an hour here (docs/gpu-check.md has the results); these are two of its scenarios.
SMALL: dict[str, Any] = {
    "results": "results",
    "datasets": {"digits": {"source": "digits", "limit": 200}},
    "fixed": TINY | {"device": "cuda", "profiler": "kineto", "strategy": "ddp-ds", "devices": 2, "steps_per_epoch": 6},
    "scenarios": {
        "strategies": {"question": "?", "fixed": {"binding": "numa"}, "figures": ["step_breakdown"]},
        "out_of_memory": {"question": "?", "fixed": {"image_size": 224}, "figures": ["step_breakdown"]},
    },
}


def test_the_check_runs_judges_and_packs(emulated: EmulatedGpus, tmp_path: Path) -> None:
    copy_project(tmp_path, "tests/gpu")
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    # Of the spared memory a context takes 300 MiB.
    done = subprocess.run(
        [emulated.python, "tests/gpu/check.py", "--config", "small.yaml", "--spared-mib", "330", "--no-tests"],
        cwd=tmp_path, env=environment(emulated, gpus=2), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert "2 runs, 2 to do" in done.stdout
    sent = tmp_path / "results" / "send"
    table = pd.read_csv(sent / "check.csv").set_index("scenario")
    assert table["result"].to_dict() == {"strategies": "passed", "out_of_memory": "passed"}
    assert table["outcome"].to_dict() == {"strategies": "completed", "out_of_memory": "out_of_memory"}
    assert table.loc["strategies", "communication_per_step"] > 0
    assert GPU_NAME in (sent / "check.md").read_text()
    with tarfile.open(sent / "runs.tar.gz") as archive:
        assert len([name for name in archive.getnames() if name.endswith("run.json")]) == 2
