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

from multicard.core.files import report_full_disk
from multicard.launch.interruptible import interruptible, undisturbed

GRACE_S = 15.0
FINISH_LIMIT_S = 600.0  # that a profiler may take to write its report after the job
READ_LIMIT_S = 60.0  # that the last output of a job may take to be read once its processes have ended
LOOK_S = 1.0
LEFT_S = 10.0  # that what a job started may go on after all ranks have exited
EXIT_S = 90.0  # that a rank may take to exit after it has reported; it ends itself sooner (`multicard.record.observe`)
TOLD_S = 2.0  # by which a signal to a whole job, as Slurm sends it, may reach this process after it ended the job
LONGEST_LINE = 1 << 20  # characters that are read at once, where a job prints no end of a line
JOB_MARK = "MULTICARD_JOB"
# Set for a job that runs as the child of a profiler, and not for the profiler.
WRAPPED_MARK = "MULTICARD_WRAPPED"
PR_SET_CHILD_SUBREAPER = 36  # of Linux
# Has Linux send SIGTERM to this process when its parent dies, even by SIGKILL, and becomes the command. It is a program
# of its own, since `preexec_fn` may deadlock where there are threads. Python ignores some signals; a command must not.
ENDING_WITH_PARENT = """
import ctypes, os, signal, sys
pr_set_pdeathsig = 1
ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(128 + signal.SIGTERM)
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:  # as it was given, without what Python adds in the C locale
    given = dict(each.split(b"=", 1) for each in file.read().split(b"\\0") if each)
os.execvpe(sys.argv[2], sys.argv[2:], given)
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    timed_out: bool
    wall_time_s: float
    lingered: bool = False  # of a profiler that wraps a job: it did not exit after that, and was killed


Ranks = Callable[[], set[int] | None]


def in_profiler(command: list[str]) -> list[str]:
    """The command of a job, by which its processes can be told from those of a profiler that wraps it."""
    return ["env", f"{WRAPPED_MARK}=1", *command]


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    grace_s: float = GRACE_S,
    ranks: Ranks | None = None,
    is_wrapped: bool = False,
    folder: Path | None = None,
) -> Ended:
    """Run `command`, write its output to `log`, and hand each line to `on_line`.

    Every process of the job carries a mark in its environment, children that detach included (the nsys
    agent does). Processes that still carry it when the command has exited, or when this process is told to exit,
    get SIGTERM, and SIGKILL `grace_s` later. What a process without the mark writes later than `READ_LIMIT_S` after
    that is not read.

    `ranks` tells whether the job is done: it gives the process ids of the ranks once all have written their record, and
    None before. What goes on for longer than `LEFT_S` after all ranks have exited is ended. `is_wrapped`: the command
    is a profiler that runs the job as its child, started by `in_profiler`. If it runs `FINISH_LIMIT_S` longer than its
    job it is killed; if it exits before the job it does not take that with it. `folder`: where the command runs.

    Raises `UserError` if there is no space for the log. The job is ended.
    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    unwritten: list[OSError] = []
    # Descendants become children of this process when their parent ends. Those of a profiler that detach, and the job
    # that they start, would become children of init, and their CPU time look as if it were not of this run.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with report_full_disk(log), log.open("wb") as file, undisturbed():
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ENDING_WITH_PARENT, str(os.getpid()), *command],
            cwd=folder,
            env=environment | {JOB_MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def follow() -> None:
            # To its end, whatever happens: a job that writes to a full pipe hangs.
            for line in iter(lambda: process.stdout.readline(LONGEST_LINE), ""):
                try:
                    if not unwritten:
                        file.write(line.encode(errors="replace"))
                        file.flush()
                except OSError as error:
                    unwritten.append(error)
                    process.terminate()
                except ValueError:  # the log is closed: the run is over
                    return
                on_line(line.rstrip("\n"))

        # A thread, because a child that outlives the command can hold the pipe open.
        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        timed_out = lingered = False
        try:
            with interruptible():
                if ranks is None:
                    process.wait(timeout=time_limit_s)
                else:
                    lingered = _wait(process, mark, started + time_limit_s, ranks, is_wrapped, grace_s)
                if process.returncode:
                    time.sleep(TOLD_S)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(lambda: _marked(mark), grace_s)
            process.kill()  # if it is left
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel may never end
                process.wait(GRACE_S)
            reader.join(READ_LIMIT_S)  # a process without the mark may hold the pipe open for ever
        if unwritten:
            raise unwritten[0]
    exit_code = -signal.SIGKILL if process.returncode is None else process.returncode
    return Ended(exit_code, timed_out, time.monotonic() - started, lingered)


def _wait(
    process: subprocess.Popen[str], mark: str, deadline: float, done: Ranks, is_wrapped: bool, grace_s: float
) -> bool:
    """Wait until a command and the job that it runs have exited; end what goes on too long after the job is done.

    Returns whether a profiler lingered after the job. Raises `subprocess.TimeoutExpired` at the deadline.
    """

    def at_work() -> list[psutil.Process]:
        return [each for each in _marked(mark) if not is_wrapped or WRAPPED_MARK in each.info["environ"]]

    orphaned, reported, exited, finished, ranks = False, None, None, None, set[int]()
    while (now := time.monotonic()) < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=min(LOOK_S, deadline - now))
        now = time.monotonic()
        if reported is None and (found := done()) is not None:
            reported, ranks = now, found
        finished = finished or (reported if is_wrapped else None)
        if process.returncode is not None:
            if reported is None and not is_wrapped:
                return False
            remaining = at_work()
            orphaned = orphaned or (reported is None and bool(remaining))
            if not (_marked(mark) if orphaned else remaining):
                return False
            finished = finished or (None if remaining else now)  # what else is left may still write the report
            time.sleep(LOOK_S / 5)
        if reported:
            if not any(each.pid in ranks for each in at_work()):
                exited = exited or now
            if now - (exited or reported + EXIT_S) > LEFT_S:
                _end(at_work, grace_s)
        if finished and now - finished > FINISH_LIMIT_S:
            return True
    raise subprocess.TimeoutExpired(process.args, deadline)


def _end(find: Callable[[], list[psutil.Process]], grace_s: float) -> None:
    """End the processes that are found, by SIGTERM and, those that are found still, by SIGKILL."""
    processes = find()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in {*alive, *find()}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _marked(mark: str) -> list[psutil.Process]:
    """Processes that carry a mark, with their `info`: environ."""
    found = psutil.process_iter(["environ"])
    return [each for each in found if (each.info["environ"] or {}).get(JOB_MARK) == mark and each.pid != os.getpid()]
