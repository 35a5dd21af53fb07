"""The main function of multicard's own training programs: `python -m PROGRAM --job FILE`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.job_file import JobFile, read_job
from multicard.core.text import printable_lines


def run_program(train: Callable[[JobFile], None]) -> None:
    """Read the job.json that the command line names, and call `train` with its contents.

    `train` runs one rank of the job. If it raises `UserError`, the program prints the lines of the error, without a
    traceback, and exits with code 1. `multicard.launch.job` writes job.json.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_job(parser.parse_args().job)
    try:
        train(job)
    except UserError as error:
        # The process group is not destroyed here, because that could wait for the other ranks.
        sys.exit(printable_lines(str(error)))
    except SystemExit:
        # The observer raises this to end the program when everything is measured.
        _leave_group()
        raise
    _leave_group()


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
