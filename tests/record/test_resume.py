"""Real jobs that are killed go on from their checkpoint when they are started again, where that is right."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from conftest import ROOT, TINY
from multicard.errors import UserError
from multicard.experiment.vision_parameters import VisionParameters
from multicard.launch.lock import locked
from multicard.record import attempts
from multicard.record.attempts import is_spent
from multicard.record.job import run_job

LONG = TINY | {"epochs": 4, "profiler": "none"}


def launched(changes: dict[str, Any], data: Path, out: Path) -> subprocess.Popen[str]:
    """Start a run as the workflow does, with a checkpoint after every epoch."""
    command = [sys.executable, ROOT / "workflow/scripts/launch_run.py", "--parameters", json.dumps(LONG | changes)]
    command += ["--data", data, "--out", out, "--checkpoint-after-s", "0"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def killed_after_two_epochs(changes: dict[str, Any], data: Path, out: Path, how: signal.Signals) -> None:
    started = launched(changes, data, out)
    for line in started.stderr:
        if "checkpoint after epoch 2" in line:
            os.kill(started.pid, how)
            break
    started.communicate(timeout=60)
    assert not (out / "run.json").exists()
    assert (out / "checkpoint.pt").exists()


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_killed_run_ends_with_the_losses_of_one_that_was_not(digits: Path, tmp_path: Path) -> None:
    changes, how = {"strategy": "ddp", "devices": 2, "profiler": "kineto"}, signal.SIGKILL
    one, two = tmp_path / "one", tmp_path / "two"
    once = run_job(VisionParameters(**(LONG | changes)), digits, one, time_limit_s=300)
    assert (once["outcome"], once["resumed"]) == ("completed", None)

    killed_after_two_epochs(changes, digits, two, how)
    _, said = launched(changes, digits, two).communicate(timeout=300)
    record = json.loads((two / "run.json").read_text())
    assert record["outcome"] == "completed", said
    assert record["resumed"]["epoch"] >= 2
    assert (record["resumed"]["times"], record["resumed"]["on_another_host"]) == (1, False)
    assert "epoch 2 of 4, step" not in said

    losses = ["epoch", "train_loss", "test_loss", "test_accuracy"]
    pd.testing.assert_frame_equal(*(pd.read_csv(run / "epochs.csv")[losses] for run in (one, two)), check_exact=True)
    steps = pd.read_csv(two / "steps.csv")
    for _, rank in steps.groupby("rank"):
        assert rank["step"].tolist() == list(range(1, len(rank) + 1))
        assert rank.groupby("epoch").size().tolist() == [8] * 4 + [4]
        assert (rank["window"] == "profiled").sum() == TINY["profiled_steps"]
        # The first steps of each of the two attempts, and the one before the profiled ones.
        assert (rank["window"] == "warmup").sum() == 2 * TINY["warmup_steps"] + 1
    # Nothing is left of the first attempt, nor the checkpoint.
    assert left_in(two) == left_in(one)


def test_two_attempts_at_a_run_never_meet(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "WAIT_S", 0.5)
    (tmp_path / "run.json").write_text("of the first")
    with locked(tmp_path, "first", wait_s=0), pytest.raises(UserError) as refused:
        run_job(VisionParameters(**LONG), digits, tmp_path, time_limit_s=300)
    assert str(refused.value) == f"{tmp_path}: another attempt at this run is at work"
    assert (tmp_path / "run.json").read_text() == "of the first"


def test_fsdp_has_no_checkpoint_and_starts_anew(digits: Path, tmp_path: Path) -> None:
    parameters = VisionParameters(**(LONG | {"epochs": 2, "steps_per_epoch": 3, "strategy": "fsdp", "devices": 2}))
    (tmp_path / "checkpoint.pt").write_bytes(b"of something else")
    record = run_job(parameters, digits, tmp_path, time_limit_s=300, checkpoint_after_s=0)
    assert (record["outcome"], record["resumed"]) == ("completed", None)
    assert "checkpoint" not in (tmp_path / "log.txt").read_text()


def test_after_a_time_limit_there_is_a_checkpoint_and_after_divergence_there_is_none(
    digits: Path, tmp_path: Path
) -> None:
    late, wild = tmp_path / "late", tmp_path / "wild"
    endless = VisionParameters(**(LONG | {"epochs": 1000}))
    record = run_job(endless, digits, late, time_limit_s=20, checkpoint_after_s=0)
    assert record["outcome"] == "timed_out"
    assert torch.load(late / "checkpoint.pt", weights_only=True)["epoch"] >= 1

    wild.mkdir()
    (late / "checkpoint.pt").rename(wild / "checkpoint.pt")
    diverging = VisionParameters(**(LONG | {"learning_rate": 1e30}))
    assert run_job(diverging, digits, wild, time_limit_s=300)["outcome"] == "diverged"
    assert not (wild / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("outcome", "before", "now", "spent"),
    [
        ("completed", None, (1, 1), True),
        ("diverged", None, (1, 1), True),
        ("out_of_memory", (1, 1), (2, 2), True),
        ("timed_out", (1, 1), (1, 1), False),
        ("failed", None, (1, 1), False),
        ("failed", (1, 1), (2, 2), False),
        # It went on from this one and failed before the next: the checkpoint may be to blame.
        ("failed", (1, 1), (1, 1), True),
    ],
)
def test_a_checkpoint_that_may_be_what_went_wrong_is_not_taken_again(
    outcome: str, before: tuple[int, int] | None, now: tuple[int, int] | None, spent: bool
) -> None:
    assert is_spent(outcome, before, now) == spent


def test_a_run_whose_disk_was_full_goes_on_when_there_is_room(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the disk is full by a stand-in for writing the record; tests/record/test_faults.py fills a real one."""
    from multicard.record import job

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    parameters = VisionParameters(**(LONG | {"epochs": 2}))
    with monkeypatch.context() as patch:
        patch.setattr(job, "write_csv", full)
        with pytest.raises(UserError, match="No space left on device; make room and start again"):
            run_job(parameters, digits, tmp_path, time_limit_s=300, checkpoint_after_s=0)
    assert left_in(tmp_path) == {"checkpoint.pt", "log.txt"}
    record = run_job(parameters, digits, tmp_path, time_limit_s=300)
    assert (record["outcome"], record["resumed"]["epoch"]) == ("completed", 2)
