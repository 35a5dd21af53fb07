"""Run external programs, which may be missing, hang, fail or print nonsense; and read facts from the system."""

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

LIMIT_S = 20.0  # seconds after which a program is killed by default
READ_BYTES = 1 << 20  # bytes of a program's output, and of its errors, that are read at most
FILE_BYTES = 1 << 28  # size limit of each file that a program writes: endless output must not fill the disk
SAYING = ", saying: "  # precedes the output of another program in a message
# Environment variable: with the value 1, several ranks may share a GPU. Only checks of this project set it.
SHARED_GPU = "MULTICARD_SHARED_GPU"

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """The output of a program, made by `ask`."""

    output: str  # standard output alone
    problem: str | None = None  # how the program failed, in one line; None if it exited with 0

    @property
    def lines(self) -> list[str]:
        """Lines of the output, stripped, without blank ones."""
        return [line.strip() for line in self.output.splitlines() if line.strip()]


def ask(command: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a program and return its output. If it fails, the answer has a `problem`; no exception is raised.

    When the program has exited, the processes of its process group that are left are killed.

    `limit_s`: seconds after which the program is killed; None for 20. `environment`: its variables; None for those of
    this process.
    """
    name = command[0]
    limit_s = limit_s or LIMIT_S
    if shutil.which(name) is None:
        return Answer("", f"{name} is not on the PATH")
    # The output goes to files. A process that the program left behind could hold a pipe open for ever.
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
    """Return how a program ended: its exit code and its last line that is not blank, up to 200 characters.

    The last line of a Python program that fails is the error, which follows the traceback.

    >>> ending(1, ["Traceback (most recent call last):", "OSError:  no such  file", ""]), ending(2, [])
    ('ended with 1, saying: OSError: no such file', 'ended with 2, saying: nothing')
    """
    last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "nothing")
    return f"ended with {code}{SAYING}{last[:200]}"


def version_of(text: str) -> tuple[int, ...] | None:
    """Return the numbers at the beginning of a version, up to the first other part; None if there are none.

    >>> version_of("2023.4.4.54-234433681190v0"), version_of("13.0"), version_of("?")
    ((2023, 4, 4, 54), (13, 0), None)
    """
    numbers = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(map(int, numbers[0].split("."))) if numbers else None


def ranks_may_share_gpus() -> bool:
    """Return whether several ranks may share a GPU, and communicate over gloo. Only checks of this project allow it."""
    return os.environ.get(SHARED_GPU) == "1"


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_of(pid: int) -> str | None:
    """Return when a process was started, as the text of its clock ticks since the system's start.

    None if there is no such process. The value is the field starttime.
    """
    fields = _fields_of(pid)
    return None if fields is None else fields[22]


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds that a process has used, to a tick of Linux (10 ms); None if there is no such process.

    They are the fields utime and stime. A process that has ended, and that nobody has waited for yet, still has them.
    """
    fields = _fields_of(pid)
    return None if fields is None else (int(fields[14]) + int(fields[15])) / os.sysconf("SC_CLK_TCK")


def _fields_of(pid: int) -> dict[int, str] | None:
    """Return the fields of /proc/[pid]/stat by their numbers in man 5 proc, from the third on.

    None if there is no such process.
    """
    content = read_or_none(Path(f"/proc/{pid}/stat").read_bytes)
    if not content:
        return None
    # The second field is the program's name in brackets, which may itself contain blanks and brackets, in any encoding.
    return dict(enumerate(content.rpartition(b")")[2].decode().split(), start=3))


def in_parallel(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """Return the results of a function for all items, in the order of the items; computed in threads if several."""
    # For a single item no thread is started, since that takes longer than reading a small trace.
    if len(items) < 2:
        return list(map(function, items))
    # The functions read files, which more than 8 threads do not make faster.
    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
        return list(pool.map(function, items))


def read_or_none(read: Callable[[], T]) -> T | None:
    """Return the result of `read`, which reads from the system or a driver; None if it raises any `Exception`."""
    try:
        return read()
    except Exception:
        return None


def _limit_files(process: int) -> None:
    """Limit the size of each file that a program writes, right after the program was started.

    `preexec_fn` of `Popen` would set the limit before the start, but it may deadlock in a process with threads.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    is_unlimited = hard < 0
    soft = FILE_BYTES if is_unlimited else min(FILE_BYTES, hard)
    # This fails if the program has ended already.
    with contextlib.suppress(OSError):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(READ_BYTES).decode("utf-8", errors="replace")
