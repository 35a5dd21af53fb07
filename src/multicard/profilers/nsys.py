"""Nsight Systems: its command lines, and whether what it left can be believed.

An exit code of 0 proves nothing: without its importer `nsys profile` exits with 0 and leaves no report. So every
step here is judged by the file that it should have made.
"""

import contextlib
import errno
import importlib.util
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write
from multicard.core.system import ask, version_of
from multicard.profilers.interface import Availability, Profiler, Session

if TYPE_CHECKING:
    import torch

CAPTURE_RANGE = "profiled_window"

VERSION_LIMIT_S = 30.0
WHERE_TORCH_IS = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
EXPORT_LIMIT_S = 3600.0
# The release of Nsight Systems that came with each CUDA toolkit; those before it were made for an older CUDA. Sources:
# `nsight_systems` in the version.json of the toolkits 11.8, 13.2 and 13.3, the version of Debian's package for 12.5
# (2024.2.3~12.5.0), for the others the folder nsight-systems-X that the toolkit installs (cuda-X.Y/nsight-systems-…).
WITH_CUDA = {
    (11, 8): (2022, 4, 2), (12, 1): (2023, 1, 2), (12, 2): (2023, 2, 3), (12, 3): (2023, 3, 3), (12, 4): (2023, 4, 4),
    (12, 5): (2024, 2, 3), (12, 6): (2024, 4, 2), (12, 8): (2024, 6, 2), (12, 9): (2025, 1, 3), (13, 0): (2025, 3, 2),
    (13, 1): (2025, 5, 2), (13, 2): (2025, 6, 3), (13, 3): (2026, 1, 3),
}  # fmt: skip
BUILT_WITHOUT = ""  # the CUDA of a torch that was built for CPUs, whose functions for NVTX raise an error
NO_NVTX = "torch has no NVTX, since it was built without CUDA"
NUMERIC = ("INTEGER", "REAL")  # types of columns in which nsys stores nothing else
DOMAIN_CREATED = 75  # eventType in NVTX_EVENTS
# What nsys 2023.4 says where it cannot start its agent, where it cannot reach it, and where it loses it.
FAILURE = re.compile(r"^Agent launcher failed\..*|^.*: Throw in function .*|^Connection to Agent lost\..*", re.M)
# What nsys says of a report that a newer one wrote, with both versions.
NEWER = re.compile(r"created in Nsight Systems version \(([\d.]+)[^)]*\), newer than your current version \(([\d.]+)")
FULL = "disk is full"  # SQLite's message, which nsys prints too, exiting with 0


