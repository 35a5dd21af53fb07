"""What the system offers: its CPUs, and external programs, which may be missing, hang, fail or print nonsense."""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

LIMIT_S = 20.0
READ_BYTES = 1 << 20  # of an endless answer
FILE_BYTES = 1 << 28  # that one file of the program may take: an endless answer must not fill the disk
SAYING = ", saying: "  # in a message, before the output of another program
SHARED_GPU = "MULTICARD_SHARED_GPU"  # set to 1 by checks of this project that try several ranks on one GPU

T, R = TypeVar("T"), TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """What a program printed, and in one line why that cannot be relied on; None where it ended with 0."""

    output: str
    problem: str | None = None

    @property
    def lines(self) -> list[str]:
        """Lines of the output, without those that are blank."""
        return [line.strip() for line in self.output.splitlines() if line.strip()]


def ask(command: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a program and give what it prints; whatever goes wrong is a `problem`, never an exception.

    The answer goes through a file: a process that the program left behind could hold a pipe open for ever.
    """
    name, limit_s = command[0], limit_s or LIMIT_S
    if shutil.which(name) is None:
        return Answer("", f"{name} is not on the PATH")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except OSError as error:
            return Answer("", f"{name} cannot be started: {error.strerror}")
        _limit_files(process.pid)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output = _text(out)
        said = f"{output}\n{_text(err)}".split("\n")
    if code is None:
        return Answer(output, f"{name} did not end within {limit_s:g} s")
    return Answer(output, f"{name} {ending(code, said)}" if code else None)


def ending(code: int, said: Sequence[str]) -> str:
    """How a program ended, with the last of its lines that is not blank: those before are often how it got there.

    >>> ending(1, ["Traceback (most recent call last):", "OSError:  no such  file", ""]), ending(2, [])
    ('ended with 1, saying: OSError: no such file', 'ended with 2, saying: nothing')
    """
    last = next((" ".join(line.split()) for line in reversed(said) if line.strip()), "nothing")
    return f"ended with {code}{SAYING}{last[:200]}"


def version_of(text: str) -> tuple[int, ...] | None:
    """Numbers of a version, up to the first part that is none.

    >>> version_of("2023.4.4.54-234433681190v0"), version_of("13.0"), version_of("?")
    ((2023, 4, 4, 54), (13, 0), None)
    """
    found = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(map(int, found[0].split("."))) if found else None


def ranks_may_share_gpus() -> bool:
    """Whether several ranks may run on one GPU, over gloo: only where a check of this project asks for it."""
    return os.environ.get(SHARED_GPU) == "1"


def usable_cpus() -> int:
    """Count the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_of(pid: int) -> str | None:
    """Return when a process was started, in ticks since Linux was; None of one that has ended ("man proc", stat)."""
    fields = read_or_none(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split())
    return fields[19] if fields else None


def in_parallel(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """What a function gives for each item, in threads if there are several."""
    if len(items) < 2:  # to start a thread takes longer than to read a small trace
        return list(map(function, items))
    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:  # reading gains no more from others
        return list(pool.map(function, items))


def read_or_none(read: Callable[[], T]) -> T | None:
    """What a reading of the system or of a driver gives; None where it fails, whatever it raises."""
    try:
        return read()
    except Exception:
        return None


def _limit_files(process: int) -> None:
    """Limit the files of a program just started. Not by `preexec_fn`, which may deadlock where there are threads."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with contextlib.suppress(OSError):  # it has ended
        limits = (FILE_BYTES if hard < 0 else min(FILE_BYTES, hard), hard)
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(READ_BYTES).decode("utf-8", errors="replace")
