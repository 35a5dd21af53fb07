"""Which rank a process of a script is."""

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from multicard.core.layout import rank_file


def claim_rank(job: dict[str, Any]) -> bool:
    """Whether this process is the first of its rank. A second one does not know its rank, or is no rank."""
    path = Path(job["scratch"]) / rank_file("claimed", rank_of_process())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return path.read_text(encoding="utf-8") == str(os.getpid())
    return True


def rank_of_process() -> int:
    """Rank of this process, by its process group or what a launcher told it; else 0."""
    rank = os.environ.get("RANK", "")
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(rank) if rank.isdigit() else 0


def world_size() -> int:
    """Ranks of the script, likewise."""
    size = os.environ.get("WORLD_SIZE", "")
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(size) if size.isdigit() else 1
