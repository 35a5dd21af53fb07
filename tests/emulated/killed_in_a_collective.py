"""A job whose last rank is killed while the others wait for it in a collective of their GPUs."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multicard.record.rank import run_rank
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.ranks import join


def train(job: dict[str, Any], p: VisionParameters, _record: dict[str, Any]) -> dict[str, Any]:
    """Reduce once together, then without the last rank."""
    waiting = Path(job["scratch"]) / "waiting"
    rank, device = join(p)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    assert total.item() == p.ranks
    if rank == p.ranks - 1:
        while not waiting.exists():
            time.sleep(0.05)
        time.sleep(1)  # the others are about to enter the collective
        os.kill(os.getpid(), signal.SIGKILL)
    waiting.touch()
    dist.all_reduce(total)
    total.item()
    return {}


if __name__ == "__main__":
    run_rank(VisionParameters.model_validate, train)
