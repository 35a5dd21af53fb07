"""The entry point of every training program: run one rank, and record its outcome."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.files import read_json, write_json
from multicard.core.layout import PROGRESS, rank_file
from multicard.core.reasons import LONGEST_MESSAGE, Reason
from multicard.record import environment, visible
from multicard.record.binding import bind, bound
from multicard.record.compilation import limits_hit
from multicard.record.out_of_memory import GpuMemory, fullest_gpu, is_out_of_memory, speaks_of_memory, without_advice
from multicard.record.recorder import Diverged
from multicard.record.tear_down import leave_group, leave_now

P = TypeVar("P")
# Trains as one rank: takes the job, its parameters and the record so far, to which it may add as it goes; returns what
# else is to be recorded.
Training = Callable[[dict[str, Any], P, dict[str, Any]], dict[str, Any]]

KNOWN = (Diverged, UserError)  # errors whose message is enough, without their type and traceback


def run_rank(parse: Callable[[dict[str, Any]], P], training: Training[P]) -> None:
    """Run this process as a rank of a job: read `--job FILE`, train, and leave rank.json whatever happens.

    Training leaves its process group up: the record is written first, and how long its end may take is limited. A rank
    whose training raises an error exits with code 1 and leaves the group as it is.

    Parameters
    ----------
    parse
        Makes the parameters that `training` takes of those in the job.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_json(parser.parse_args().job)
    p = parse(job["parameters"])
    record = {
        "outcome": "completed",
        "reason": None,
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", "0")),
    }
    failure = None
    path = Path(job["scratch"]) / rank_file("rank.json", record["rank"])
    try:
        record["gpus"] = visible.identities(visible.rank_devices(p))
        record |= {
            "host": environment.host(),
            "hardware": environment.hardware(),
            "versions": environment.versions(),
        }
        record |= training(job, p, record)
    except BaseException as error:
        failure = error
        record |= describe_failure(error, record["rank"])
    record["compile_limits_hit"] = limits_hit()
    write_json(path, record)
    if failure is not None:
        _leave(failure)
    if dist.is_initialized():
        leave_group(lambda problem: write_json(path, record | {"tear_down_problem": problem}))


def describe_failure(error: BaseException, rank: int | None) -> dict[str, Any]:
    """`outcome` and `reason` of a rank that an error ends, while its traceback holds what was allocated."""
    memory = fullest_gpu()
    outcome = _outcome(error, memory)
    return {"outcome": outcome, "reason": _reason(error, outcome, memory, rank).record()}


def _outcome(error: BaseException, memory: GpuMemory | None) -> str:
    if is_out_of_memory(error, memory):
        return "out_of_memory"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _reason(error: BaseException, outcome: str, memory: GpuMemory | None, rank: int | None) -> Reason:
    if isinstance(error, Diverged):
        return Reason("diverged", rank=rank, loss=str(error.loss), step=error.step)
    code = "out_of_memory" if outcome == "out_of_memory" else "error"
    return Reason(code, rank=rank, message=_message(error, memory))


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


def _leave(error: BaseException) -> NoReturn:
    """Exit; print the traceback of the error, unless its message is enough."""
    if isinstance(error, KNOWN):
        print(_message(error), file=sys.stderr)
    else:
        traceback.print_exception(error)
    if dist.is_initialized():
        leave_now(1)
    sys.exit(1)


class Placement(visible.Placement, Protocol):
    """The parameters of a job that say where its ranks run."""

    binding: str


def bind_rank(p: Placement) -> dict[str, Any]:
    """Bind this rank as its parameters ask, next to its GPUs; return what it is bound to."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = [device.index for device in visible.rank_devices(p) if device.type == "cuda"]
    note = bind(local_rank, p.ranks_per_node, gpus) if p.binding == "numa" else None
    return bound() | {"note": note}


def log_progress(text: str) -> None:
    """Print a line of progress."""
    print(f"{PROGRESS}  {text}", flush=True)
