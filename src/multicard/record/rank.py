"""The entry point of every training program: run one rank, and record its outcome."""

import argparse
import errno
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
from multicard.core.reasons import Reason
from multicard.record import environment
from multicard.record.binding import bind, bound
from multicard.record.recorder import Diverged

P = TypeVar("P")
# Trains as one rank: takes the job, its parameters and the record so far, to which it may add as it goes; returns what
# else is to be recorded.
Training = Callable[[dict[str, Any], P, dict[str, Any]], dict[str, Any]]

KNOWN = (Diverged, UserError)  # errors whose message is enough, without their type and traceback
LONGEST_MESSAGE = 300  # characters

# Parts of error messages about memory that ran out, in lower case.
OUT_OF_MEMORY = (
    "out of memory",  # CUDA, NCCL
    "can't allocate memory",  # PyTorch on a CPU
    "cannot allocate memory",  # Linux
    "bad_alloc",  # C++
    "status_alloc_failed",  # cuBLAS and others
    "allocation_failed",  # cuDNN 9
)


def run_rank(parse: Callable[[dict[str, Any]], P], training: Training[P]) -> None:
    """Run this process as a rank of a job: read `--job FILE`, train, and leave rank.json whatever happens.

    Exits with code 1 where training raises an error. Training leaves its process group up then.

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
    try:
        record |= {
            "host": environment.host(),
            "hardware": environment.hardware(),
            "versions": environment.versions(),
        }
        record |= training(job, p, record)
    except BaseException as error:
        failure = error
        record |= {"outcome": _outcome(error), "reason": _reason(error, record["rank"]).record()}
    write_json(Path(job["scratch"]) / rank_file("rank.json", record["rank"]), record)
    if failure is not None:
        _leave(failure)


def _outcome(error: BaseException) -> str:
    if is_out_of_memory(error):
        return "out_of_memory"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _reason(error: BaseException, rank: int) -> Reason:
    if isinstance(error, Diverged):
        return Reason("diverged", rank=rank, loss=str(error.loss), step=error.step)
    code = "out_of_memory" if is_out_of_memory(error) else "error"
    return Reason(code, rank=rank, message=_message(error))


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > LONGEST_MESSAGE:  # the end of a worker's traceback has the error, its beginning the place
        half = LONGEST_MESSAGE // 2
        text = f"{text[:half]} … {text[-half:]}"
    return text if isinstance(error, KNOWN) else f"{type(error).__name__}: {text}"


def _leave(error: BaseException) -> NoReturn:
    """Exit; print the traceback of the error, unless its message is enough."""
    if isinstance(error, KNOWN):
        print(_message(error), file=sys.stderr)
    else:
        traceback.print_exception(error)
    if dist.is_initialized():
        # Python's own end would take the process group down, and may wait for ranks that wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    sys.exit(1)


class Placement(Protocol):
    """The parameters of a job that say where its ranks run."""

    device: str
    binding: str
    ranks_per_node: int


def bind_rank(p: Placement, gpus: list[int] | None = None) -> dict[str, Any]:
    """Bind this rank as its parameters ask, next to `gpus` or to its own; return what it is bound to."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if p.device == "cpu":
        gpus = []
    elif gpus is None:
        gpus = [local_rank]
    note = bind(local_rank, p.ranks_per_node, gpus) if p.binding == "numa" else None
    return bound() | {"note": note}


def log_progress(text: str) -> None:
    """Print a line of progress."""
    print(f"{PROGRESS}  {text}", flush=True)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in OUT_OF_MEMORY)
