"""Run one command under a time limit and leave none of its processes behind."""

import codecs
import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from multicard.core.files import report_unwritable
from multicard.launch import keeper
from multicard.launch.bounded_log import BoundedLog
from multicard.launch.interruptible import interruptible, undisturbed

GRACE_S = 15.0
FINISH_LIMIT_S = 600.0  # that a profiler may take to write its report after the job
READ_LIMIT_S = 60.0  # that the last output of a job may take to be read once its processes have ended
LOOK_S = 1.0
LEFT_S = 10.0  # that what a job started may go on after all ranks have exited
EXIT_S = 90.0  # that a rank may take to exit after it has reported; it ends itself sooner (`multicard.record.observe`)
TOLD_S = 2.0  # by which a signal to a whole job, as Slurm sends it, may reach this process after it ended the job
READ_BYTES = 1 << 16  # of the output of a job, at once
LONGEST_LINE = 1 << 16  # characters, where a job prints no end of a line
JOB_MARK = "MULTICARD_JOB"
# Set for a job that runs as the child of a profiler, and not for the profiler.
WRAPPED_MARK = "MULTICARD_WRAPPED"


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
    """Run `command`, write its output to `log`, as `BoundedLog` does, and hand each line to `on_line`.

    Every process of the job is found, those that detach or clear their environment included: see
    `multicard.launch.keeper`. What is left when the command has exited, or when this process is told to exit or is
    killed, gets SIGTERM, and SIGKILL `grace_s` later. What a process of no descent writes later than `READ_LIMIT_S`
    after that is not read.

    `ranks` tells whether the job is done: it gives the process ids of the ranks once all have written their record, and
    None before. What goes on for longer than `LEFT_S` after all ranks have exited is ended. `is_wrapped`: the command
    is a profiler that runs the job as its child, started by `in_profiler`. If it runs `FINISH_LIMIT_S` longer than its
    job it is killed; if it exits before the job it does not take that with it. `folder`: where the command runs.

    Raises `UserError` if the log cannot be written. The job is ended.
    """
    started = time.monotonic()
    unwritten: list[OSError] = []
    with report_unwritable(log), BoundedLog(log) as file, undisturbed():
        job = Job(command, environment, folder, grace_s)

        def follow() -> None:
            # To its end, whatever happens: a job that writes to a full pipe hangs.
            begun = ""  # of a line
            for text in job.output():
                try:
                    if not unwritten:
                        file.write(text.encode(errors="replace"))
                except OSError as error:
                    unwritten.append(error)
                    job.end()
                except ValueError:  # the log is closed: the run is over
                    return
                *lines, begun = (begun + text).split("\n")
                if len(begun) > LONGEST_LINE:
                    lines, begun = [*lines, begun], ""
                for line in lines:
                    on_line(line)
            if begun:
                on_line(begun)

        # A thread, because a process of no descent can hold the pipe open.
        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        timed_out = lingered = False
        try:
            with interruptible():
                if ranks is None:
                    job.wait(time_limit_s)
                else:
                    lingered = _wait(job, started + time_limit_s, ranks, is_wrapped, grace_s)
                if job.exit_code:
                    time.sleep(TOLD_S)
        except TimeoutError:
            timed_out = True
        finally:
            _end(job.processes, grace_s)
            job.close()
            reader.join(READ_LIMIT_S)
        if unwritten:
            raise unwritten[0]
    exit_code = -signal.SIGKILL if job.exit_code is None else job.exit_code
    return Ended(exit_code, timed_out, time.monotonic() - started, lingered)


class Job:
    """A command and all that it starts, kept together by `multicard.launch.keeper`.

    They carry a mark in their environment too, by which they are found if something killed the keeper.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path | None, grace_s: float):
        self._mark = uuid.uuid4().hex
        self._status, given = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(given), str(grace_s), *command],
                cwd=folder,
                env={**environment, JOB_MARK: self._mark},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[given],
                start_new_session=True,
            )
        finally:
            os.close(given)
        self.exit_code: int | None = None  # of the command, negative for a signal; None while it runs

    def wait(self, limit_s: float) -> None:
        """Wait until the command has exited; what it started may go on. Raises `TimeoutError` after the limit."""
        if self.exit_code is not None:
            return
        ready, _, _ = select.select([self._status], [], [], limit_s)
        if not ready:
            raise TimeoutError
        code = os.read(self._status, 64)
        self.exit_code = int(code) if code else self._keeper.wait()  # something killed the keeper

    def output(self) -> Iterator[str]:
        """Yield what the job prints as it comes, with line feeds for all ends of lines."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        while content := os.read(self._keeper.stdout.fileno(), READ_BYTES):
            yield decoder.decode(content)
        yield decoder.decode(b"", final=True)

    def end(self) -> None:
        """Have the keeper end all processes, without waiting for it."""
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()

    def close(self) -> None:
        """End what is left, and wait for it."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel may never end
            self._keeper.wait(GRACE_S)
        self._keeper.kill()
        self._keeper.wait()
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        os.close(self._status)

    def processes(self) -> list[psutil.Process]:
        """Return the processes but the keeper, each with its environment in `info`, which may be None."""
        try:
            descendants = {each.pid for each in psutil.Process(self._keeper.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            descendants = set()
        found = psutil.process_iter(["environ"])
        own = [each for each in found if each.pid in descendants or _variable(each, JOB_MARK) == self._mark]
        return [each for each in own if each.pid != self._keeper.pid and not _has_ended(each)]


def _wait(job: Job, deadline: float, done: Ranks, is_wrapped: bool, grace_s: float) -> bool:
    """Wait until a command and the job that it runs have exited; end what goes on too long after the job is done.

    Returns whether a profiler lingered after the job. Raises `TimeoutError` at the deadline.
    """

    def at_work() -> list[psutil.Process]:
        return [each for each in job.processes() if not is_wrapped or not _is_of_profiler(each)]

    orphaned, reported, exited, finished, ranks = False, None, None, None, set[int]()
    while (now := time.monotonic()) < deadline:
        with contextlib.suppress(TimeoutError):
            job.wait(min(LOOK_S, deadline - now))
        now = time.monotonic()
        if reported is None and (found := done()) is not None:
            reported, ranks = now, found
        finished = finished or (reported if is_wrapped else None)
        if job.exit_code is not None:
            if reported is None and not is_wrapped:
                return False
            remaining = at_work()
            orphaned = orphaned or (reported is None and bool(remaining))
            if not (job.processes() if orphaned else remaining):
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
    raise TimeoutError


def _is_of_profiler(process: psutil.Process) -> bool:
    """True if a process belongs to the profiler around a job: it has the mark of all, and not that of the job.

    A process that is just being started has no environment yet; one that has cleared it is the job's.
    """
    if _variable(process, JOB_MARK) is not None:
        return _variable(process, WRAPPED_MARK) is None
    return time.time() - process.create_time() < LOOK_S


def _end(find: Callable[[], list[psutil.Process]], grace_s: float) -> None:
    """End the processes that are found, by SIGTERM and, those that are found still, by SIGKILL."""
    processes = find()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in {*alive, *find()}:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _variable(process: psutil.Process, name: str) -> str | None:
    return (process.info["environ"] or {}).get(name)
