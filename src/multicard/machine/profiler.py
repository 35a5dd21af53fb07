"""Profilers that are programs: whether they can be used, and whether Nsight Systems really records."""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.system import ask
from multicard.launch.environment import job_environment
from multicard.launch.process import run
from multicard.machine.checks import Check
from multicard.profilers import PROFILERS
from multicard.profilers.nsys import CAPTURE_RANGE, NO_NVTX, PROFILER

RECORD_LIMIT_S = 90.0
OF_CPU = "import torch; torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start('{range}'))"
OF_GPU = (
    "import torch; opened = torch.cuda.nvtx.range_start('{range}'); torch.ones(8, device='cuda').sum().item(); "
    "torch.cuda.nvtx.range_end(opened)"
)
WITHOUT = "until then runs are recorded by PyTorch's profiler (profiler: auto)"


def checks(facts: dict[str, Any], record_limit_s: float = RECORD_LIMIT_S) -> list[Check]:
    """Ask each profiler, and have nsys record a trivial program if torch can name ranges for it."""
    found = []
    for entry in PROFILERS.values():
        if not entry.program:
            continue
        usable, why, caveat = entry.availability("cuda")
        verdict, do = ("warning", f"install a newer one (docs/cluster.md); {WITHOUT}") if caveat else ("ok", "")
        if not usable:
            is_broken = entry.is_installed() and why != NO_NVTX
            verdict, do = "error" if is_broken else "warning", f"install it (docs/cluster.md); {WITHOUT}"
        found.append(Check(entry.name, caveat or why, verdict, do))
        if usable and entry is PROFILER:
            found.append(_recording(facts, record_limit_s))
    return found


def _recording(facts: dict[str, Any], limit_s: float) -> Check:
    """Record a program as a run is recorded. The report, exported, counts; exit codes do not."""
    name, on_gpu = "nsys recording", bool(facts.get("gpus")) and "started_problem" not in facts
    program = (OF_GPU if on_gpu else OF_CPU).format(range=CAPTURE_RANGE)
    what, table = ("kernels", "CUPTI_ACTIVITY_KIND_KERNEL") if on_gpu else ("ranges", "NVTX_EVENTS")
    with tempfile.TemporaryDirectory(prefix="multicard-doctor-", ignore_cleanup_errors=True) as scratch:
        report, database = Path(scratch, "report.nsys-rep"), Path(scratch, "report.sqlite")
        command = PROFILER.wrap([sys.executable, "-c", program], report, "cuda" if on_gpu else "cpu")
        environment = job_environment(os.environ) | {"TMPDIR": scratch} | PROFILER.environment
        ended = run(command, environment, Path(scratch, "log.txt"), limit_s, lambda line: None)
        try:
            if ended.timed_out:
                raise TraceError(f"did not end within {limit_s:g} s")
            PROFILER.check(report)
            # Not its own export, which waits an hour for large reports.
            export = ["nsys", "export", "--type=sqlite", f"--output={database}", str(report)]
            exported = ask(export, limit_s, os.environ | {"TMPDIR": scratch})
            if not database.exists():
                raise TraceError(exported.problem or "nsys export left no database")
            if not _rows(database, table):
                raise TraceError(f"the report holds no {what}")
        except (TraceError, sqlite3.Error) as error:
            return Check(name, f"fails: {error}", "error", f"another version of nsys that knows the driver; {WITHOUT}")
    tried = "" if on_gpu else " (no GPU to try)"
    return Check(name, f"recorded a program with its {what}{tried} and exported it in {ended.wall_time_s:.0f} s")


def _rows(database: Path, table: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if there else 0
