"""What the training programs of multicard's own workloads share: `python -m PROGRAM --job FILE`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.files import read_json
from multicard.core.text import printable_lines


def run_program(train: Callable[[dict[str, Any]], None]) -> None:
    """Be one rank of a job, by job.json of `multicard.launch.job`; an error that the user can fix is one line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_json(parser.parse_args().job)
    try:
        train(job)
    except UserError as error:  # to take the process group down could wait for the other ranks
        sys.exit(printable_lines(str(error)))
    except SystemExit:  # it is observed, and all is measured
        _leave_group()
        raise
    _leave_group()


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
