"""A checkpoint after every epoch, as in PyTorch's ImageNet example, from which an interrupted run resumes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from multicard.core.layout import CHECKPOINT, PROGRESS


def load_checkpoint(
    job: Mapping[str, Any], identity: Mapping[str, Any], parts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Restore the state that an interrupted attempt saved; return the rows of its epochs, none without a checkpoint.

    `job`: contents of job.json, whose `checkpoint` is the path, if the job has one. `identity`: the parameters and data
    of the run; a checkpoint of another run is ignored. `parts`: model, optimizer and scaler, by name, which get their
    states.
    """
    if "checkpoint" not in job or not Path(job["checkpoint"]).is_file():
        return []
    checkpoint = torch.load(job["checkpoint"], map_location="cpu", weights_only=True)
    if checkpoint.get("of") != identity:
        return []
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    epochs = checkpoint["epochs"]
    if os.environ.get("RANK", "0") == "0":
        print(f"{PROGRESS}  resuming after epoch {len(epochs)}, from its checkpoint", flush=True)
    return epochs


def save_checkpoint(
    job: Mapping[str, Any], identity: Mapping[str, Any], parts: Mapping[str, Any], epochs: list[dict[str, Any]]
) -> None:
    """Replace the checkpoint, in a job that has one, by the state after the last of `epochs`.

    Parameters are those of `load_checkpoint`; `epochs`: rows of the epochs so far.
    """
    if "checkpoint" not in job:
        return
    # The scratch folder goes with an interrupted attempt, and lies on the same file system.
    unfinished = Path(job["shared"], CHECKPOINT)
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"of": identity, "epochs": epochs, **states}, unfinished)
    unfinished.replace(job["checkpoint"])
    print(f"{PROGRESS}  checkpoint after epoch {len(epochs)}", flush=True)
