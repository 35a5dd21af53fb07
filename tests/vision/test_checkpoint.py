"""A run that was interrupted resumes from its checkpoint with what it had learned."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from conftest import TINY
from multicard.workloads.vision.checkpoint import Checkpoint
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.precision import gradient_scaler

FILES = [{"name": "train_images.npy", "bytes": 1}]
ROW = {"epoch": 1, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "epoch_time_s": 1.0}


def parameters(**changes: Any) -> VisionParameters:
    return VisionParameters(**(TINY | {"epochs": 3, "steps_per_epoch": 4} | changes))


def checkpoint(
    folder: Path, p: VisionParameters, files: Any = FILES, seed: int = 0, after_s: float = 0.0, device: str = "cpu"
) -> Checkpoint:
    torch.manual_seed(seed)
    model = nn.Linear(2, 2).to(device)
    path = folder / "checkpoint.pt"
    job = {
        "checkpoint": str(path), "shared": str(folder / "shared"),
        "resume": path.exists(), "checkpoint_after_s": after_s,
    }  # fmt: skip
    (folder / "shared").mkdir(exist_ok=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    made = Checkpoint(job, p, files, model, optimizer, gradient_scaler(p.precision, torch.device(device)))
    made.model, made.optimizer = model, optimizer
    return made


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_interrupted_run_goes_on_with_its_weights_and_its_momentum(device: str, tmp_path: Path) -> None:
    first = checkpoint(tmp_path, parameters(), device=device)
    assert first.load() == []
    first.model(torch.ones(1, 2, device=device)).sum().backward()
    first.optimizer.step()
    first.save([ROW], remaining_steps=8)

    second = checkpoint(tmp_path, parameters(), seed=1, device=device)
    assert second.load() == [ROW]
    torch.testing.assert_close(second.model.weight, first.model.weight, rtol=0, atol=0)
    momentum = [next(iter(each.optimizer.state.values()))["momentum_buffer"] for each in (first, second)]
    torch.testing.assert_close(*momentum, rtol=0, atol=0)
    assert not list((tmp_path / "shared").iterdir())


@pytest.mark.parametrize("changed", ["parameters", "data", "damaged", "code"])
def test_a_checkpoint_of_anything_else_or_damaged_is_not_taken(
    changed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path, parameters()).save([ROW], remaining_steps=8)
    path = tmp_path / "checkpoint.pt"
    if changed == "damaged":
        path.write_bytes(path.read_bytes()[:1000])
    if changed == "code":
        torch.save({"of": print}, path)
    p = parameters(batch_size=4) if changed == "parameters" else parameters()
    found = checkpoint(tmp_path, p, [] if changed == "data" else FILES, seed=1)
    weight = found.model.weight.clone()
    assert found.load() == []
    assert torch.equal(found.model.weight, weight)
    assert "restarting from scratch: the checkpoint cannot be used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "remaining", "after_s"),
    [
        ({"epochs": 1}, 8, 0.0),
        ({"strategy": "fsdp", "devices": 2}, 8, 0.0),  # no rank has the whole model
        ({"warmup_steps": 8}, 8, 0.0),  # what is left would be the warm-up of the next attempt
        ({}, 8, 1e9),  # one is recent enough
    ],
)
def test_what_is_not_worth_a_checkpoint_has_none(
    changes: dict[str, Any], remaining: int, after_s: float, tmp_path: Path
) -> None:
    checkpoint(tmp_path, parameters(**changes), after_s=after_s).save([ROW], remaining)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "save", Mock(side_effect=OSError(28, "No space left on device")))
    checkpoint(tmp_path, parameters()).save([ROW], remaining_steps=8)
    assert not (tmp_path / "checkpoint.pt").exists()
    assert "no checkpoint after epoch 1" in capsys.readouterr().out
