"""Describe the error that ends a rank, as rank.json has it, and write down an error that comes before any step."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import parent_process
from pathlib import Path

import torch

from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.job_file import JobFile, ObservedJob
from multicard.core.layout import Outcome, rank_file
from multicard.core.reasons import LONGEST_MESSAGE, Reason
from multicard.core.values import JsonObject
from multicard.observe.ranks import (
    RANK_VARIABLES,
    claim_rank,
    has_process_group,
    is_outermost,
    number_in_environment,
    rank_of_process,
)
from multicard.observe.record import environment
from multicard.observe.record.memory_snapshot import HISTORY
from multicard.observe.record.out_of_memory import (
    GpuMemory,
    fullest_gpu,
    is_out_of_memory,
    mentions_memory,
    without_advice,
)
from multicard.observe.record.recorder import Diverged

SELF_EXPLANATORY = (Diverged, UserError)  # errors whose message is enough, without their type


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended."""

    outcome: Outcome
    reason: Reason | None = None  # why it did not complete; None if it has
    ended_early: bool = False  # True if it has made all measured steps, and then ended by itself

    def record(self) -> JsonObject:
        """Return the fields for rank.json and process.json, which have `ended_early` only if it is True."""
        record: JsonObject = {"outcome": self.outcome, "reason": None if self.reason is None else self.reason.record()}
        return record | {"ended_early": True} if self.ended_early else record


def facts_of_process(rank: int) -> JsonObject:
    """Return the facts that rank.json has of every process."""
    return {
        "pid": os.getpid(),
        "rank": rank,
        "host": asdict(environment.host()),
        "hardware": asdict(environment.hardware()),
        "versions": environment.versions(),
    }


def write_failure(error: BaseException, note_process: Callable[..., None], job: JobFile) -> None:
    """Write an error that came before the first update to process.json and, if this process is a rank, to rank.json.

    A process that is no rank may be a launcher, whose error only says that a rank had one. A process that a rank has
    started inherits the rank's number. It writes no rank.json, because it may fail although the rank does not.
    """
    rank = rank_of_process() if _is_rank(job.observe) else None
    failure = describe_failure(error, rank)
    note_process(error=failure.record())
    if rank is not None and is_outermost(job) and claim_rank(job):
        write_json(job.scratch / rank_file("rank.json", rank), {**failure.record(), **facts_of_process(rank)})


def _is_rank(job: ObservedJob) -> bool:
    """True if this process, which has not updated, is a rank.

    It is one if a launcher gave it a rank, if it has a process group, or if the job has a single rank and this process
    runs the job's program, and multiprocessing has not started it.
    """
    is_started_by_script = parent_process() is not None
    runs_program = not _names_of_program().isdisjoint(job.program)
    if job.ranks == 1 and runs_program and not is_started_by_script:
        return True
    return has_process_group() or number_in_environment(RANK_VARIABLES) is not None


def _names_of_program() -> set[str]:
    """Return the file name of what this process runs, and its module if Python was given one (-m)."""
    names = {Path(sys.argv[0]).name}
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec:
        names.add(spec.name.removesuffix(".__main__"))
    return names


def describe_failure(error: BaseException, rank: int | None) -> RankOutcome:
    """Return the outcome of a rank that an error ends; `rank`: None for a process that is no rank.

    Call this while the traceback of the error still keeps the tensors of the script alive, because whether memory ran
    out is judged by the memory that is free now.
    """
    memory = fullest_gpu()
    if is_out_of_memory(error, memory):
        held = HISTORY.held(error, memory)
        reason = Reason("out_of_memory", rank, message=describe_error(error, memory), held=held)
        return RankOutcome("out_of_memory", reason)
    if isinstance(error, Diverged):
        return RankOutcome("diverged", Reason("diverged", rank, loss=str(error.loss), step=error.step))
    return RankOutcome("failed", Reason("error", rank, message=describe_error(error, memory)))


def describe_error(error: BaseException, memory: GpuMemory | None = None) -> str:
    r"""Return an error in one line.

    The text of an error that PyTorch's allocator raises is complete, because it has numbers of the memory. Any other
    text is shortened to `LONGEST_MESSAGE` characters and, if it may be about the memory of a GPU, followed by `memory`,
    which is that of the fullest GPU.

    >>> describe_error(ValueError("no such\nthing"))
    'ValueError: no such thing'
    """
    text = without_advice(" ".join(str(error).split()))
    has_numbers = isinstance(error, torch.cuda.OutOfMemoryError)
    if len(text) > LONGEST_MESSAGE and not has_numbers:
        text = _shorten(text)
    if memory is not None and not has_numbers and mentions_memory(error):
        text += f"; {memory.describe()}"
    return text if isinstance(error, SELF_EXPLANATORY) else f"{type(error).__name__}: {text}"


def _shorten(text: str) -> str:
    """Keep both ends of a text. In a worker's traceback, the head shows the place and the tail shows the error."""
    half = LONGEST_MESSAGE // 2
    head = text[:half]
    tail = text[-half:]
    head = head.rpartition(" ")[0] or head
    tail = tail.partition(" ")[2] or tail
    return f"{head} … {tail}"
