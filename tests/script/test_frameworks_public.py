"""Training scripts of others, as they were published: torchtune's own command, and two public repositories."""

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from multicard.experiment.models import Model
from multicard.workloads.llm.prepare_model import prepare_model
from script.equipment import Script, losses

PUBLISHED = Path(os.environ.get("MULTICARD_SCRIPTS", "no folder named"))

pytestmark = pytest.mark.slow
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(),
    reason="set MULTICARD_SCRIPTS to a folder with nanoGPT and pytorch-examples (docs/own-training-frameworks.md)",
)


def samples(run: Script, window: str = "measured") -> set[str]:
    return {step["samples"] for step in run.steps if step["window"] == window}


def observed(run: Script) -> dict[str, Any]:
    [rank] = run.record["ranks"]
    return rank["observed"]


def test_torchtune_by_its_own_command(user_python: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    prepare_model("tiny", Model(architecture="tiny"), model, ROOT / "resources")
    run = Script(
        tmp_path / "run",
        command=(
            *("-m", "torchtune._cli.tune", "run", "lora_finetune_single_device", "--config", "tune_lora.yaml"),
            *(f"model_dir={model}", f"data_files={ROOT / 'resources' / 'text' / 'instructions.jsonl'}"),
            "output_dir={run_dir}/out",
        ),
        python=user_python,
        launcher="command",
    )
    assert samples(run) == {"8"}  # a batch of 4, two of them in a step
    assert observed(run)["optimizers"] == ["AdamW"]
    [loader] = observed(run)["loaders"]
    assert loader["kind"] == "StatefulDataLoader"
    # The first update ends no step, and the loss of the last is not printed before the script is ended.
    printed = losses(run.log)
    assert len(printed) == len(run.steps)
    assert printed == losses(run.log_without_observer())[: len(printed)]


@published
def test_the_imagenet_example_of_pytorch(user_python: str, tmp_path: Path) -> None:
    run = Script(
        tmp_path / "run",
        folder=str(PUBLISHED / "pytorch-examples" / "imagenet"),
        command=("main.py", "-a", "mobilenet_v2", "--dummy", "-b", "8", "-j", "1", "--epochs", "1"),
        python=user_python,
        loader_cpus=1,
    )
    assert samples(run) == {"8"}
    assert [loader["num_workers"] for loader in observed(run)["loaders"]] == [1]
    assert all(float(step["data_s"]) > 0 for step in run.steps if step["window"] == "measured")


@published
def test_nanogpt_reads_no_loader_so_its_samples_are_stated(user_python: str, tmp_path: Path) -> None:
    folder = tmp_path / "nanoGPT"
    shutil.copytree(PUBLISHED / "nanoGPT", folder, copy_function=shutil.copyfile)
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755)
    text = folder / "data" / "shakespeare_char" / "input.txt"  # else it downloads one
    text.write_text("".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))))
    subprocess.run([user_python, "prepare.py"], cwd=text.parent, check=True, capture_output=True)

    given: dict[str, Any] = {
        "folder": str(folder),
        "command": (
            *("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--log_interval=1"),
            *("--eval_iters=1", "--block_size=32", "--batch_size={batch_size}", "--gradient_accumulation_steps=2"),
            *("--n_layer=2", "--n_head=2", "--n_embd=32", "--out_dir={run_dir}/out", "--max_iters=30"),
        ),
        "python": user_python,
        "args": {"batch_size": 4},
    }
    run = Script(tmp_path / "unstated", **given)
    assert samples(run) == {""}
    assert observed(run)["samples_from"] is None
    printed = losses(run.log)
    # Two come of the evaluation before the first step; a step's loss is printed after its update.
    assert printed and all(math.isfinite(float(loss)) for loss in printed)

    run = Script(tmp_path / "stated", samples_per_step=8, **given)
    assert samples(run) == {"8"}
    assert observed(run)["samples_from"] == "stated"
    assert losses(run.log) == printed
