"""Checkpoints, from which an interrupted run of several epochs resumes: one file, complete or absent, without code."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multicard.core.layout import CHECKPOINT, PROGRESS
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES


class Checkpoint:
    """Of a run whose strategy leaves the whole model on one rank, and that has several epochs.

    Parameters
    ----------
    job
        With `checkpoint`, the file; `resume`, whether there is one; `checkpoint_after_s`, the least time between two;
        and `shared`, the scratch folder that all nodes see. Without them nothing is written.
    files
        Of the data set. Only a run with the same ones and the same parameters takes up a checkpoint.
    """

    def __init__(
        self,
        job: dict[str, Any],
        p: VisionParameters,
        files: list[dict[str, Any]],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
    ):
        self._of = {"parameters": p.model_dump(), "files": files}
        self._parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        self._is_possible = "checkpoint" in job and p.epochs > 1 and STRATEGIES[p.strategy].has_checkpoints
        self._job, self._least_steps = job, p.warmup_steps
        self._since = time.monotonic()

    def load(self) -> list[dict[str, Any]]:
        """Take up what an interrupted attempt left; give its epochs, none where the run starts from scratch."""
        if not self._is_possible or not self._job["resume"]:
            return []
        try:
            left = torch.load(self._job["checkpoint"], map_location="cpu", weights_only=True)
            if left["of"] != self._of:
                raise ValueError("it was made with other parameters or data")
            for name, part in self._parts.items():
                part.load_state_dict(left[name])
        except Exception as error:  # whatever a damaged file makes PyTorch raise
            _say(f"restarting from scratch: the checkpoint cannot be used ({error})")
            return []
        _say(f"resuming after epoch {len(left['epochs'])}, from its checkpoint")
        return left["epochs"]

    def save(self, epochs: list[dict[str, Any]], remaining_steps: int) -> None:
        """Write the state after the last of the epochs, if it is worth it; an error is logged.

        It is while there are steps left to measure, and when enough time has passed since the last one.
        """
        if not self._is_possible or remaining_steps <= self._least_steps:
            return
        if time.monotonic() - self._since < self._job["checkpoint_after_s"]:
            return
        try:
            states = {name: each.state_dict() for name, each in self._parts.items()}
            # The scratch folder goes with an interrupted attempt, and lies on the same file system.
            part = Path(self._job["shared"], CHECKPOINT)
            torch.save({"of": self._of, "epochs": epochs, **states}, part)
            part.replace(self._job["checkpoint"])
            _say(f"checkpoint after epoch {len(epochs)}")
        except (OSError, RuntimeError) as error:  # what PyTorch raises when a disk is full
            _say(f"no checkpoint after epoch {len(epochs)}: {error}")
        self._since = time.monotonic()


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"{PROGRESS}  {text}", flush=True)
