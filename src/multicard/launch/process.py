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

GRACE_S = 15.0
JOB_MARK = "MULTICARD_JOB"


@dataclass(frozen=True)
class Ended:
    """What became of a command."""

    exit_code: int
    timed_out: bool
    wall_time_s: float


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    grace_s: float = GRACE_S,
) -> Ended:
    """Run `command`, write its output to `log`, and hand each line to `on_line`.

    Every process of the job carries a mark in its environment, children that detach included (the nsys
    agent does). Whatever still carries it when the command has ended, or when this process is told to end,
    is ended too: first asked (SIGTERM), `grace_s` later killed.
    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    previous = {s: signal.signal(s, _leave) for s in (signal.SIGTERM, signal.SIGHUP)}
    with log.open("w", encoding="utf-8") as sink:
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
            for line in process.stdout:
                sink.write(line)
                sink.flush()
                on_line(line.rstrip("\n"))

        # A thread, because a child that outlives the command can hold the pipe open.
        reader = threading.Thread(target=follow)
        reader.start()
        timed_out = False
        try:
            process.wait(timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_marked(mark, grace_s)
            process.wait()
            reader.join()
            for number, handler in previous.items():
                signal.signal(number, handler)
    return Ended(process.returncode, timed_out, time.monotonic() - started)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """Have Linux send SIGTERM to the child when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end_marked(mark: str, grace_s: float) -> None:
    """End every process whose environment carries the mark, by its id."""
    processes = _marked(mark)
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
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
