"""Run one command under a time limit and leave none of its processes behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from multicard.files import room_for

GRACE_S = 15.0
FINISH_LIMIT_S = 600.0  # that a profiler may take to write its report after the job
LOOK_S = 1.0
JOB_MARK = "MULTICARD_JOB"


@dataclass(frozen=True)
class Ended:
    """What became of a command."""

    exit_code: int
    timed_out: bool
    wall_time_s: float
    lingered: bool = False  # a wrapper that did not end after its job, and was ended


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    done: Callable[[], bool] | None = None,
) -> Ended:
    """Run `command`, write its output to `log`, and hand each line to `on_line`.

    Every process of the job carries a mark in its environment, children that detach included (the nsys
    agent does). Whatever still carries it when the command has ended, or when this process is told to end,
    is ended too: first asked (SIGTERM), `GRACE_S` later killed.

    Parameters
    ----------
    done
        Of a command that wraps the job, as a profiler does: whether the job within has said its last word. Such a
        wrapper is ended when it lingers `FINISH_LIMIT_S` longer; one that a signal ends does not take the job with it.

    Raises
    ------
    UserError
        If there is no room for the log. The job is ended.
    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    previous = {s: signal.signal(s, _leave) for s in (signal.SIGTERM, signal.SIGHUP)}
    unwritten: list[OSError] = []
    with room_for(log), log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(
            command,
            env=environment | {JOB_MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

        def follow() -> None:
            for line in process.stdout:  # to its end, come what may: a job that cannot write to a full pipe hangs
                try:
                    if not unwritten:
                        sink.write(line)
                        sink.flush()
                except OSError as error:
                    unwritten.append(error)
                    process.terminate()
                on_line(line.rstrip("\n"))

        # A thread, because a child that outlives the command can hold the pipe open.
        reader = threading.Thread(target=follow)
        reader.start()
        timed_out = lingered = False
        try:
            if done is None:
                process.wait(timeout=time_limit_s)
            else:
                lingered = _wait_for_wrapped(process, mark, started + time_limit_s, done)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_marked(mark)
            process.wait()
            reader.join()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if unwritten:
            raise unwritten[0]
    return Ended(process.returncode, timed_out, time.monotonic() - started, lingered)


def _wait_for_wrapped(process: subprocess.Popen[str], mark: str, deadline: float, done: Callable[[], bool]) -> bool:
    """Wait until a command that wraps a job has ended, or until its job has, if a signal took the command away.

    Returns whether it lingered after the job.

    Raises
    ------
    subprocess.TimeoutExpired
        At the deadline.
    """
    finished = None
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=min(LOOK_S, max(0.0, deadline - time.monotonic())))
            if process.returncode >= 0 or not _marked(mark):
                return False
            time.sleep(LOOK_S)
        if done():
            finished = finished or time.monotonic()
            if time.monotonic() - finished > FINISH_LIMIT_S:
                return True
    raise subprocess.TimeoutExpired(process.args, deadline)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """Have Linux send SIGTERM to the child when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end_marked(mark: str) -> None:
    """End every process whose environment carries the mark, by its id."""
    processes = _marked(mark)
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in {*alive, *_marked(mark)}:
        _quietly(process.kill)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(JOB_MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
