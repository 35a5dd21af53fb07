"""Training scripts of others, unchanged, as jobs of this machine's CPUs: they train as they do without the observer.

`MULTICARD_SCRIPTS` names a folder with clones of karpathy/nanoGPT and of pytorch/examples (as pytorch-examples).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forked_ranks import FORKS, PRELOADED
from observed_scripts import has_memory_and_phases
from script.equipment import Script, be_plain_rank

SCRIPTS = Path(os.environ.get("MULTICARD_SCRIPTS", "none"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPTS.is_dir(), reason="needs scripts of others (MULTICARD_SCRIPTS)"),
]

WINDOWS: dict[str, Any] = {"device": "cpu", "profiler": "none", "warmup_steps": 1, "steps": 3, "profiled_steps": 2}


def measured(run: Script, rank: int = 0) -> list[dict[str, str]]:
    """Steps of the measured window."""
    return [step for step in run.of_rank(rank) if step["window"] == "measured"]


def completed(folder: Path, python: str, /, **given: Any) -> Script:
    """A run by the user's own interpreter that completed and left the folder of the script as it was."""
    run = Script(folder, **WINDOWS | given, python=python).completed()
    assert run.record["folder_changes"] == {"count": 0, "names": []}
    return run


def first_printed(count: int, line: str, command: Sequence[str], folder: str, log: Path) -> list[str]:
    """The first so many things that fit `line`, of what a script prints in a forked process that nothing observes."""
    FORKS.set_forkserver_preload(["forked_ranks", *PRELOADED])
    log.touch()
    process = FORKS.Process(target=be_plain_rank, args=(0, list(command), 1, 0, folder, str(log)))
    process.start()
    is_alive, found = True, []
    while is_alive and len(found) < count:
        process.join(0.1)
        is_alive = process.is_alive()
        found = re.findall(line, log.read_text().rpartition("\n")[0])
    process.kill()
    process.join()
    return found[:count]


IMAGENET = str(SCRIPTS / "pytorch-examples" / "imagenet")
ON_DUMMIES = ["main.py", "-a", "shufflenet_v2_x0_5", "--dummy", "-b", "2", "-j", "1", "-p", "1", "--epochs", "1"]


def test_imagenet_of_pytorchs_examples_trains_apart_on_cpus(user_python: str, tmp_path: Path) -> None:
    """It has a process group and a distributed sampler, and averages no gradients there."""
    command = [*ON_DUMMIES, "--dist-url", "env://", "--dist-backend", "gloo"]
    run = Script(
        tmp_path, **WINDOWS, python=user_python, command=command, folder=IMAGENET, launcher="torchrun", devices=2
    )
    assert (run.record["outcome"], run.record["reason"]) == ("failed", {"code": "trained_apart", "ranks": 2})


def test_imagenet_of_pytorchs_examples(user_python: str, tmp_path: Path) -> None:
    """A DataLoader with a worker, SGD; it asks for no gradients only where it evaluates."""
    command, folder = [*ON_DUMMIES, "--seed", "1"], IMAGENET
    run = completed(tmp_path, user_python, command=command, folder=folder)
    assert {step["samples"] for step in run.steps} == {"2"}
    assert len(measured(run)) == 3
    has_memory_and_phases(measured(run))
    observed = run.record["ranks"][0]["observed"]
    assert observed["optimizers"] == ["SGD"]
    assert [(loader["distinct"], loader["num_workers"]) for loader in observed["loaders"]] == [(True, 1)]
    # 1 281 167 samples (`--dummy`) in batches of 2, of which the last may be smaller.
    assert run.record["steps_per_pass"] == 640_584
    line = r"Epoch: \[0\].*?Loss (\S+)"
    losses = re.findall(line, run.log)
    assert len(losses) == len(run.steps)
    assert losses == first_printed(len(losses), line, command, folder, tmp_path / "plain.txt")


def test_nanogpt(user_python: str, tmp_path: Path) -> None:
    """No loader, accumulation of gradients, a gradient scaler that is off, evaluation before the first update."""
    folder = shutil.copytree(SCRIPTS / "nanoGPT", tmp_path / "nanoGPT")
    data = folder / "data" / "shakespeare_char"
    (data / "input.txt").write_text("To be, or not to be: that is the question.\n" * 99)
    subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
    options = {
        "device": "cpu", "compile": False, "eval_iters": 1, "log_interval": 1, "block_size": 16, "batch_size": 4,
        "n_layer": 2, "n_head": 2, "n_embd": 32, "max_iters": 10, "gradient_accumulation_steps": 3,
    }  # fmt: skip
    command = ["train.py", "config/train_shakespeare_char.py"]
    command += [f"--{name}={value}" for name, value in options.items()]
    given = {"command": [*command, "--out_dir={run_dir}"], "folder": str(folder), "samples_per_step": 12}
    run = completed(tmp_path / "run", user_python, **given)
    observed = run.record["ranks"][0]["observed"]
    assert (observed["optimizers"], observed["loaders"]) == (["AdamW"], [])
    assert (len(run.steps), len(measured(run))) == (8, 3)
    assert {step["data_s"] for step in run.steps} == {""}  # nothing of it is known without a loader
    has_memory_and_phases(measured(run), ("backward", "optimizer"))
    line = r"iter \d+: loss \S+,"
    losses = re.findall(line, run.log)
    assert len(losses) == 8  # the script prints the loss of an update after it, so not that of the last one
    command.append(f"--out_dir={tmp_path / 'plain'}")
    assert losses == first_printed(8, line, command, str(folder), tmp_path / "plain.txt")


def test_a_script_that_needs_gpus_ends_by_itself_and_is_told_from_one_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = str(SCRIPTS / "pytorch-examples" / "distributed" / "ddp")
    run = Script(tmp_path, **WINDOWS, command=["example.py"], folder=folder, devices=2)
    assert (run.record["outcome"], run.record["reason"]["code"]) == ("failed", "no_steps"), run.record["reason"]
