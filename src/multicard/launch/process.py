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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from multicard.core.files import report_full_disk
from multicard.launch.log import LONGEST_LINE, Log
from multicard.launch.signals import interruptible, undisturbed

GRACE_S = 15.0
FINISH_LIMIT_S = 600.0  # that a profiler may take to write its report after the job
READ_LIMIT_S = 60.0  # that the last output of a job may take to be read once its processes have ended
LOOK_S = 1.0
LEFT_S = 10.0  # that what a job started may go on after all ranks have exited
EXIT_S = 90.0  # that a rank may take to exit after it has reported; it ends itself sooner (`multicard.record.observe`)
TOLD_S = 2.0  # by which a signal to a whole job, as Slurm sends it, may reach this process after it ended the job
STARTS = 5  # of a profiler that ends before it has started the job
JOB_MARK = "MULTICARD_JOB"
# Set for a job that runs as the child of a profiler, and not for the profiler.
WRAPPED_MARK = "MULTICARD_WRAPPED"
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
    # Of a command that wraps a job: it did not exit after the job and was killed, or it exited before the job.
    lingered: bool = False
    orphaned: bool = False
    # Names of processes, but for ranks and what started these, that went on after all ranks, and were ended.
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class Watched:
    """A job whose ranks report that they are done.

    Attributes
    ----------
    ranks
        Process ids of the ranks, and of what started each, once all have written their record; None before.
    left_s
        How long its processes may go on once the ranks have exited; None: until they exit.
    in_profiler
        Whether the command is a profiler that runs the job as its child, started by `within`.
    never_started
        Whether the profiler ended before it had started the job, judging by its output.
    """

    ranks: Callable[[], Mapping[int, int] | None]
    left_s: float | None = None
    in_profiler: bool = True
    never_started: Callable[[str], bool] = lambda _output: False

    @staticmethod
    def within(command: list[str]) -> list[str]:
        """The command, by which processes of the job can be told from those of what wraps it."""
        return ["env", f"{WRAPPED_MARK}=1", *command]


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    grace_s: float | None = None,
    watched: Watched | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run `command`, write its output to `log`, cut as `Log` does, and hand each line to `on_line`.

    Every process of the job carries a mark in its environment, children that detach included (the nsys
    agent does). Processes that still carry it when the command has exited, or when this process is told to exit,
    get SIGTERM, and SIGKILL `grace_s` (by default `GRACE_S`) later. What a process without the mark writes later than
    `READ_LIMIT_S` after that is not read.

    Parameters
    ----------
    watched
        How to tell that the job is done: what goes on for too long after that is ended. A profiler that runs
        `FINISH_LIMIT_S` longer than its job is killed; one that exits before it does not take the job with it; one that
        never started it is started again.
    folder
        Working directory of the command, if not that of this process.

    Raises
    ------
    UserError
        If there is no space for the log. The job is ended.
    """
    for _ in range(STARTS):
        ended = _run_once(command, environment, log, time_limit_s, on_line, grace_s, watched, folder)
        if ended.exit_code == 0 or watched is None:
            break
        if not watched.never_started(log.read_text(encoding="utf-8", errors="replace")):
            break
    return ended


def _run_once(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    grace_s: float | None,
    watched: Watched | None,
    folder: Path | None,
) -> Ended:
    mark = uuid.uuid4().hex
    started = time.monotonic()
    unwritten: list[OSError] = []
    with report_full_disk(log), _adopting_orphans(), log.open("w+b") as file, undisturbed():
        sink = Log(file)
        process = subprocess.Popen(
            _ending_with_this(command),
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
                        sink.write(line)
                except OSError as error:
                    unwritten.append(error)
                    process.terminate()
                except ValueError:  # the log is closed: the run is over
                    return
                on_line(line.rstrip("\n"))

        # A thread, because a child that outlives the command can hold the pipe open.
        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        grace_s = GRACE_S if grace_s is None else grace_s
        timed_out, lingered, orphaned, left = False, False, False, ()
        try:
            with interruptible():
                if watched is None:
                    process.wait(timeout=time_limit_s)
                else:
                    lingered, orphaned, left = _wait(process, mark, started + time_limit_s, watched, grace_s)
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
            sink.finish()
        if unwritten:
            raise unwritten[0]
    exit_code = -signal.SIGKILL if process.returncode is None else process.returncode
    return Ended(exit_code, timed_out, time.monotonic() - started, lingered, orphaned, left)


def _wait(
    process: subprocess.Popen[str], mark: str, deadline: float, job: Watched, grace_s: float
) -> tuple[bool, bool, tuple[str, ...]]:
    """Wait until a command and the job that it runs have exited; end what goes on too long after the job is done.

    Returns whether a profiler lingered after the job, whether it exited before it, and names of the job's processes
    that were ended.

    Raises
    ------
    subprocess.TimeoutExpired
        At the deadline.
    """

    def at_work() -> list[psutil.Process]:
        return [each for each in _marked(mark) if not job.in_profiler or WRAPPED_MARK in _environment(each)]

    orphaned, reported, exited, finished, left = False, None, None, None, ()
    ranks: Mapping[int, int] = {}
    of_launcher = {process.pid}
    while (now := time.monotonic()) < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=min(LOOK_S, deadline - now))
        now = time.monotonic()
        if reported is None and (found := job.ranks()) is not None:
            reported, ranks = now, found
            of_launcher |= {each for parent in set(found.values()) for each in _with_parents(parent)}
        finished = finished or (reported if job.in_profiler else None)
        if process.returncode is not None:
            remaining = at_work()
            if reported is None and not job.in_profiler:
                return False, False, left
            orphaned = orphaned or (reported is None and bool(remaining))
            if not (_marked(mark) if orphaned else remaining):
                return False, orphaned, left
            finished = finished or (None if remaining else now)  # what else is left may still write the report
            time.sleep(LOOK_S / 5)
        if reported and job.left_s is not None:
            remaining = at_work()
            if not any(each.pid in ranks for each in remaining):
                exited = exited or now
            if now - (exited or reported + EXIT_S) > job.left_s:
                others = [each for each in remaining if each.pid in ranks or each.pid not in of_launcher]
                left = left or tuple(sorted(map(_name, others)))
                _end(at_work, grace_s)
        if finished and now - finished > FINISH_LIMIT_S:
            return True, orphaned, left
    raise subprocess.TimeoutExpired(process.args, deadline)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "?"


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _with_parents(process: int) -> list[int]:
    """Process id of a process, and those of what it was started by, as far as they are there."""
    try:
        return [process, *(each.pid for each in psutil.Process(process).parents())]
    except psutil.Error:
        return [process]


def _ending_with_this(command: list[str]) -> list[str]:
    """A command that gets SIGTERM when this process dies, on Linux."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", ENDING_WITH_PARENT, str(os.getpid()), *command]


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Have processes that outlive their parent in this block become children of this one; wait for those that ended.

    Linux adds the CPU time of a process to that of who waits for it. Those of a profiler that detach, and the job that
    they start, would be waited for by init, and look as if they were not of this run.
    """
    if sys.platform != "linux":
        yield
        return
    pr_set_child_subreaper, pr_get_child_subreaper = 36, 37
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(pr_get_child_subreaper, ctypes.byref(before))
    libc.prctl(pr_set_child_subreaper, 1)
    others = {child.pid for child in psutil.Process().children()}
    try:
        yield
    finally:
        libc.prctl(pr_set_child_subreaper, before.value)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                if child.pid not in others and child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)


def _end(find: Callable[[], list[psutil.Process]], grace_s: float) -> None:
    """End the processes that are found, by SIGTERM and, those that are found still, by SIGKILL."""
    processes = find()
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in {*alive, *find()}:
        _quietly(process.kill)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        if _environment(process).get(JOB_MARK) == mark:
            found.append(process)
    return found


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
