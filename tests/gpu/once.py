"""What the parts of the GPU check share."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from multicard.analysis.measures import measure_run
from multicard.experiment.parameters import JobParameters, run_id
from multicard.launch.job import run_job
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

ROOT = Path(__file__).parents[2]


def run_once(
    p: JobParameters, data: Path, scratch: Path, model: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Run one job to its measures; its record, its measures and the number of kernels in its trace."""
    folder = scratch / "runs" / run_id(p)
    record = run_job(p, data, folder, time_limit_s=180, model=model)
    export_run(folder)
    extract_run(folder)
    kernels = pd.read_parquet(folder / "activity" / "kernel_classes.parquet")["calls"].sum()
    return record, measure_run(folder), int(kernels)


def show(table: Table) -> None:
    """Print a table, wide where it goes to a file."""
    Console(width=None if sys.stdout.isatty() else 160).print(table)
