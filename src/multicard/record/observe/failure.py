"""What a process leaves that fails, and what the record of every rank has."""

import os
import sys
from collections.abc import Callable
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.layout import rank_file
from multicard.core.reasons import LONGEST_MESSAGE, Reason
from multicard.record import environment
from multicard.record.memory_snapshot import HISTORY
from multicard.record.observe.ablation import NotLeftOut
from multicard.record.observe.ranks import RANKS, claim_rank, is_outermost, rank_of_process, told
from multicard.record.out_of_memory import GpuMemory, fullest_gpu, is_out_of_memory, speaks_of_memory, without_advice
from multicard.record.recorder import Diverged

KNOWN = (Diverged, UserError)  # errors whose message is enough, without their type


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
    stated = job["observe"]
    is_helper = stated["is_user_program"] and parent_process() is not None
    is_script = not is_helper and stated["ranks"] == 1 and not _names_of_program().isdisjoint(stated["program"])
    is_rank = is_script or dist.is_initialized() or told(RANKS) is not None
    rank = rank_of_process() if is_rank else None
    ended = describe_failure(error, rank)
    note_process(error=ended)
    if rank is not None and is_outermost(job) and claim_rank(job):
        write_json(Path(job["scratch"]) / rank_file("rank.json", rank), {**ended, **facts_of_process(rank)})


def _names_of_program() -> set[str]:
    """File that this process runs, and its module if Python was told one (-m)."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {Path(sys.argv[0]).name} | ({spec.name.removesuffix(".__main__")} if spec else set())


def describe_failure(error: BaseException, rank: int | None) -> dict[str, Any]:
    """`outcome` and `reason` of a rank that an error ends, while its traceback holds what was allocated."""
    memory = fullest_gpu()
    if is_out_of_memory(error, memory):
        held = HISTORY.held(error, memory)
        outcome, reason = "out_of_memory", Reason("out_of_memory", rank, message=_message(error, memory), held=held)
    elif isinstance(error, Diverged):
        outcome, reason = "diverged", Reason("diverged", rank=rank, loss=str(error.loss), step=error.step)
    elif isinstance(error, NotLeftOut):
        outcome, reason = "failed", Reason("not_ablated", rank=rank, part=error.part, message=error.why)
    else:
        outcome, reason = "failed", Reason("error", rank=rank, message=_message(error, memory))
    return {"outcome": outcome, "reason": reason.record()}


def _message(error: BaseException, memory: GpuMemory | None = None) -> str:
    """One line of an error; of one about memory with its numbers, else with those of the fullest GPU."""
    text = without_advice(" ".join(str(error).split()))
    has_numbers = isinstance(error, torch.cuda.OutOfMemoryError)
    if len(text) > LONGEST_MESSAGE and not has_numbers:
        # The end of a worker's traceback has the error, its beginning the place.
        half = LONGEST_MESSAGE // 2
        text = f"{text[:half].rpartition(' ')[0] or text[:half]} … {text[-half:].partition(' ')[2] or text[-half:]}"
    if memory is not None and not has_numbers and speaks_of_memory(error):
        text += f"; {memory.describe()}"
    return text if isinstance(error, KNOWN) else f"{type(error).__name__}: {text}"
