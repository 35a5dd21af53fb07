"""A checkpoint after every epoch, as in PyTorch's ImageNet example, from which an interrupted run resumes."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from multicard.core.job_file import JobFile
from multicard.core.layout import CHECKPOINT, PROGRESS
from multicard.core.values import JsonObject

# A row of epochs.csv: the numbers that the training program logs at the end of an epoch, by their names.
EpochRow: TypeAlias = dict[str, float]


def load_checkpoint(job: JobFile, identity: JsonObject, parts: Mapping[str, Any]) -> list[EpochRow]:
    """Restore the state that an interrupted attempt saved; return the rows of the epochs that it finished.

    Without a checkpoint of this run, return an empty list and restore nothing.

    `job`: contents of job.json; its entry `checkpoint` is the path of the checkpoint, and may be missing. `identity`:
    parameters and data files of the run; a checkpoint with another identity is ignored. `parts`: model, optimizer and
    scaler by name; their saved states are loaded into them.
    """
    if job.checkpoint is None or not job.checkpoint.is_file():
        return []
    checkpoint = torch.load(job.checkpoint, map_location="cpu", weights_only=True)
    if checkpoint.get("of") != identity:
        return []
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    epochs = checkpoint["epochs"]
    if os.environ.get("RANK", "0") == "0":
        print(f"{PROGRESS}  resuming after epoch {len(epochs)}, from its checkpoint", flush=True)
    return epochs


def save_checkpoint(job: JobFile, identity: JsonObject, parts: Mapping[str, Any], epochs: list[EpochRow]) -> None:
    """Replace the checkpoint by the present state of `parts`; do nothing if job.json has no entry `checkpoint`.

    `job`, `identity`, `parts`: as for `load_checkpoint`. `epochs`: rows of all epochs that are finished.
    """
    if job.checkpoint is None or job.shared is None:
        return
    # A file that is only half written must not replace the checkpoint. The scratch folder `shared` is on the same file
    # system, so the replacement is atomic, and is removed after an interrupted attempt, with an unfinished file.
    unfinished = job.shared / CHECKPOINT
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"of": identity, "epochs": epochs, **states}, unfinished)
    unfinished.replace(job.checkpoint)
    print(f"{PROGRESS}  checkpoint after epoch {len(epochs)}", flush=True)
