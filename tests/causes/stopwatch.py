"""A stopwatch for the scripts of known causes, without multicard.

    python tests/causes/stopwatch.py                    # all, as a table in Markdown
    python tests/causes/stopwatch.py slow_rank.py       # this one

Each script runs on one and two processes, with its cause and with `--fixed`. They are started with the variables that
torchrun sets, but as forks of this process, which has imported torch once for all. PyTorch calls a hook after each step
of an optimizer; the time between two calls on rank 0 is a step. What is printed is the median, over periods of the
script's work, of the mean step in a period, so that what else runs on the machine counts less.
"""

import multiprocessing
import os
import runpy
import socket
import sys
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from statistics import median

import torch
import torch._dynamo  # as the first optimizer does, at a second each
from known_causes import KNOWN_CAUSES, SCRIPTS, KnownCause
from torch.optim.optimizer import register_optimizer_step_post_hook

SKIPPED_STEPS = 12
MEASURED_STEPS = 40  # at least, in whole periods of the script's work
LIMIT_S = 120
FORKED = multiprocessing.get_context("fork")


def watch(cause: KnownCause, arguments: list[str], variables: dict[str, str], result: Connection) -> None:
    """Run a script in this process, end it when it has been timed, and send the two times of `step_s`."""
    ends: list[tuple[float, float]] = []  # on the clock, and of this process's time on CPUs
    skipped = SKIPPED_STEPS + (int(cause.arguments[-1]) if "--since" in cause.arguments else 0)
    periods = max(3, -(-MEASURED_STEPS // cause.period))

    def note_step(*_: object) -> None:
        ends.append((time.perf_counter(), time.process_time()))
        if len(ends) > skipped + periods * cause.period:
            columns = zip(*ends[skipped :: cause.period], strict=True)
            result.send([median(end - begin for begin, end in pairwise(column)) / cause.period for column in columns])
            raise SystemExit

    register_optimizer_step_post_hook(note_step)
    os.environ.update(variables)
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [cause.script, *arguments]
    runpy.run_path(str(SCRIPTS / cause.script), run_name="__main__")


def step_s(cause: KnownCause, world_size: int, fixed: bool) -> tuple[float, float]:
    """Return how long a step of the script takes, and how much of it rank 0 spends on CPUs, both in seconds."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    arguments = [*cause.arguments, *(cause.fixed if fixed else ())]
    common = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pipes = [FORKED.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        FORKED.Process(target=watch, args=(cause, arguments, common | {"RANK": str(rank)}, send))
        for rank, (_, send) in enumerate(pipes)
    ]
    for rank in ranks:
        rank.start()
    receive = pipes[0][0]
    timed = receive.poll(LIMIT_S)
    for rank in ranks:
        rank.join(20 if timed else 0)
        rank.kill()
    if not timed:
        raise SystemExit(f"{cause.script} on {world_size} processes was not timed")
    clock_s, cpu_s = receive.recv()
    return clock_s, cpu_s


def main() -> None:
    """Time the causes of the scripts that are named, or all."""
    print(f"Milliseconds a step, of what follows by hand, and on CPUs; torch {torch.__version__}\n")
    print("| script | 1 process | 2 processes | 1, `--fixed` | 2, `--fixed` |\n|---|---|---|---|---|")
    for cause in KNOWN_CAUSES:
        if sys.argv[1:] and cause.script not in sys.argv[1:]:
            continue
        cells = [" ".join([cause.script, *cause.arguments])]
        for fixed, expected in ((False, cause.step_s), (True, cause.fixed_step_s)):
            for world_size, expected_s in enumerate(expected, start=1):
                clock_s, cpu_s = step_s(cause, world_size, fixed)
                cells.append(f"{1000 * clock_s:.1f} of {1000 * expected_s:.1f}, CPU {1000 * cpu_s:.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