class Nsys(Profiler):
    """One report per node, of all its ranks."""

    name = "nsys"
    description = "Nsight Systems"
    program = "nsys"
    # The range name that opens the capture is not a registered string in PyTorch.
    environment: ClassVar = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    node_file = "report.nsys-rep"
    exportable = (".nsys-rep", ".qdrep")  # the latter before nsys 2021.4
    exportable_beginnings = (b"NVIDIA Tegra Profiler Report",)
    readable = (".sqlite",)
    readable_beginnings = (b"SQLite format 3\0",)
    reader = "multicard.trace.nsys_sqlite"

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Whether nsys answers when asked for its version and torch has NVTX, which names the ranges that it records.

        On GPUs there is a caveat where it is older than the CUDA of torch.
        """
        if not self.is_installed():
            return Availability(False, "no nsys on the PATH")
        version = self.version()
        if version is None:
            return Availability(False, "the nsys on the PATH does not work: nsys --version prints no version")
        cuda = cuda_of_torch(python)
        if cuda == BUILT_WITHOUT:
            return Availability(False, NO_NVTX)
        older = older_than_cuda(version, cuda) if device == "cuda" else None
        return Availability(True, f"nsys {version} is on the PATH", older and f"nsys {older}")

    def version(self) -> str | None:
        """Version of the nsys on the PATH; None where there is none that prints it in time."""
        answer = ask(["nsys", "--version"], VERSION_LIMIT_S)
        found = re.search(r"^NVIDIA Nsight Systems version (\S.*)$", answer.output, re.M)
        return found[1].strip() if found and answer.problem is None else None

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Command that runs `command` and its children, recording the profiled window into the report `file`.

        CPU sampling and context switches stay off: on recent kernels they hang nsys 2022.4 for good.
        The window is an NVTX range: cudaProfilerStart and Stop may be the script's own. The capture's end must not end
        the job. Every kernel of a CUDA graph is recorded: by default nsys records a graph as one event. CUDA events
        are not, where nsys can leave them out: timing them adds dependencies between streams, and so hides overlap.
        Nor is the environment, by an nsys that can discard it. What the job leaves running neither holds nsys nor is
        ended by it: the launcher ends it, and records that.
        """
        trace = _if_known("profile", "--discard-environment=true")
        if device == "cuda":
            trace += ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]
            trace += _if_known("profile", "--cuda-event-trace=false")
        else:
            trace += ["--trace=nvtx"]
        return [
            "nsys", "profile", *trace, "--sample=none", "--cpuctxsw=none", "--capture-range=nvtx",
            f"--nvtx-capture={CAPTURE_RANGE}", "--capture-range-end=stop", "--wait=primary", "--kill=none",
            "--force-overwrite=true", f"--output={file}", *command,
        ]  # fmt: skip

    def failure(self, output: str) -> str | None:
        """What nsys says of its agent, which is no fault of the job."""
        found = FAILURE.search(output)
        return found and found[0]

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Open the window in which the nsys around the job records."""
        return NsysSession()

    def check(self, file: Path) -> None:
        """Raise `TraceError` unless `nsys profile` left a report."""
        if file.is_file() and file.stat().st_size > 0:
            return
        if file.with_suffix(".qdstrm").exists():
            raise TraceError("nsys left an unprocessed .qdstrm and no report: its importer is missing or failed")
        raise TraceError("nsys left no report")

    def export(self, file: Path, folder: Path, limit_s: float = EXPORT_LIMIT_S) -> Path:
        """Export a report to SQLite; the database appears only when it passed its checks.

        An nsys that can exports NVTX's payloads, in which NCCL states the sizes of its messages. An nsys that cannot
        discard environments records those of every process on the machine that it may read, not of the job alone. They
        are removed from the database, and so are all payloads but NCCL's; from the report they cannot be.

        Raises `TraceError` if nsys is missing, fails, or leaves a database that does not hold a trace. Raises
        `UserError` if there is no space for the database: the report is none the worse for it.
        """
        database = folder / f"{file.stem}.sqlite"
        if not self.is_installed():
            if database.exists():  # exported elsewhere
                check_database(database)
                return database
            raise TraceError(f"cannot export {file.name}: nsys is not on the PATH")
        try:
            with atomic_write(database) as temporary:
                temporary.unlink()  # nsys refuses to write to a name that exists
                payloads = _if_known("export", "--include-blobs=true")
                command = ["nsys", "export", "--type=sqlite", *payloads, f"--output={temporary}", str(file)]
                code, output = _run(command, limit_s)
                if FULL in output:
                    raise OSError(errno.ENOSPC, FULL)
                if not temporary.exists():
                    raise TraceError(_why_not_exported(file, code, output))
                check_database(temporary)
                try:
                    _scrub(temporary)
                except sqlite3.OperationalError as error:
                    raise OSError(errno.ENOSPC if FULL in str(error) else errno.EIO, str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise TraceError(f"nsys export of {file.name} took more than {limit_s:g} s") from error
        return database


class NsysSession(Session):
    """Ranges are NVTX, of the kind that ends by its handle: those of push and pop would cross the script's own."""

    def __init__(self) -> None:
        from torch.cuda import nvtx

        self._nvtx = nvtx

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Show the block as an NVTX range."""
        opened = self._nvtx.range_start(name)
        try:
            yield
        finally:
            self._nvtx.range_end(opened)

    def mark(self, name: str) -> None:
        """Leave an NVTX mark."""
        self._nvtx.mark(name)

    def recording(self) -> AbstractContextManager[object]:
        """Open the capture that `wrap` told nsys to wait for."""
        return self.range(CAPTURE_RANGE)


PROFILER = Nsys()


def older_than_cuda(version: str, cuda: str | None) -> str | None:
    """In words, that this version of nsys is older than the CUDA of torch; None where it is not, or that is unknown.

    >>> older_than_cuda("2023.4.4.54-234433681190v0", "13.0")
    '2023.4.4.54 is older than 2025.3.2, which came with CUDA 13.0; torch uses 13.0'
    """
    numbers = version_of(version)
    known = [of for of in sorted(WITH_CUDA) if cuda and of <= (version_of(cuda) or ())[:2]]
    if not known or not numbers or numbers[:3] >= WITH_CUDA[known[-1]]:
        return None
    found, needed, of = (".".join(map(str, each)) for each in (numbers, WITH_CUDA[known[-1]], known[-1]))
    return f"{found} is older than {needed}, which came with CUDA {of}; torch uses {cuda}"


def cuda_of_torch(python: str | None = None) -> str | None:
    """Version of CUDA that torch was built for, found without importing it.

    It is `BUILT_WITHOUT` of a torch that was built without, and None where there is no torch, or it does not say.

    `python`: the interpreter whose torch is meant, if not this one's.
    """
    if python in (None, sys.executable):
        spec = importlib.util.find_spec("torch")
        torch = (spec and spec.origin) or ""
    else:
        torch = "".join(ask([python, "-c", WHERE_TORCH_IS], VERSION_LIMIT_S).lines[-1:])
    try:
        text = Path(torch).with_name("version.py").read_text(encoding="utf-8") if torch else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*= (?:['\"]([\d.]+)['\"]|None$)", text, re.M)
    return (found[1] or BUILT_WITHOUT) if found else None


def _run(command: list[str], limit_s: float) -> tuple[int, str]:
    """Exit code and output of a command; its children are killed with it."""
    with (
        tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as temporary,
        tempfile.TemporaryFile("w+", errors="replace") as output,  # a child that lives on could hold a pipe open
    ):
        # nsys writes to $TMPDIR/nvidia, which on a shared machine may be another user's.
        environment = os.environ | {"LC_ALL": "C", "TMPDIR": temporary}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return process.returncode, output.read()


def _why_not_exported(file: Path, code: int, output: str) -> str:
    """In words, why nsys made no database of a report."""
    newer = NEWER.search(output)
    if newer:
        return (
            f"{file.name}: written by nsys {newer[1]}, expected at most {newer[2]}, which is on the PATH: export it "
            f"with the nsys that wrote it: nsys export --type sqlite {file.name}"
        )
    output = " ".join(output.split()) or "nothing"
    return f"nsys export of {file.name} ended with {code}, saying: {output[-300:]}"


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


def _if_known(command: str, option: str) -> list[str]:
    """The option, if the nsys on the PATH lists it in the help of the command."""
    name = re.escape(option.partition("=")[0])
    found = ask(["nsys", command, "--help"], VERSION_LIMIT_S)
    return [option] if re.search(rf"^\s*(-\w, *)?{name}(?![\w-])", found.output, re.M) else []


def _scrub(database: Path) -> None:
    """Overwrite environments of processes, and drop what is binary, which may hold anything, but for NCCL's payloads.

    An environment is a string of assignments joined by NUL characters, or a value under a name that says so.
    """
    removed = "(environment removed)"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE StringIds SET value = ? WHERE instr(CAST(value AS BLOB), x'00') > 0 OR typeof(value) = 'blob'",
            (removed,),
        )
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = {name: kind for _, name, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")')}
            if {"name", "value"} <= set(columns):
                connection.execute(f"UPDATE \"{table}\" SET value = ? WHERE name LIKE '%environment%'", (removed,))
            for column, kind in columns.items():
                if kind in NUMERIC or (table, column) == ("StringIds", "value"):
                    continue
                where = f"typeof(\"{column}\") = 'blob'"
                if (table, column) == ("NVTX_EVENTS", "binaryData"):
                    where += f" AND NOT {_is_of_nccl(connection)}"
                connection.execute(f'UPDATE "{table}" SET "{column}" = NULL WHERE {where}')
        connection.commit()
        connection.execute("VACUUM")  # what was overwritten would live on in unused parts of pages


def _is_of_nccl(connection: sqlite3.Connection) -> str:
    """Condition under which a row of NVTX_EVENTS belongs to NCCL's domain of the row's process."""
    domains = connection.execute(
        "SELECT DISTINCT d.globalTid >> 24, d.domainId FROM NVTX_EVENTS d LEFT JOIN StringIds s ON s.id = d.textId "
        f"WHERE d.eventType = {DOMAIN_CREATED} AND COALESCE(d.text, s.value) = 'NCCL'"
    )
    listed = ", ".join(f"({int(process)}, {int(domain)})" for process, domain in domains)
    # A row without a domain has none of these.
    return f"COALESCE((globalTid >> 24, domainId) IN (VALUES {listed}), 0)" if listed else "0"
