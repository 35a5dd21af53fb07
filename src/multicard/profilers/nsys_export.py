"""Export a report of Nsight Systems to a SQLite database, check it, and remove environments of processes from it.

`nsys export` exits with 0 even if it fails on a full disk. So its exit code is not used, but the database is checked.
"""

import contextlib
import errno
import os
import re
import signal
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write

# Types of columns that hold only numbers. Columns of other types may hold binary values.
NUMERIC = ("INTEGER", "REAL")
# The eventType of rows of NVTX_EVENTS that name a domain.
DOMAIN_CREATED = 75
# The message of nsys about a report that a newer nsys wrote. The groups are that version and its own.
NEWER = re.compile(r"created in Nsight Systems version \(([\d.]+)[^)]*\), newer than your current version \(([\d.]+)")
# How a report begins: with the version of the nsys that wrote it, such as 2025@1@3@140-251335620677v0.
HEADER = re.compile(rb"NVIDIA Tegra Profiler Report ([0-9]+(?:@[0-9]+){2,})")
HEADER_BYTES = 100
# SQLite's message, which nsys prints too.
DISK_IS_FULL = "disk is full"
REMOVED_ENVIRONMENT = "(environment removed)"
MOST_CHARACTERS = 300


def export_report(report: Path, database: Path, options: list[str], limit_s: float) -> None:
    """Export a report with these options of `nsys export`; the database appears only once it has passed its checks.

    Environments of processes, and all binary values except NCCL's payloads, are removed from the database.

    Raises `TraceError` if nsys fails, takes longer than `limit_s` seconds, or leaves a database that does not hold a
    trace. Raises `UserError` if the database cannot be written, as on a full disk. The report is not changed.
    """
    with atomic_write(database) as temporary:
        # nsys refuses to write to a file that exists.
        temporary.unlink()
        command = ["nsys", "export", "--type=sqlite", *options, f"--output={temporary}", str(report)]
        try:
            code, output = _run(command, limit_s)
        except subprocess.TimeoutExpired as error:
            raise TraceError(f"nsys export of {report.name} took more than {limit_s:g} s") from error
        # `atomic_write` turns this error, and the one below, into a `UserError`.
        if DISK_IS_FULL in output:
            raise OSError(errno.ENOSPC, DISK_IS_FULL)
        if not temporary.exists():
            raise TraceError(_why_not_exported(report, code, output))
        check_database(temporary)
        try:
            _scrub(temporary)
        except sqlite3.OperationalError as error:
            error_number = errno.ENOSPC if DISK_IS_FULL in str(error) else errno.EIO
            raise OSError(error_number, str(error)) from error


def _run(command: list[str], limit_s: float) -> tuple[int, str]:
    """Run a command; return its exit code, and its output and errors together.

    When the command has ended, or the time is over, all processes of its process group that are left are killed.

    Raises `subprocess.TimeoutExpired` if the command takes longer than `limit_s` seconds.
    """
    with (
        tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as temporary,
        # A file and not a pipe: a child in a process group of its own is not killed, and could hold a pipe open.
        tempfile.TemporaryFile("w+", errors="replace") as output,
    ):
        # nsys writes to $TMPDIR/nvidia. In a shared TMPDIR, that folder may belong to another user.
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


def _why_not_exported(report: Path, code: int, output: str) -> str:
    """Return a sentence that says why `nsys export` made no database; `code` and `output`: those of the command."""
    newer = NEWER.search(output)
    if newer:
        return (
            f"{report.name}: written by nsys {newer[1]}, which is newer than the nsys on the PATH ({newer[2]}): "
            f"install nsys {_release(newer[1])} or later, or use the one that wrote it: "
            f"nsys export --type sqlite {report.name}"
        )
    end = (" ".join(output.split()) or "nothing")[-MOST_CHARACTERS:]
    writer = writer_of(report)
    origin = f"; the report was written by nsys {writer}" if writer else ""
    return f"nsys export of {report.name} ended with {code}, saying: {end}{origin}"


