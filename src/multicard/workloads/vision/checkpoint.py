"""A checkpoint after every epoch, as PyTorch's ImageNet example has it: an interrupted run goes on after that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from multicard.core.layout import CHECKPOINT, PROGRESS


def load_checkpoint(job: Mapping[str, Any], of: Mapping[str, Any], parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the model, the optimizer and the scaler the state that an interrupted attempt left, and give its epochs.

    There are none where the run starts from scratch; one `of` other parameters or data is not taken.
    """
    path = Path(job["checkpoint"])
    left = torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else {}
    if left.get("of") != of:
        return []
    for name, part in parts.items():
        part.load_state_dict(left[name])
    return left["epochs"]


def save_checkpoint(
    job: Mapping[str, Any], of: Mapping[str, Any], parts: Mapping[str, Any], epochs: list[dict[str, Any]]
) -> None:
    """Replace the checkpoint by one after the last of these epochs."""
    # The scratch folder goes with an interrupted attempt, and lies on the same file system.
    part = Path(job["shared"], CHECKPOINT)
    torch.save({"of": of, "epochs": epochs, **{name: each.state_dict() for name, each in parts.items()}}, part)
    part.replace(job["checkpoint"])
    print(f"{PROGRESS}  checkpoint after epoch {len(epochs)}", flush=True)
