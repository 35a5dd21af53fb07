"""A run that was interrupted resumes from its checkpoint as if it had not been."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import TINY
from multicard.experiment.datasets import Digits
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.workloads.vision import checkpoint as checkpoint_module
from multicard.workloads.vision import train as training_program
from multicard.workloads.vision.data import read_provenance
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.prepare import prepare
from multicard.workloads.vision.train import train

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
EPOCHS = 3


class Interrupted(BaseException):
    """Stands in for the end of the process."""


def parameters(**changes: Any) -> VisionParameters:
    tiny = TINY | {"epochs": EPOCHS, "steps_per_epoch": 4, "batch_size": 4, "profiler": "none"}
    return VisionParameters(**(tiny | changes))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So few that a test of the model takes no time."""
    folder = tmp_path_factory.mktemp("few") / "digits"
    prepare("digits", Digits(source="digits", limit=60), folder)
    return folder


def attempt(p: VisionParameters, digits: Path, folder: Path, **job: Any) -> dict[str, Any]:
    """Train in this process, with a checkpoint after every epoch."""
    folder.mkdir(exist_ok=True)
    checkpoint = folder / "checkpoint.pt"
    job = {"checkpoint": str(checkpoint), "resume": checkpoint.exists(), "checkpoint_after_s": 0} | job
    described = {"data": digits, "scratch": folder, "shared": folder, "profiler": "none"}
    return train(described | job, p, 0, CPU, read_provenance(digits))


def interrupted(p: VisionParameters, digits: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until the test after the third epoch: two epochs are kept."""
    real, tests = training_program.evaluate, []

    def evaluate(*arguments: Any) -> Any:
        tests.append(1)
        if len(tests) == 3:
            raise Interrupted
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training_program, "evaluate", evaluate)
        with pytest.raises(Interrupted):
            attempt(p, digits, folder)


def taken_up(p: VisionParameters, digits: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """What a run takes up of a checkpoint; it ends before its first step."""
    resume, found = checkpoint_module.Checkpoints.resume, []

    def look(checkpoints: Any) -> None:
        found.append(resume(checkpoints))
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module.Checkpoints, "resume", look)
        with pytest.raises(Interrupted):
            attempt(p, digits, folder)
    return found[0]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "fp16", "fused_optimizer": True},
        {"num_workers": 1},
        pytest.param({"num_workers": 1, "persistent_workers": False}, marks=pytest.mark.rare),
        pytest.param({"loader": "dali"}, marks=pytest.mark.rare),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_an_interrupted_run_learns_what_an_uninterrupted_one_learns(
    changes: dict[str, Any], digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if changes.get("loader") == "dali":
        pytest.importorskip("nvidia.dali")
    p = parameters(**changes)
    assert attempt(p, digits, tmp_path / "one", checkpoint_after_s=1e9)["resumed"] is None
    assert not (tmp_path / "one" / "checkpoint.pt").exists()

    interrupted(p, digits, tmp_path / "two", monkeypatch)
    torch.manual_seed(99)  # what a process starts with is not what decides
    resumed = attempt(p, digits, tmp_path / "two")["resumed"]
    assert resumed == {"epoch": 2, "times": 1, "on_another_host": False}

    for name in ("epoch", "train_loss", "test_loss", "test_accuracy"):
        once, twice = ([row[name] for row in rows(tmp_path / kind / "epochs.csv.rank0")] for kind in ("one", "two"))
        assert once == twice
    once, twice = (rows(tmp_path / kind / "steps.csv.rank0") for kind in ("one", "two"))
    for name in ("epoch", "step", "loss"):
        assert [row[name] for row in once] == [row[name] for row in twice]
    # It warms up again, and profiles once.
    if not changes:
        before, after = ["warmup"] * 2 + ["measured"] * 6, ["warmup"] * 2 + ["measured"] * 2
        last = ["warmup"] * (1 + LEAST_SETTLING) + ["profiled"] * 3
        assert [row["window"] for row in twice] == [*before, *after, *last]


def test_a_run_interrupted_after_its_last_epoch_warms_up_before_it_is_profiled(digits: Path, tmp_path: Path) -> None:
    p = parameters()
    attempt(p, digits, tmp_path)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epoch"] == EPOCHS
    assert attempt(p, digits, tmp_path)["resumed"]["epoch"] == EPOCHS
    steps = [row["window"] for row in rows(tmp_path / "steps.csv.rank0")]
    assert steps == ["warmup"] * 2 + ["measured"] * 10 + ["warmup"] * (2 + LEAST_SETTLING) + ["profiled"] * 3
    assert len(rows(tmp_path / "epochs.csv.rank0")) == EPOCHS


def test_a_checkpoint_of_anything_else_or_damaged_is_not_taken(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    p, path = parameters(epochs=2), tmp_path / "checkpoint.pt"
    attempt(p, digits, tmp_path)
    whole, content = path.read_bytes(), torch.load(path, weights_only=True)
    assert taken_up(p, digits, tmp_path, monkeypatch)["epoch"] == 2
    identity = json.loads(content["identity"])
    for changed in ("parameters", "data", "versions", "code", "hardware", "profiler"):
        assert changed in identity
        torch.save(content | {"identity": json.dumps(identity | {changed: "other"})}, path)
        assert taken_up(p, digits, tmp_path, monkeypatch) is None
        said = f"restarting from scratch: the checkpoint was made with different {changed}"
        assert said in capsys.readouterr().out
    for damaged in (whole[: len(whole) // 2], b"x" * 5000, b"", None):
        path.write_bytes(damaged or b"")
        if damaged is None:
            torch.save({"identity": print}, path)  # code in it
        assert taken_up(p, digits, tmp_path, monkeypatch) is None
        assert "restarting from scratch: the checkpoint cannot be read" in capsys.readouterr().out
    attempt(p, digits, tmp_path)
    assert torch.load(path, weights_only=True)["epoch"] == 2  # its own took the place


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 1, "steps_per_epoch": 8},
        {"warmup_steps": 11},  # what was measured so far is nothing, and what is left would be too
    ],
)
def test_what_is_not_worth_a_checkpoint_has_none(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    attempt(parameters(**changes), digits, tmp_path)
    found = tmp_path / "checkpoint.pt"
    assert not found.exists() or torch.load(found, weights_only=True)["epoch"] == EPOCHS


def test_writing_takes_at_most_its_share_of_the_time(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes one second on per look at it: an epoch has one look, writing two.
    now = iter(range(10_000))
    written = []
    monkeypatch.setattr(checkpoint_module, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    monkeypatch.setattr(checkpoint_module, "SHARE", 3)
    monkeypatch.setattr(checkpoint_module, "_save", lambda value, path: written.append(path) or torch.save(value, path))
    attempt(parameters(epochs=8, steps_per_epoch=3), digits, tmp_path, checkpoint_after_s=0.5)
    # After epoch 1; then not before three times the second that this took: each later one three epochs after.
    assert sum(path.name == "checkpoint.pt" for path in written) == 3


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_value: Any, _path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "_save", full)
    assert attempt(parameters(), digits, tmp_path)["resumed"] is None
    assert not (tmp_path / "checkpoint.pt").exists()
    assert "checkpoint after" not in capsys.readouterr().out
