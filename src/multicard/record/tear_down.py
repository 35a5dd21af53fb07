"""The end of a rank that has finished: in a limited time, whatever its process group does."""

import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist

LIMIT_S = 60.0


def leave_group(report: Callable[[str], None]) -> None:
    """Take down the process group of a rank whose record is written; that and Python's exit handlers have `LIMIT_S`.

    NCCL may wait for ever where another rank or a network has gone, and an exit handler where a library does. A rank
    for which that takes too long, or fails, exits at once, with 0: it has finished. What hangs still later, as a
    destructor in a driver may, is ended at the job's time limit, and the run is completed all the same.

    Parameters
    ----------
    report
        Is told what went wrong, just before.
    """

    def give_up(problem: str) -> NoReturn:
        try:
            report(problem)
        finally:
            leave_now(0)

    timer = threading.Timer(LIMIT_S, give_up, [f"the process did not exit within {LIMIT_S:g} s after it had finished"])
    timer.daemon = True  # it is never cancelled, and must not keep the process either
    timer.start()
    try:
        dist.destroy_process_group()
    except Exception as error:
        give_up(f"the process group could not be taken down: {type(error).__name__}: {error}")


def leave_now(code: int) -> NoReturn:
    """Exit without Python's own end, which would take the process group down and may wait for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
