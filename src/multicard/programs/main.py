"""The main function of multicard's own training programs."""

import sys
from collections.abc import Callable

import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.text import printable_lines
from multicard.observe.process import leave_now


def run_program(train: Callable[[], None]) -> None:
    """Call `train`, which runs one rank of a job, and leave the process group afterwards.

    If `train` raises `UserError`, the program prints the lines of the error, without a traceback, and exits with code
    1. After any other error, a rank of a process group exits without Python's finalization, in which NCCL may wait for
    ever.
    """
    try:
        train()
    except UserError as error:
        # The process group is not destroyed here, because that could wait for the other ranks.
        sys.exit(printable_lines(str(error)))
    except SystemExit:
        # The observer raises this to end the program when everything is measured.
        _leave_group()
        raise
    except BaseException as error:
        if not dist.is_initialized():
            raise
        # Prints the traceback and, if the program is observed, writes the record of the rank.
        sys.excepthook(type(error), error, error.__traceback__)
        leave_now(1)
    _leave_group()


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
