"""Checkpoints, from which an interrupted run of several epochs resumes."""

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multicard.core.layout import CHECKPOINT, STEPS, rank_file
from multicard.record import environment
from multicard.record.rank import log_progress
from multicard.record.recorder import Recorder
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.ranks import sum_over_ranks
from multicard.workloads.vision.strategy import STRATEGIES

SHARE = 50  # of the time that passes, at most one part in so many goes into writing
STATE = "state.pt"
OF_A_RANK = (STEPS, STATE)  # what each leaves for the first to put together
PACKAGE = Path(__file__).parents[2]


@dataclass
class State:
    """All that a run carries from one epoch to the next."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: Any
    recorder: Recorder
    epochs: list[dict[str, float]]


class Checkpoints:
    """Writes and restores the state of a run after an epoch: one file, complete or absent, that contains no code.

    One is worth writing when the run has measured steps, and when since the last one, or since the start,
    `checkpoint_after_s` of the job have passed and `SHARE` times as long as the last one took; with 0 after every
    epoch. Every rank calls every method, outside of what is timed. A run whose strategy has none,
    since no rank has the whole model, restarts from scratch, as does one of a single epoch.

    Parameters
    ----------
    job
        With `checkpoint`, the file; `resume`, whether there is one; `checkpoint_after_s`; and `shared`, the scratch
        folder that all nodes see. Without them nothing is written.
    facts
        Of the data set. A checkpoint is taken up only by a run with the same ones, and the same parameters, code,
        versions, processor and GPUs.
    """

    def __init__(
        self,
        job: dict[str, Any],
        p: VisionParameters,
        rank: int,
        device: torch.device,
        facts: dict[str, Any],
        state: State,
    ):
        self.job, self.p, self.rank, self.device, self.facts, self.state = job, p, rank, device, facts, state
        self.possible = "checkpoint" in job and p.epochs > 1 and STRATEGIES[p.strategy].has_checkpoints
        self.times = 0
        self._since, self._took_s = time.monotonic(), 0.0

    def resume(self) -> dict[str, Any] | None:
        """Take up what an interrupted attempt left, on all ranks or on none.

        Returns what run.json records of it; None where the run starts from scratch.
        """
        if not (self.possible and self.job["resume"]):
            return None
        left, unusable = self._read()
        if sum_over_ranks([float(unusable is None)], self.device)[0] < self.p.ranks:
            self._say(f"restarting from scratch: {unusable or 'another rank cannot use the checkpoint'}")
            return None
        self.times = left["times"] + 1
        self._take(left)
        self._say(f"resuming after epoch {left['epoch']} of {self.p.epochs}, from its checkpoint")
        return {
            "epoch": left["epoch"],
            "times": self.times,
            "on_another_host": left["host"] != environment.host()["name"],
        }

    def due(self) -> float:
        """1 on the rank that decides that a checkpoint is worth its time, else 0; call it before the ranks sum up."""
        if not self.possible or self.rank != 0:
            return 0.0
        if not any(row["window"] == "measured" for row in self.state.recorder.rows):
            return 0.0
        least = self.job["checkpoint_after_s"]
        return float(not least or time.monotonic() - self._since >= max(least, SHARE * self._took_s))

    def write(self) -> None:
        """Write the state after the last epoch. An error is logged, and leaves the checkpoint before it."""
        began = time.monotonic()
        complete = sum_over_ranks([self._part_written()], self.device)[0] == self.p.ranks
        if self.rank == 0 and complete:
            try:
                self._write_all()
                self._say(f"checkpoint after epoch {len(self.state.epochs)}")
            except (OSError, RuntimeError) as error:  # what PyTorch raises when a disk is full
                self._say(f"no checkpoint after epoch {len(self.state.epochs)}: {' '.join(str(error).split())[:200]}")
        sum_over_ranks([0.0], self.device)  # the next epoch begins on all ranks at once
        for kind in OF_A_RANK:
            self._part(kind, self.rank).unlink(missing_ok=True)
        self._since = time.monotonic()
        self._took_s = self._since - began

    def _part_written(self) -> float:
        """Leave what only this rank knows where the first finds it; 1 if that went well."""
        state = self.state
        generator = _generator(state.loader)
        part = {
            "random": torch.get_rng_state(),
            "gpus_random": [torch.cuda.get_rng_state(gpu) for gpu in _gpus(state.recorder)],
            "sampler": None if generator is None else generator.get_state(),
        }
        try:
            state.recorder.write(self._part(STEPS, self.rank))
            _save(part, self._part(STATE, self.rank))
        except (OSError, RuntimeError):
            return 0.0
        return 1.0

    def _write_all(self) -> None:
        ranks = range(self.p.ranks)
        whole = {
            "identity": self._identity(),
            "epoch": len(self.state.epochs),
            "times": self.times,
            "host": environment.host()["name"],
            "epochs": self.state.epochs,
            "model": self.state.model.state_dict(),
            "optimizer": self.state.optimizer.state_dict(),
            "scaler": self.state.scaler.state_dict(),
            "steps": [self._part(STEPS, rank).read_text(encoding="utf-8") for rank in ranks],
            "parts": [torch.load(self._part(STATE, rank), weights_only=True) for rank in ranks],
        }
        # In a scratch folder, which goes with an interrupted attempt, on the same file system.
        temporary = Path(self.job["shared"]) / CHECKPOINT
        _save(whole, temporary)
        temporary.replace(self.job["checkpoint"])

    def _read(self) -> tuple[dict[str, Any], str | None]:
        """Content of the checkpoint, and why it is of no use."""
        try:
            left = torch.load(self.job["checkpoint"], map_location="cpu", weights_only=True)
            own, then = json.loads(self._identity()), json.loads(left["identity"])
        except Exception as error:  # whatever a damaged file makes PyTorch raise
            return {}, f"the checkpoint cannot be read ({type(error).__name__})"
        other = sorted(key for key in own if own[key] != then.get(key))
        return left, f"the checkpoint was made with different {', '.join(other)}" if other else None

    def _take(self, left: dict[str, Any]) -> None:
        state, part = self.state, left["parts"][self.rank]
        state.model.load_state_dict(left["model"])
        state.optimizer.load_state_dict(left["optimizer"])
        state.scaler.load_state_dict(left["scaler"])
        state.recorder.continue_from(left["steps"][self.rank])
        state.epochs += left["epochs"]
        # Workers that stay draw a random number once, when they start: before the state is what it was.
        if getattr(state.loader, "persistent_workers", False):
            iter(state.loader)
        if part["sampler"] is not None:
            _generator(state.loader).set_state(part["sampler"])
        torch.set_rng_state(part["random"])
        for gpu, random in zip(_gpus(state.recorder), part["gpus_random"], strict=True):
            torch.cuda.set_rng_state(random, gpu)

    def _identity(self) -> str:
        """What must be the same, as JSON."""
        hardware = environment.hardware()
        return json.dumps(
            {
                "parameters": self.p.model_dump(),
                "profiler": self.job["profiler"],
                "data": self.facts,
                "versions": environment.versions(),
                "code": _code(),
                "hardware": [hardware["processor"], hardware["gpus"]],
            },
            sort_keys=True,
        )

    def _part(self, kind: str, rank: int) -> Path:
        # Under a new name each time: of an old one a network file system might give another node what it held before.
        return Path(self.job["shared"]) / rank_file(f"epoch{len(self.state.epochs)}-{kind}", rank)

    def _say(self, text: str) -> None:
        if self.rank == 0:
            log_progress(text)


def _save(value: dict[str, Any], path: Path) -> None:
    """Save to the disk itself: the system would else write on while the next steps are measured."""
    with path.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def _generator(loader: Any) -> torch.Generator | None:
    return getattr(loader.sampler, "generator", None)


def _gpus(recorder: Recorder) -> list[torch.device]:
    return [gpu for gpu in recorder.devices if gpu.type == "cuda"]


def _code() -> str:
    """Digest of the code that trains and records."""
    digest = hashlib.sha256()
    for package in ("experiment", "record", "workloads/vision"):
        for file in sorted((PACKAGE / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
