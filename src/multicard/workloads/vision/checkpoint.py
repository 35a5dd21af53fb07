"""A checkpoint after every epoch, as in PyTorch's ImageNet example, from which an interrupted run resumes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from multicard.core.layout import CHECKPOINT, PROGRESS


def load_checkpoint(job: Mapping[str, Any], of: Mapping[str, Any], parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the model, the optimizer and the scaler the state that an interrupted attempt left, and give its epochs.

    There are none where the run starts from scratch; one `of` other parameters or data is not taken.
    """
    is_there = "checkpoint" in job and Path(job["checkpoint"]).is_file()
    left = torch.load(job["checkpoint"], map_location="cpu", weights_only=True) if is_there else {}
    if left.get("of") != of:
        return []
    for name, part in parts.items():
        part.load_state_dict(left[name])
    if os.environ.get("RANK", "0") == "0":
        print(f"{PROGRESS}  resuming after epoch {len(left['epochs'])}, from its checkpoint", flush=True)
    return left["epochs"]


def save_checkpoint(
    job: Mapping[str, Any], of: Mapping[str, Any], parts: Mapping[str, Any], epochs: list[dict[str, Any]]
) -> None:
    """Replace the checkpoint, in a job that has one, by one after the last of these epochs."""
    if "checkpoint" not in job:
        return
    # The scratch folder goes with an interrupted attempt, and lies on the same file system.
    part = Path(job["shared"], CHECKPOINT)
    torch.save({"of": of, "epochs": epochs, **{name: each.state_dict() for name, each in parts.items()}}, part)
    part.replace(job["checkpoint"])
    print(f"{PROGRESS}  checkpoint after epoch {len(epochs)}", flush=True)
