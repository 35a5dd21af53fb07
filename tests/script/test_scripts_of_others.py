"""Training scripts of others, unchanged, as jobs of this machine's CPUs: they train as they do without the observer.

`MULTICARD_SCRIPTS` names a folder with clones of karpathy/nanoGPT and of pytorch/examples (as pytorch-examples).
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from observed_scripts import has_memory_and_phases
from script.equipment import Script, nanogpt, skip_unless

SCRIPTS = Path(os.environ.get("MULTICARD_SCRIPTS", "none"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rare,
    pytest.mark.skipif(not SCRIPTS.is_dir(), reason="needs scripts of others (MULTICARD_SCRIPTS)"),
]

WINDOWS: dict[str, Any] = {"device": "cpu", "profiler": "none", "warmup_steps": 1, "steps": 3, "profiled_steps": 2}


def files_in(folder: str) -> set[Path]:
    """The files in a script's folder, but for what Python keeps for itself."""
    return {path for path in Path(folder).rglob("*") if "__pycache__" not in path.parts}


def completed(folder: Path, python: str, /, **given: Any) -> tuple[Script, list[dict[str, str]]]:
    """A run that completed and left the folder of the script as it was, and its measured steps."""
    before = files_in(given["folder"])
    run = Script(folder, **WINDOWS | given, python=python).completed()
    assert files_in(given["folder"]) == before
    return run, [step for step in run.steps if step["window"] == "measured"]


def test_imagenet_of_pytorchs_examples(user_python: str, tmp_path: Path) -> None:
    """A DataLoader with a worker, SGD; it asks for no gradients only where it evaluates."""
    skip_unless(user_python, "import torch; torch.accelerator")
    command = ["main.py", "-a", "shufflenet_v2_x0_5", "--dummy", "-b", "2", "-j", "1", "-p", "1", "--epochs", "1"]
    folder = str(SCRIPTS / "pytorch-examples" / "imagenet")
    run, measured = completed(tmp_path, user_python, command=command, folder=folder)
    assert {step["samples"] for step in run.steps} == {"2"}
    assert len(measured) == 3
    has_memory_and_phases(measured)
    observed = run.record.ranks[0].observed
    assert observed.optimizers == ("SGD",)
    assert [(loader.distinct, loader.num_workers) for loader in observed.loaders] == [(True, 1)]
    # 1 281 167 samples (`--dummy`) in batches of 2, of which the last may be smaller.
    assert run.record.steps_per_pass == 640_584
    assert len(re.findall(r"Epoch: \[0\].*?Loss \S+", run.log)) == len(run.steps)


def test_nanogpt(user_python: str, tmp_path: Path) -> None:
    """No loader, accumulation of gradients, a gradient scaler that is off, evaluation before the first update."""
    options = {"device": "cpu", "n_layer": 2, "max_iters": 10, "gradient_accumulation_steps": 3}
    folder, command = nanogpt(SCRIPTS, tmp_path, **options)
    given = {"command": command, "folder": folder, "samples_per_step": 12}
    run, measured = completed(tmp_path / "run", user_python, **given)
    observed = run.record.ranks[0].observed
    assert (observed.optimizers, observed.loaders) == (("AdamW",), ())
    assert (len(run.steps), len(measured)) == (4, 3)
    assert {step["data_s"] for step in run.steps} == {""}  # nothing of it is known without a loader
    has_memory_and_phases(measured, ("backward", "optimizer"))
    line = r"iter \d+: loss \S+,"
    losses = re.findall(line, run.log)
    assert len(losses) == 4  # the script prints the loss of an update after it, so not that of the last one
    assert losses == re.findall(line, run.log_without_observer())[:4]
