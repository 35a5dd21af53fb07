"""Real jobs that are killed resume from their checkpoint when they are started again, where that is right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from conftest import ROOT, TINY
from forked_ranks import forked_ranks
from multicard.config.read_run import read_run
from multicard.launch.job import run_job
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs.vision.parameters import VisionParameters
from waiting_ranks import waiting_at

pytestmark = pytest.mark.slow

LONG = TINY | {"epochs": 4, "profiler": "none"}
OF_TWO_RANKS = {"strategy": "ddp", "devices": 2, "profiler": "kineto"}
LEARNED = ["epoch", "train_loss", "test_loss", "test_accuracy"]


@pytest.fixture
def waiting(tmp_path: Path) -> dict[str, str]:
    """Variables of a job that waits after two epochs, to be ended."""
    return os.environ | waiting_at("checkpoint after epoch 2", tmp_path / "waiting")


def kill_after_two_epochs(changes: dict[str, Any], data: Path, out: Path, environment: dict[str, str]) -> None:
    """Start a run as the workflow does, and kill what started it."""
    command = [sys.executable, ROOT / "workflow/scripts/launch_run.py", "--parameters", json.dumps(LONG | changes)]
    command += ["--data", data, "--out", out]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in started.stderr:
        if "checkpoint after epoch 2" in line:
            started.kill()
            break
    started.communicate(timeout=300)
    assert not (out / "run.json").exists()
    assert (out / "checkpoint.pt").exists()


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def uninterrupted(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks without an interruption."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with forked_ranks():
        once = run_job(VisionParameters(**(LONG | OF_TWO_RANKS)), digits, folder, time_limit_s=1800)
    assert (once.outcome, once.resumed) == ("completed", False)
    return folder


def test_a_killed_run_ends_with_the_losses_of_one_that_was_not(
    digits: Path, uninterrupted: Path, tmp_path: Path, waiting: dict[str, str]
) -> None:
    one, two = uninterrupted, tmp_path / "run"
    kill_after_two_epochs(OF_TWO_RANKS, digits, two, waiting)
    with forked_ranks():
        run_job(VisionParameters(**(LONG | OF_TWO_RANKS)), digits, two, time_limit_s=1800)
    record, output = read_run(two), (two / "log.txt").read_text()
    assert record.outcome == "completed", output
    assert record.resumed
    assert "epoch 2, step" not in output and "epoch 3, step 1 of 16" in output

    learned = [pd.read_csv(run / "epochs.csv")[LEARNED] for run in (one, two)]
    pd.testing.assert_frame_equal(*learned, check_exact=True)
    # It warms up again; what is measured is the last attempt's alone.
    steps, once = (pd.read_csv(run / "steps.csv") for run in (two, one))
    for rank, own in steps.groupby("rank"):
        assert own["step"].tolist() == list(range(1, len(own) + 1))
        assert own.groupby("epoch").size().to_dict() == {3: 8, 4: 8, 5: 4 + LEAST_SETTLING}
        assert (own["window"] == "profiled").sum() == TINY["profiled_steps"]
        assert (own["window"] == "warmup").sum() == TINY["warmup_steps"] + 1 + LEAST_SETTLING
        same = once[(once["rank"] == rank) & (once["epoch"] > 2)]
        assert own["loss"].tolist() == same["loss"].tolist()
    # Nothing is left of the first attempt, nor the checkpoint.
    assert left_in(two) == left_in(one)


def test_after_a_time_limit_there_is_a_checkpoint_and_after_divergence_there_is_none(
    digits: Path, tmp_path: Path
) -> None:
    late, wild = tmp_path / "late", tmp_path / "wild"
    endless = VisionParameters(**(LONG | {"epochs": 1000}))
    with forked_ranks(limit_at="checkpoint after epoch 1"):
        record = run_job(endless, digits, late, time_limit_s=20)
    assert record.outcome == "timed_out"
    assert torch.load(late / "checkpoint.pt", weights_only=True)["epochs"]

    wild.mkdir()
    (late / "checkpoint.pt").rename(wild / "checkpoint.pt")
    diverging = VisionParameters(**(LONG | {"learning_rate": 1e30}))
    with forked_ranks():
        record = run_job(diverging, digits, wild, time_limit_s=1800)
    assert (record.outcome, record.reason.code, record.reason.rank) == ("diverged", "diverged", 0)
    assert record.reason.loss in ("nan", "inf")
    assert left_in(wild) == {".lock", "run.json", "steps.csv", "epochs.csv", "log.txt", "trace/captured.json"}
