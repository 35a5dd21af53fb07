"""Training scripts of others, unchanged, as the jobs of this machine's CPUs: the folder MULTICARD_SCRIPTS has them."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from multicard.core.reasons import describe_reason
from multicard.launch.job import run_job
from multicard.workloads.script.parameters import ScriptParameters

SCRIPTS = Path(os.environ.get("MULTICARD_SCRIPTS", "none"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPTS.is_dir(), reason="needs scripts of others (MULTICARD_SCRIPTS)"),
]

WINDOWS: dict[str, Any] = {"device": "cpu", "profiler": "none", "warmup_steps": 1, "steps": 3, "profiled_steps": 1}


def measured(p: ScriptParameters, run: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    record = run_job(p, None, run, 900)
    assert record["outcome"] == "completed", (record["reason"], (run / "log.txt").read_text())
    assert record["folder_changes"] == {"count": 0, "names": []}
    steps = pd.read_csv(run / "steps.csv")
    return record, steps[steps["window"] == "measured"]


@pytest.mark.parametrize("devices", [1, 2])
def test_the_imagenet_example_of_pytorch(devices: int, tmp_path: Path) -> None:
    """A DataLoader with a worker, a distributed sampler, SGD; it averages no gradients on CPUs."""
    command = ["main.py", "-a", "shufflenet_v2_x0_5", "--dummy", "-b", "2", "-j", "1", "--epochs", "1"]
    command += ["--dist-url", "env://", "--dist-backend", "gloo"]
    folder = str(SCRIPTS / "pytorch-examples" / "imagenet")
    p = ScriptParameters(command=command, folder=folder, launcher="torchrun", devices=devices, **WINDOWS)
    record, steps = measured(p, tmp_path)
    assert (steps["samples"] == 2).all()
    assert steps.groupby("rank").size().to_dict() == dict.fromkeys(range(devices), 3)
    assert record["ranks"][0]["observed"]["optimizers"] == ["SGD"]
    assert record["ranks"][0]["observed"]["loaders"][0]["distinct"] is True
    # 1 281 167 samples (`--dummy`), whose shares are rounded up, in batches of 2, of which the last may be smaller.
    assert record["steps_per_pass"] == {1: 640_584, 2: 320_292}[devices]


def test_nanogpt(tmp_path: Path) -> None:
    """No loader, accumulation of gradients, a gradient scaler that is off."""
    folder = tmp_path / "nanoGPT"
    shutil.copytree(SCRIPTS / "nanoGPT", folder)
    data = folder / "data" / "shakespeare_char"
    letters = random.Random(0).choices("abcdefgh \n", k=20_000)
    (data / "input.txt").write_text("".join(letters))
    subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
    command = ["train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=1"]
    command += ["--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=3", "--n_layer=1", "--n_head=1"]
    command += ["--n_embd=16", "--out_dir={run_dir}"]
    p = ScriptParameters(command=command, folder=str(folder), samples_per_step=12, **WINDOWS)
    record, steps = measured(p, tmp_path / "run")
    assert record["ranks"][0]["observed"]["optimizers"] == ["AdamW"]
    assert steps["data_s"].isna().all()  # nothing of it is known without a loader
    assert len(steps) == 3


def test_a_script_that_needs_gpus_ends_by_itself_and_is_told_from_one_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = str(SCRIPTS / "pytorch-examples" / "distributed" / "ddp")
    p = ScriptParameters(command=["example.py"], folder=folder, devices=2, **WINDOWS)
    record = run_job(p, None, tmp_path, 900)
    assert (record["outcome"], record["reason"]["code"]) == ("failed", "no_steps"), describe_reason(record["reason"])
