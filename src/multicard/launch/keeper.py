"""Keep the processes of a job together: `python -I -S keeper.py STATUS_FD GRACE_S COMMAND …`, which `supervise` starts.

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
from pathlib import Path
from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36  # of Linux: orphans among the descendants become children of this process
LOOK_S = 0.1
NOT_FOUND = 127  # exit code of a command that cannot be started, as of a shell
# A signal to the whole job, as Slurm sends it, reaches the launcher too, which ends the job in its order.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def keep(status: int, grace_s: float, command: list[str]) -> None:
    """Start the command, report how it ended, and return once none of its descendants is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(status, False)
    inherited = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    process = os.fork()
    if process == 0:
        _become(command, inherited)
    # What reads the job's output is to see its end when the job's own processes have closed it.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sys.stdout.fileno())
    os.dup2(nothing, sys.stderr.fileno())

    launcher = sys.stdin.fileno()
    killing_at = None
    while True:
        ready, _, _ = select.select([woken] if killing_at else [woken, launcher], [], [], killing_at and LOOK_S)
        if woken in ready:
            os.read(woken, 1024)
        if launcher in ready and not os.read(launcher, 1024):
            killing_at = time.monotonic() + grace_s
            _signal_all(signal.SIGTERM)
        if killing_at and time.monotonic() >= killing_at:
            _signal_all(signal.SIGKILL)
        try:
            _reap(process, status)
        except ChildProcessError:  # no child is left
            return


def _become(command: list[str], inherited: dict[signal.Signals, object]) -> NoReturn:
    """Turn this process, just forked, into the command, with signals and variables as the launcher gave them."""
    try:
        os.setsid()  # `kill 0` in a script is to reach the job, not its keeper
        for number, handler in inherited.items():
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else signal.SIG_DFL)
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
        variables = Path("/proc/self/environ").read_bytes()  # without what Python adds in the C locale
        given = dict(each.split(b"=", 1) for each in variables.split(b"\0") if each)
        os.execvpe(command[0], command, given)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(NOT_FOUND)


def _reap(process: int, status: int) -> None:
    """Wait for the children that have ended, and write how `process` did.

    Raises `ChildProcessError` if there are no children.
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
    found = list(children[ancestor])
    for process in found:  # grows meanwhile
        found += children[process]
    return found


if __name__ == "__main__":
    keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
