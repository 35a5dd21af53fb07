"""Check the profilers that are programs: whether they can be used, and whether Nsight Systems really records."""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.launch.supervise import run
from multicard.launch.variables import job_environment
from multicard.machine import Check, Verdict
from multicard.machine.probe import TorchFacts
from multicard.profilers import PROFILERS, Profiler
from multicard.profilers.interface import Availability
from multicard.profilers.nsys import CAPTURE_RANGE, NO_NVTX, PROFILER

RECORD_LIMIT_S = 90.0
UNTIL_THEN = "until then runs are recorded by PyTorch's profiler (profiler: auto)"


@dataclass(frozen=True)
class _Trial:
    """A trivial program for nsys to record. The exported trace must have rows in `table`, which `content` names."""

    device: str
    program: str
    content: str
    table: str


ON_CPU = _Trial(
    "cpu",
    f"import torch; torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start('{CAPTURE_RANGE}'))",
    "ranges",
    "NVTX_EVENTS",
)
ON_GPU = _Trial(
    "cuda",
    f"import torch; opened = torch.cuda.nvtx.range_start('{CAPTURE_RANGE}'); "
    "torch.ones(8, device='cuda').sum().item(); torch.cuda.nvtx.range_end(opened)",
    "kernels",
    "CUPTI_ACTIVITY_KIND_KERNEL",
)


def checks(facts: TorchFacts, record_limit_s: float = RECORD_LIMIT_S) -> list[Check]:
    """Check each profiler that is a program; if nsys can be used, let it record a trivial program.

    `facts`: from `multicard.machine.probe.facts_here`. `record_limit_s`: time limit in seconds for the recording, and
    again for the export.
    """
    profiler_checks = []
    for profiler in PROFILERS.values():
        if profiler.program is None:
            continue
        availability = profiler.availability("cuda")
        profiler_checks.append(_availability_check(profiler, availability))
        if availability.usable and profiler is PROFILER:
            profiler_checks.append(_recording(facts, record_limit_s))
    return profiler_checks


def _availability_check(profiler: Profiler, availability: Availability) -> Check:
    usable, why, caveat = availability
    if not usable:
        is_broken = profiler.is_installed() and why != NO_NVTX
        verdict: Verdict = "error" if is_broken else "warning"
        return Check(profiler.name, caveat or why, verdict, f"install it (docs/cluster.md); {UNTIL_THEN}")
    if caveat:
        return Check(profiler.name, caveat, "warning", f"install a newer one (docs/cluster.md); {UNTIL_THEN}")
    return Check(profiler.name, why)


def _recording(facts: TorchFacts, limit_s: float) -> Check:
    """Record a trivial program as a run is recorded, and export it. Only the rows of the exported trace are checked.

    Exit codes prove nothing: see `multicard.profilers.nsys`.
    """
    has_gpu = bool(facts.gpus) and facts.compute_problem is None
    trial = ON_GPU if has_gpu else ON_CPU
    with tempfile.TemporaryDirectory(prefix="multicard-doctor-", ignore_cleanup_errors=True) as scratch:
        report = Path(scratch, "report.nsys-rep")
        command = PROFILER.wrap([sys.executable, "-c", trial.program], report, trial.device)
        environment = job_environment(os.environ) | {"TMPDIR": scratch} | PROFILER.environment
        ended = run(command, environment, Path(scratch, "log.txt"), limit_s, lambda line: None)
        try:
            if ended.timed_out:
                raise TraceError(f"did not end within {limit_s:g} s")
            PROFILER.check(report)
            if not _count_rows(PROFILER.export(report, Path(scratch), limit_s), trial.table):
                raise TraceError(f"the report holds no {trial.content}")
        except (TraceError, sqlite3.Error) as error:
            do = f"another version of nsys that knows the driver; {UNTIL_THEN}"
            return Check("nsys recording", f"fails: {error}", "error", do)
    where = "" if has_gpu else " (no GPU to try)"
    duration = f"{ended.wall_time_s:.0f} s"
    return Check("nsys recording", f"recorded a program with its {trial.content}{where} and exported it in {duration}")


def _count_rows(database: Path, table: str) -> int:
    """Return the number of rows of a table, 0 if the database has no such table."""
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,))
        if not tables.fetchone()[0]:
            return 0
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
