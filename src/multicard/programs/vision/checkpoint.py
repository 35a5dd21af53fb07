"""A checkpoint after every epoch, as in PyTorch's ImageNet example, from which an interrupted run resumes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from multicard.core.files import atomic_write
from multicard.core.layout import PROGRESS
from multicard.core.values import JsonObject

# A row of epochs.csv: the numbers that the training program logs at the end of an epoch, by their names.
EpochRow: TypeAlias = dict[str, float]


def load_checkpoint(file: Path | None, identity: JsonObject, parts: Mapping[str, Any]) -> list[EpochRow]:
    """Restore the state that an interrupted attempt saved; return the rows of the epochs that it finished.

    Without a checkpoint of this run, return an empty list and restore nothing.

    `file`: the checkpoint, which may be missing; None for none. `identity`: parameters and data files of the run; a
    checkpoint with another identity is ignored. `parts`: model, optimizer and scaler by name; their saved states are
    loaded into them.
    """
    if file is None or not file.is_file():
        return []
    checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    if checkpoint.get("of") != identity:
        return []
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    epochs = checkpoint["epochs"]
    if os.environ.get("RANK", "0") == "0":
        print(f"{PROGRESS}  resuming after epoch {len(epochs)}, from its checkpoint", flush=True)
    return epochs


def save_checkpoint(file: Path, identity: JsonObject, parts: Mapping[str, Any], epochs: list[EpochRow]) -> None:
    """Replace the checkpoint by the present state of `parts`.

    `file`, `identity`, `parts`: as for `load_checkpoint`. `epochs`: rows of all epochs that are finished.
    """
    states = {name: part.state_dict() for name, part in parts.items()}
    # A file that is only half written must not replace the checkpoint.
    with atomic_write(file) as unfinished:
        torch.save({"of": identity, "epochs": epochs, **states}, unfinished)
    print(f"{PROGRESS}  checkpoint after epoch {len(epochs)}", flush=True)
