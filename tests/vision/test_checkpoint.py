"""A run that was interrupted resumes from its checkpoint with what it had learned; test_resume.py interrupts some."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multicard.programs.vision.checkpoint import load_checkpoint, save_checkpoint
from multicard.programs.vision.precision import gradient_scaler

OF = {"parameters": {"seed": 0}, "files": [{"name": "train_images.npy", "bytes": 1}]}
ROW = {"epoch": 1, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "epoch_time_s": 1.0}


def state(seed: int, device: str = "cpu") -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scaler": gradient_scaler("fp16", torch.device(device))}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_interrupted_run_goes_on_with_its_weights_and_its_momentum(device: str, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    first, second = state(0, device), state(1, device)
    assert load_checkpoint(file, OF, first) == []
    first["model"](torch.ones(1, 2, device=device)).sum().backward()
    first["optimizer"].step()
    save_checkpoint(file, OF, first, [ROW])

    assert load_checkpoint(file, OF, second) == [ROW]
    torch.testing.assert_close(second["model"].weight, first["model"].weight, rtol=0, atol=0)
    momentum = [next(iter(each["optimizer"].state.values()))["momentum_buffer"] for each in (first, second)]
    torch.testing.assert_close(*momentum, rtol=0, atol=0)
    assert list(tmp_path.iterdir()) == [file]


def test_a_checkpoint_of_anything_else_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    save_checkpoint(file, OF, state(0), [ROW])
    found = state(1)
    weight = found["model"].weight.clone()
    for changed in ({"parameters": {"seed": 1}}, {"files": []}):
        assert load_checkpoint(file, OF | changed, found) == []
    assert torch.equal(found["model"].weight, weight)
