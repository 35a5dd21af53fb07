"""Keep the processes of a job together: `python -I -S keeper.py STATUS_FD GRACE_S COMMAND …`, started by `processes`.

Every process that the command starts stays a descendant of this program until it ends, even if it changes its session
or its environment, or if its parent ends. The launcher holds the other end of this program's standard input. When the
launcher closes that end, or is killed, this program ends the job: it sends SIGTERM to all descendants, and `GRACE_S`
seconds later SIGKILL to those that are left.

When the command exits, its exit code is written to the file descriptor `STATUS_FD`; it is −N if signal N ended the
command. This program exits when no descendant is left. It uses the standard library only, and starts without `site`.
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

# An option of prctl(2): a descendant whose parent ends becomes a child of this process.
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.1  # seconds between looks while the job is being ended
NOT_FOUND = 127  # exit code of a command that cannot be started, as a shell has it
# The keeper ignores these signals. Slurm sends a signal to all processes of a job; the launcher gets it as well, and
# then ends the job through the keeper.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

Handler = Callable[[int, FrameType | None], Any] | int | None


def keep(status: int, grace_s: float, command: list[str]) -> None:
    """Start the command, write its exit code, and return once no descendant of this process is left.

    `status`: file descriptor for the exit code; `grace_s`: seconds between SIGTERM and SIGKILL.
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
    kill_at: float | None = None  # time of SIGKILL by `time.monotonic`; None until the launcher's end is closed
    while True:
        # Once the launcher's end is closed, `select` would report the pipe as ready every time, so it is left out.
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
    """Return a file descriptor that becomes readable when a child has ended, so that `select` returns then."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    # Python writes to the pipe only for signals that have a handler, so SIGCHLD gets one that does nothing.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return readable


def _close_output() -> None:
    """Close the job's output in this process, so that its reader gets to the end once the job's processes close it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())


def _become(command: list[str], inherited: dict[signal.Signals, Handler]) -> NoReturn:
    """Replace this process, which was just forked, by the command.

    The command gets the environment and the signal handling that the launcher gave to the keeper.
    """
    try:
        os.setsid()  # so that `kill 0` in a script signals the job, but not the keeper
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
    """Return the environment that this process was started with.

    `os.environ` may differ: in the C locale, Python adds variables when it starts.
    """
    environment: dict[bytes, bytes] = {}
    for variable in Path("/proc/self/environ").read_bytes().split(b"\0"):
        if variable:
            name, value = variable.split(b"=", 1)
            environment[name] = value
    return environment


def _reap(process: int, status: int) -> None:
    """Collect the children that have ended, and write the exit code of `process` if it is one of them.

    This returns at once if no child has ended. It raises `ChildProcessError` if there are no children.
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
    """Return the ids of the descendants of a process that have not ended, parents before their children."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / "stat").read_bytes()
        except OSError:  # the process has just ended
            continue
        # pid (name) state ppid …, where the name may hold anything: see proc_pid_stat(5).
        state, parent = content.rpartition(b")")[2].split()[:2]
        if state != b"Z":
            children[int(parent)].append(int(entry.name))
    descendants = list(children[ancestor])
    # The loop also visits the children that it appends.
    for process in descendants:
        descendants += children[process]
    return descendants


if __name__ == "__main__":
    keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
