"""Nsight Systems: its version, and whether it really records."""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.system import ask, version_of
from multicard.doctor.checks import Check
from multicard.launch.environment import job_environment
from multicard.launch.process import run
from multicard.profilers import PROFILERS
from multicard.profilers.nsys import CAPTURE_RANGE, NO_NVTX, PROFILER, older_than_cuda

RECORD_LIMIT_S = 90.0
OF_CPU = "import torch; torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start('{range}'))"
OF_GPU = (
    "import torch; opened = torch.cuda.nvtx.range_start('{range}'); torch.ones(8, device='cuda').sum().item(); "
    "torch.cuda.nvtx.range_end(opened)"
)
WITHOUT = "without nsys runs are recorded by PyTorch's profiler (profiler: auto)"


def checks(facts: dict[str, Any], record_limit_s: float = RECORD_LIMIT_S) -> list[Check]:
    """Look at the version of nsys, and have it record a trivial program if torch can name ranges for it."""
    answer = ask(["nsys", "--version"])
    if answer.problem and "not on the PATH" in answer.problem:
        return [Check("nsys", "not on the PATH", "warning", f"envs/install-nsys.sh or a module; {WITHOUT}")]
    found = answer.output.rpartition("version ")[2].split()
    version = version_of(found[0]) if found and not answer.problem else None
    if version is None or len(version) < 2:
        return [
            Check(
                "nsys", f"cannot tell its version: {answer.problem or _short(answer.output)}", "error", "reinstall nsys"
            ),
        ]
    if "torch" in facts and facts.get("cuda") is None:
        return [Check("nsys", f"{_dotted(version)}, but {NO_NVTX}", "warning", f"a torch for CUDA; {WITHOUT}")]
    return [_age(found[0], facts), _recording(facts, record_limit_s)]


def other_checks() -> list[Check]:
    """Whether the programs of the other profilers can be used."""
    others = [entry for entry in PROFILERS.values() if entry.program and entry.name != PROFILER.name]
    found = [(entry.name, entry.availability("cuda")) for entry in others]
    return [Check(name, why or "on the PATH", "ok" if usable else "warning") for name, (usable, why, _) in found]


def _dotted(version: tuple[int, ...] | None) -> str:
    return ".".join(map(str, version or ()))


def _short(text: str) -> str:
    return f"it printed {' '.join(text.split())[:80] or 'nothing'}"


def _age(version: str, facts: dict[str, Any]) -> Check:
    older = older_than_cuda(version, facts.get("cuda"))
    if older is None:
        return Check("nsys", _dotted(version_of(version)))
    do = "on GPUs it may record nothing, so profiler: auto uses PyTorch's: install a newer one (docs/software.md)"
    return Check("nsys", older, "warning", do)


def _recording(facts: dict[str, Any], limit_s: float) -> Check:
    """Record a program as a run is recorded. The report, exported, counts; exit codes do not."""
    name, on_gpu = "nsys recording", bool(facts.get("gpus")) and "started_problem" not in facts
    program = (OF_GPU if on_gpu else OF_CPU).format(range=CAPTURE_RANGE)
    table = "CUPTI_ACTIVITY_KIND_KERNEL" if on_gpu else "NVTX_EVENTS"
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
            rows = _rows(database, table)
        except (TraceError, sqlite3.Error) as error:
            return Check(name, f"fails: {error}", "error", f"another version of nsys; {WITHOUT}")
    if not rows:
        what = "no kernel of the GPU" if on_gpu else "no range"
        do = "an nsys that knows this driver, or leave to profile GPUs" if on_gpu else f"another version; {WITHOUT}"
        return Check(name, f"it left a report with {what} in it", "error", do)
    took = f"recorded and exported a program in {ended.wall_time_s:.0f} s"
    return Check(name, f"{took}, {'with its kernels' if on_gpu else 'with its ranges (no GPU to try)'}")


def _rows(database: Path, table: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if there else 0
