"""Ranks of jobs, forked from a process that has imported what they need.

Each is a process of its own that runs the program as torchrun would start it, only without the seconds in
which torchrun starts and PyTorch is imported. It is for tests of what is trained; tests of how jobs start, end and fail
start them as users do.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

from multicard.launch import node_ranks, supervise
from multicard.launch.supervise import Ended
from multicard.observe import OBSERVE, OBSERVER_SITE
from multicard.programs.machine import Machine, torchtune_python

RANKS = "--nproc-per-node="
LIMIT_S = 600.0  # of what has no time limit of its own
FORKS = multiprocessing.get_context("forkserver")
FROZEN = "frozen_imports"  # the last to be preloaded
# What vision and tuning import; every optimizer imports torch._dynamo. What this environment lacks is left out.
PRELOADED = (
    "multicard.programs.vision.train", "multicard.programs.llm.train", "multicard.programs.llm.trl_backend",
    "torch._dynamo", "torch.distributed.checkpoint", "datasets", "omegaconf", "torchtune.config",
    "torchtune.datasets", "torchtune.models.llama3_2", "torchtune.modules.peft", "torchtune.rlhf",
    "torchtune.training",
)  # fmt: skip


@contextmanager
def forked_ranks(
    preload: Sequence[str] = PRELOADED, on_gpus: bool = False, limit_at: str | None = None
) -> Iterator[None]:
    """Let jobs that are run in this context fork their ranks; the first use decides what is `preload`ed.

    Where there are GPUs they are started as ever: a process that has asked for a GPU, as what is preloaded does, cannot
    be forked.

    Parameters
    ----------
    on_gpus
        What is preloaded asks for no GPU, so ranks are forked there too.
    limit_at
        What a job prints when its time limit is to be over, however long it took until then.
    """
    FORKS.set_forkserver_preload([__name__, *preload, FROZEN])
    run = partial(run_forked, limit_at=limit_at)
    with patch.object(node_ranks, "run", run) if on_gpus or not Machine.here().gpus else nullcontext():
        yield


def start_ranks(
    function: Callable[..., None], arguments: tuple[Any, ...], ranks: int = 1, preload: Sequence[str] = PRELOADED
) -> None:
    """Call a function with a rank's number and the arguments in each rank, as `torch.multiprocessing.spawn` does."""
    from torch.multiprocessing import start_processes

    FORKS.set_forkserver_preload([__name__, *preload, FROZEN])
    start_processes(function, arguments, ranks, start_method="forkserver")


def run_forked(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    limit_at: str | None = None,
    folder: Path | None = None,
    **others: Any,
) -> Ended:
    """Stand in for `multicard.launch.supervise.run`: start the ranks of a job as torchrun would.

    A job by the interpreter of another environment, which cannot be forked from this one, is started as ever.
    """
    import torch.distributed as dist

    if command[0] == torchtune_python() != sys.executable:
        return supervise.run(command, environment, log, time_limit_s, on_line, folder=folder, **others)

    counts = [int(part.removeprefix(RANKS)) for part in command if part.startswith(RANKS)]
    last = len(command) - 1 - command[::-1].index("-m")
    program = [word for word in command[last + 1 :] if word != "--"]
    log.touch()
    first = FORKS.Process(target=int)  # before the clock starts, since what all ranks are forked from may start with it
    first.start()
    first.join()
    started, ranks = time.monotonic(), counts[0] if counts else 1
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if counts else None
    processes = []
    for rank in range(ranks):
        # Also where there is a single rank, since multicard takes no process that multiprocessing starts for one.
        place = {"RANK": rank}
        if store:
            place |= {"LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        if store:
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
        variables = environment | {name: str(value) for name, value in place.items()}
        processes.append(FORKS.Process(target=run_rank, args=(program, variables, str(log.absolute()), folder)))
        processes[-1].start()
    left, timed_out, is_stuck = list(processes), False, False
    while left and not timed_out and not is_stuck and not any(process.exitcode for process in processes):
        left_s = started + time_limit_s - time.monotonic()
        wait([process.sentinel for process in left], 0.1 if limit_at else max(0.0, left_s))
        left = [process for process in left if process.exitcode is None]
        is_over = limit_at in log.read_text() if limit_at else time.monotonic() - started > time_limit_s
        timed_out = bool(left) and is_over
        is_stuck = bool(left) and limit_at is not None and time.monotonic() - started > LIMIT_S
    for process in left:
        process.kill()
        process.join()
    assert timed_out or not is_stuck, f"no {limit_at!r} in {LIMIT_S:.0f} s:\n{log.read_text()}"
    code = next((process.exitcode for process in processes if process.exitcode), 0)
    for line in log.read_text().splitlines():
        on_line(line)
    return Ended(code, timed_out, time.monotonic() - started)


def run_program(*command: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of Python to its end in a forked process; all that it prints is in `stderr`."""
    FORKS.set_forkserver_preload([__name__, *PRELOADED, FROZEN])
    words = [str(word) for word in command]
    with tempfile.NamedTemporaryFile("r") as log:
        process = FORKS.Process(target=be_program, args=(words, log.name))
        process.start()
        process.join(LIMIT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{words} did not end in {LIMIT_S:.0f} s:\n{log.read()}")
        return subprocess.CompletedProcess(words, process.exitcode, stderr=log.read())


def be_program(command: list[str], log: str) -> None:
    print_to(log)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")


def print_to(log: str) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)


def begin_observing() -> None:
    """Watch this process, as Python does where it has not imported torch yet."""
    runpy.run_path(str(OBSERVER_SITE))["watch"]()


def run_rank(program: list[str], environment: dict[str, str], log: str, folder: Path | None) -> None:
    """Be one rank: run the program as `python -m` does."""
    # As in a program that is started by its user. A process from a fork server starts its own in the same way, and each
    # worker of a loader would import the program again.
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environment)
    print_to(log)
    if folder is not None:
        os.chdir(folder)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = program
    if OBSERVE in environment:
        begin_observing()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
