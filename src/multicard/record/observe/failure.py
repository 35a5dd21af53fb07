"""What a process leaves that fails before its first update, and what the record of every rank has."""

import os
import sys
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch.distributed as dist

from multicard.core.files import write_json
from multicard.core.layout import rank_file
from multicard.record import environment
from multicard.record.observe.ranks import RANKS, claim_rank, is_outermost, rank_of_process, told
from multicard.record.rank import describe_failure


def facts_of_process(rank: int) -> dict[str, Any]:
    """What rank.json says of every process."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "rank": rank,
        "host": environment.host(),
        "hardware": environment.hardware(),
        "versions": environment.versions(),
    }


def write_failure(error: BaseException, note_process: Callable[..., None], job: dict[str, Any]) -> None:
    """Leave word of an error before the first update: in rank.json of a rank, else in process.json.

    A process without a rank may be a launcher, whose error only says that a rank had one. A process that a rank started
    inherits its number, and may fail without the rank doing so.
    """
    words = {Path(word).name for word in job["parameters"].get("command", ())}
    is_script = bool(words & _names_of_program()) and parent_process() is None and job["observe"]["ranks"] == 1
    is_rank = is_script or dist.is_initialized() or told(RANKS) is not None
    rank = rank_of_process() if is_rank else None
    ended = describe_failure(error, rank)
    note_process(error=ended)
    if rank is not None and is_outermost() and claim_rank(job):
        write_json(Path(job["scratch"]) / rank_file("rank.json", rank), {**ended, **facts_of_process(rank)})


def _names_of_program() -> set[str]:
    """File that this process runs, and its module if Python was told one (-m)."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {Path(sys.argv[0]).name} | ({spec.name.removesuffix(".__main__")} if spec else set())
