"""Nsight Systems: its command lines, and whether what it left can be believed.

An exit code of 0 proves nothing: without its importer `nsys profile` ends with 0 and leaves no report. So every
step here is judged by the file that it should have made.
"""

import contextlib
import errno
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write
from multicard.core.system import ask

CAPTURE_RANGE = "profiled_window"

VERSION_LIMIT_S = 30.0
EXPORT_LIMIT_S = 3600.0
FULL = "disk is full"  # as SQLite says it, in nsys too, which ends with 0 then


def is_there() -> bool:
    """Whether a program of that name is on the PATH."""
    return shutil.which("nsys") is not None


def version() -> str | None:
    """Version of the nsys on the PATH, or None when there is none that says so in good time."""
    answer = ask(["nsys", "--version"], VERSION_LIMIT_S)
    found = re.search(r"^NVIDIA Nsight Systems version (\S.*)$", answer.output, re.M)
    return found[1].strip() if found and answer.problem is None else None


def _answer(command: list[str], limit_s: float) -> tuple[int, str]:
    """Exit code and output of a command; its children are killed with it when it takes too long."""
    environment = os.environ | {"LC_ALL": "C"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except BaseException:
            # A child that lives on would hold the pipe open, which is read to its end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


def profile_command(command: list[str], report: Path, device: str) -> list[str]:
    """Command that runs `command` and its children, recording the profiled window into `report`.

    CPU sampling and context switches stay off: on recent kernels they hang nsys 2022.4 for good.
    On a CPU the window is an NVTX range, on a GPU a cudaProfilerStart/Stop pair. The capture's end must not
    end the job. Of a CUDA graph every kernel is recorded: by default nsys takes a graph for one piece.
    """
    if device == "cuda":
        trace = ["--trace=cuda,nvtx,cublas,cudnn", "--cuda-graph-trace=node"]
        capture = ["--capture-range=cudaProfilerApi"]
    else:
        trace = ["--trace=nvtx"]
        capture = ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}"]
    return [
        "nsys", "profile", *trace, "--sample=none", "--cpuctxsw=none", *capture, "--capture-range-end=stop",
        "--force-overwrite=true", f"--output={report}", *command,
    ]  # fmt: skip


# The range name that opens the capture is not a registered string in PyTorch.
PROFILE_ENVIRONMENT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def check_report(report: Path) -> None:
    """Raise `TraceError` unless `nsys profile` left a report."""
    if report.is_file() and report.stat().st_size > 0:
        return
    if report.with_suffix(".qdstrm").exists():
        raise TraceError("nsys left an unprocessed .qdstrm and no report: its importer is missing or failed")
    raise TraceError("nsys left no report")


def export(report: Path, database: Path) -> None:
    """Export a report to SQLite; `database` appears only when it passed its checks.

    nsys 2023.4 records the environment of every process on the machine that it may read, not of the job
    alone. The database is freed of them; the report itself cannot be.

    Raises
    ------
    TraceError
        If nsys is missing, fails, or leaves a database that does not hold a trace.
    UserError
        If there is no room for the database: the report is none the worse for it.
    """
    if not is_there():
        raise TraceError(f"cannot export {report.name}: nsys is not on the PATH")
    try:
        with atomic_write(database) as temporary:
            temporary.unlink()  # nsys refuses to write to a name that exists
            command = ["nsys", "export", "--type=sqlite", f"--output={temporary}", str(report)]
            code, said = _answer(command, EXPORT_LIMIT_S)
            if FULL in said:
                raise OSError(errno.ENOSPC, FULL)
            if not temporary.exists():
                said = " ".join(said.split()) or "nothing"
                raise TraceError(f"nsys export of {report.name} ended with {code}, saying: {said[-300:]}")
            check_database(temporary)
            try:
                _remove_environments(temporary)
            except sqlite3.OperationalError as error:
                raise OSError(errno.ENOSPC if FULL in str(error) else errno.EIO, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise TraceError(f"nsys export of {report.name} took more than {EXPORT_LIMIT_S:g} s") from error


def check_database(database: Path) -> None:
    """Raise `TraceError` unless the file is a sound SQLite database with a trace's strings in it."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (sound,) = connection.execute("PRAGMA quick_check").fetchone()
            if sound != "ok":
                raise TraceError(f"{database.name} is damaged: {sound}")
            (strings,) = connection.execute("SELECT count(*) FROM StringIds").fetchone()
    except sqlite3.DatabaseError as error:
        raise TraceError(f"{database.name} is not the SQLite export of a trace: {error}") from error
    if strings == 0:
        raise TraceError(f"{database.name} holds no strings, so no trace")


def _remove_environments(database: Path) -> None:
    """Overwrite the strings that hold a process's environment: assignments joined by NUL characters."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE StringIds SET value = '(environment removed)' WHERE instr(CAST(value AS BLOB), x'00') > 0"
        )
        connection.commit()
        connection.execute("VACUUM")  # what was overwritten would live on in unused parts of pages
