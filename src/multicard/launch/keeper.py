"""Keep the processes of a job together: `python -I -S keeper.py STATUS_FD GRACE_S COMMAND …`, started by `processes`.

Every process that the command starts is a descendant of this one until it ends, whatever its session, its environment
and its parent. The launcher holds the other end of this program's standard input. When that closes, by itself or
because the launcher was killed, the job is to end: all descendants get SIGTERM, and SIGKILL `GRACE_S` later.

The exit code of the command is written to the file descriptor `STATUS_FD`, negative for a signal as `subprocess` has
it. This program exits when no descendant is left. It needs the standard library only, and starts without `site`.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# With this option of prctl(2), orphans among the descendants become children of this process.
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.1
NOT_FOUND = 127  # exit code of a command that cannot be started, as a shell has it
# A signal to the whole job, as Slurm sends it, reaches the launcher too, which ends the job in its order.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

Handler = Callable[[int, FrameType | None], Any] | int | None


def keep(status: int, grace_s: float, command: list[str]) -> None:
    """Start the command, report how it ended, and return once none of its descendants is left.

    `status`: file descriptor for the exit code; `grace_s`: between SIGTERM and SIGKILL.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(status, False)
    inherited = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    child_ended = _pipe_of_ended_children()
    process = os.fork()
    if process == 0:
        _become(command, inherited)
    _close_output()

    launcher = sys.stdin.fileno()
    kill_at: float | None = None  # once the job is to end
    while True:
        # Once the launcher's end is closed, it is ready for ever.
        watched = [child_ended, launcher] if kill_at is None else [child_ended]
        ready, _, _ = select.select(watched, [], [], None if kill_at is None else LOOK_S)
        if child_ended in ready:
            os.read(child_ended, 1024)
        if launcher in ready and not os.read(launcher, 1024):
            kill_at = time.monotonic() + grace_s
            _signal_all(signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal_all(signal.SIGKILL)
        try:
            _reap(process, status)
        except ChildProcessError:  # no child is left
            return


def _pipe_of_ended_children() -> int:
    """Return a file descriptor that can be read when a child has ended, so that `select` returns then."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # Without a handler of Python's, nothing is written to the pipe.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return readable


def _close_output() -> None:
    """Let go of the job's output: its reader is to see the end when the job's own processes have closed it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())


def _become(command: list[str], inherited: dict[signal.Signals, Handler]) -> NoReturn:
    """Turn this process, just forked, into the command, with signals and variables as the launcher gave them."""
    try:
        os.setsid()  # `kill 0` in a script is to reach the job, not its keeper
        for number, handler in inherited.items():
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else signal.SIG_DFL)
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
        os.execvpe(command[0], command, _environment_as_given())
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(NOT_FOUND)


def _environment_as_given() -> dict[bytes, bytes]:
    """Return the environment of this process without the variables that Python adds in the C locale."""
    environment: dict[bytes, bytes] = {}
    for variable in Path("/proc/self/environ").read_bytes().split(b"\0"):
        if variable:
            name, value = variable.split(b"=", 1)
            environment[name] = value
    return environment


def _reap(process: int, status: int) -> None:
    """Wait for the children that have ended, and write the exit code of `process` if it is one of them.

    Raise `ChildProcessError` if there are no children.
    """
    while True:
        ended, code = os.waitpid(-1, os.WNOHANG)
        if ended == 0:
            return
        if ended == process:
            with contextlib.suppress(BrokenPipeError):  # the launcher was killed
                os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
            os.close(status)


def _signal_all(number: signal.Signals) -> None:
    """Send a signal to all descendants."""
    for process in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _descendants(ancestor: int) -> list[int]:
    """Return the ids of the living descendants of a process, parents before their children."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / "stat").read_bytes()
        except OSError:  # it has just ended
            continue
        # pid (name) state ppid …, where the name may hold anything: see proc_pid_stat(5).
        state, parent = content.rpartition(b")")[2].split()[:2]
        if state != b"Z":
            children[int(parent)].append(int(entry.name))
    descendants = list(children[ancestor])
    # The list grows while it is read.
    for process in descendants:
        descendants += children[process]
    return descendants


if __name__ == "__main__":
    keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
