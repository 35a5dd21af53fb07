"""Ask the system: its CPUs, and external programs, which may be missing, hang, fail or print nonsense."""

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
READ_BYTES = 1 << 20  # bytes of an answer that are read; it may be endless
FILE_BYTES = 1 << 28  # size limit of a program's files: an endless answer must not fill the disk
SAYING = ", saying: "  # precedes the output of another program in a message
SHARED_GPU = "MULTICARD_SHARED_GPU"  # environment variable; checks of this project set it to try ranks on one GPU

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """The output of a program, made by `ask`."""

    output: str
    problem: str | None = None  # why the output cannot be relied on, in one line; None if the program ended with 0

    @property
    def lines(self) -> list[str]:
        """Lines of the output, stripped, without blank ones."""
        return [line.strip() for line in self.output.splitlines() if line.strip()]


def ask(command: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a program and return its output; whatever goes wrong is a `problem` of the answer, never an exception.

    `limit_s`: seconds after which the program is killed, with all that it started, by default 20.
    """
    name = command[0]
    limit_s = limit_s or LIMIT_S
    if shutil.which(name) is None:
        return Answer("", f"{name} is not on the PATH")
    # Through files: a process that the program left behind could hold a pipe open for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except OSError as error:
            return Answer("", f"{name} cannot be started: {error.strerror}")
        _limit_files(process.pid)
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output = _text(out)
        lines = f"{output}\n{_text(err)}".split("\n")
    if code is None:
        return Answer(output, f"{name} did not end within {limit_s:g} s")
    return Answer(output, f"{name} {ending(code, lines)}" if code else None)


def ending(code: int, lines: Sequence[str]) -> str:
    """Return how a program ended, with its last line that is not blank: errors stand after the traceback.

    >>> ending(1, ["Traceback (most recent call last):", "OSError:  no such  file", ""]), ending(2, [])
    ('ended with 1, saying: OSError: no such file', 'ended with 2, saying: nothing')
    """
    last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "nothing")
    return f"ended with {code}{SAYING}{last[:200]}"


def version_of(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version, up to the first part that is not a number; None if there is none.

    >>> version_of("2023.4.4.54-234433681190v0"), version_of("13.0"), version_of("?")
    ((2023, 4, 4, 54), (13, 0), None)
    """
    numbers = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(map(int, numbers[0].split("."))) if numbers else None


def ranks_may_share_gpus() -> bool:
    """Return whether several ranks may run on one GPU, over gloo: only in checks of this project."""
    return os.environ.get(SHARED_GPU) == "1"


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_of(pid: int) -> str | None:
    """Return when a process was started, in clock ticks since the system's start; None for one that has ended.

    This is field 22, starttime, of /proc/[pid]/stat (man 5 proc).
    """
    content = read_or_none(Path(f"/proc/{pid}/stat").read_text)
    if not content:
        return None
    # The second field, the program's name in brackets, may hold blanks and brackets.
    fields_from_third = content.rpartition(")")[2].split()
    return fields_from_third[22 - 3]


def in_parallel(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """Return the results of a function for all items, in their order, computed in threads if there are several."""
    # Starting a thread takes longer than reading a small trace.
    if len(items) < 2:
        return list(map(function, items))
    # Reading gains nothing from more threads.
    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
        return list(pool.map(function, items))


def read_or_none(read: Callable[[], T]) -> T | None:
    """Return the result of `read`, which asks the system or a driver; None if it raises, whatever it raises."""
    try:
        return read()
    except Exception:
        return None


def _limit_files(process: int) -> None:
    """Limit the size of the files that a program just started writes.

    `preexec_fn`, which would do it before the start, may deadlock where there are threads.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    is_unlimited = hard < 0
    soft = FILE_BYTES if is_unlimited else min(FILE_BYTES, hard)
    # The program may have ended already.
    with contextlib.suppress(OSError):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(READ_BYTES).decode("utf-8", errors="replace")