def why_without_nsys(report: Path) -> str:
    """Return a sentence that says that a report cannot be exported without nsys, and which nsys can read it."""
    writer = writer_of(report)
    reader = f": install nsys {_release(writer)} or later, since nsys {writer} wrote it" if writer else ""
    return f"cannot export {report.name}: nsys is not on the PATH{reader}"


def writer_of(report: Path) -> str | None:
    """Return the version of the nsys that wrote a report; None if the report does not begin as reports do.

    A version has the form 2025.1.3.140.
    """
    try:
        with report.open("rb") as file:
            header = HEADER.match(file.read(HEADER_BYTES))
    except OSError:
        return None
    return header[1].decode().replace("@", ".") if header else None


def _release(version: str) -> str:
    """Return the name of the release of a version.

    >>> _release("2025.1.3.140")
    '2025.1.3'
    """
    return ".".join(version.split(".")[:3])


def check_database(database: Path) -> None:
    """Raise `TraceError` if the file is not an intact SQLite database, or has no strings of a trace in it."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (result,) = connection.execute("PRAGMA quick_check").fetchone()
            if result != "ok":
                raise TraceError(f"{database.name} is damaged: {result}")
            (string_count,) = connection.execute("SELECT count(*) FROM StringIds").fetchone()
    except sqlite3.DatabaseError as error:
        raise TraceError(f"{database.name} is not the SQLite export of a trace: {error}") from error
    if string_count == 0:
        raise TraceError(f"{database.name} holds no strings, so no trace")


def _scrub(database: Path) -> None:
    """Overwrite environments of processes, and set binary values to NULL, except NCCL's payloads.

    Binary values are removed because they may hold anything. An environment is either a string of assignments joined by
    NUL characters, or the `value` in a row whose `name` contains "environment".
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "UPDATE StringIds SET value = ? WHERE instr(CAST(value AS BLOB), x'00') > 0 OR typeof(value) = 'blob'",
            (REMOVED_ENVIRONMENT,),
        )
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            _scrub_table(connection, table)
        connection.commit()
        # Without this, the old values would stay in unused parts of the file.
        connection.execute("VACUUM")


def _scrub_table(connection: sqlite3.Connection, table: str) -> None:
    types = {name: column_type for _, name, column_type, *_ in connection.execute(f'PRAGMA table_info("{table}")')}
    if {"name", "value"} <= types.keys():
        connection.execute(f"UPDATE \"{table}\" SET value = ? WHERE name LIKE '%environment%'", (REMOVED_ENVIRONMENT,))
    for column, column_type in types.items():
        if column_type in NUMERIC or (table, column) == ("StringIds", "value"):
            continue
        condition = f"typeof(\"{column}\") = 'blob'"
        if (table, column) == ("NVTX_EVENTS", "binaryData"):
            condition += f" AND NOT {_is_of_nccl(connection)}"
        connection.execute(f'UPDATE "{table}" SET "{column}" = NULL WHERE {condition}')


def _is_of_nccl(connection: sqlite3.Connection) -> str:
    """Return an SQL condition that is true for rows of NVTX_EVENTS in the domain "NCCL".

    Each process has its own number for this domain, so the condition compares process and domain together.
    """
    domains = connection.execute(
        "SELECT DISTINCT d.globalTid >> 24, d.domainId FROM NVTX_EVENTS d LEFT JOIN StringIds s ON s.id = d.textId "
        f"WHERE d.eventType = {DOMAIN_CREATED} AND COALESCE(d.text, s.value) = 'NCCL'"
    )
    listed = ", ".join(f"({int(process)}, {int(domain)})" for process, domain in domains)
    # For a row without a domain the comparison is NULL, which COALESCE turns into false.
    return f"COALESCE((globalTid >> 24, domainId) IN (VALUES {listed}), 0)" if listed else "0"
