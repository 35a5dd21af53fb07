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
UNUSED_S = 120.0  # that a profiler may go on without a process of its job, of which not all ranks have reported
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
    # Of a profiler that wraps a job of which not all ranks reported: how it failed by itself, if it did.
    profiler_failure: str | None = None
    profiler_failed_before: str | None = None  # why the job was started again, if it was

    @property
    def how(self) -> str:
        """In words, how the command ended."""
        if self.exit_code < 0:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        return f"exited with {self.exit_code}"


Ranks = Callable[[], set[int] | None]


def in_profiler(command: list[str], first_process: Path) -> list[str]:
    """The command of a job, by which its processes can be told from those of a profiler that wraps it.

    Its process writes its id to a file, which shows that the profiler has started the job.
    """
    noted = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(first_process)]
    return ["env", f"{WRAPPED_MARK}=1", *noted, *command]


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    grace_s: float = GRACE_S,
    ranks: Ranks | None = None,
    first_process: Path | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run `command`, write its output to `log`, as `BoundedLog` does, and hand each line to `on_line`.

    Every process of the job is found, those that detach or clear their environment included: see
    `multicard.launch.keeper`. What is left when the command has exited, or when this process is told to exit or is
    killed, gets SIGTERM, and SIGKILL `grace_s` later. What a process of no descent writes later than `READ_LIMIT_S`
    after that is not read.

    `ranks` tells whether the job is done: it gives the process ids of the ranks once all have written their record, and
    None before. What goes on for longer than `LEFT_S` after all ranks have exited is ended. `first_process`: the
    command is a profiler that runs the job as its child, started by `in_profiler` with this file. If it runs
    `FINISH_LIMIT_S` longer than its job it is killed; if it exits before the job it does not take that with it.
    `folder`: where the command runs.

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
        timed_out, watch = False, Watch(job, ranks, first_process, grace_s)
        try:
            with interruptible():
                if ranks is None:
                    job.wait(time_limit_s)
                else:
                    watch.wait(started + time_limit_s)
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
    return Ended(exit_code, timed_out, time.monotonic() - started, watch.lingered, watch.failure)


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


class Watch:
    """Waiting for a command and the job that it runs, which may be wrapped by a profiler."""

    def __init__(self, job: Job, ranks: Ranks | None, first_process: Path | None, grace_s: float):
        self._job, self._ranks, self._first_process, self._grace_s = job, ranks, first_process, grace_s
        self.lingered = False  # the profiler did not exit after the job
        self.failure: str | None = None  # of the profiler, while not all ranks had reported

    def wait(self, deadline: float) -> None:
        """Wait until both have exited; end what goes on too long after the job is done.

        Raises `TimeoutError` at the deadline.
        """
        job, is_wrapped = self._job, self._first_process is not None
        orphaned, reported, exited, finished, ranks = False, None, None, None, set[int]()
        used, known = time.monotonic(), list[psutil.Process]()
        while (now := time.monotonic()) < deadline:
            with contextlib.suppress(TimeoutError):
                job.wait(min(LOOK_S, deadline - now))
            now = time.monotonic()
            if reported is None and (found := self._ranks()) is not None:
                reported, ranks, self.failure = now, found, None
            finished = finished or (reported if is_wrapped else None)
            if job.exit_code is not None:
                if reported is None and not is_wrapped:
                    return
                remaining = self._at_work()
                if reported is None and self.failure is None:
                    self.failure = self._why_it_exited()
                orphaned = orphaned or (reported is None and bool(remaining))
                if not (job.processes() if orphaned else remaining):
                    return
                finished = finished or (None if remaining else now)  # what else is left may still write the report
                time.sleep(LOOK_S / 5)
            elif is_wrapped and reported is None:
                known = [each for each in known if not _has_ended(each)] or self._at_work()
                used = now if known else used
                if now - used > UNUSED_S:
                    self.failure = "it went on without the job" if self._started() else "it did not start the job"
                    return
            if reported:
                if not any(each.pid in ranks for each in self._at_work()):
                    exited = exited or now
                if now - (exited or reported + EXIT_S) > LEFT_S:
                    _end(self._at_work, self._grace_s)
            if finished and now - finished > FINISH_LIMIT_S:
                self.lingered = True
                return
        raise TimeoutError

    def _at_work(self) -> list[psutil.Process]:
        """Return the processes of the job that are not the profiler's."""
        processes = self._job.processes()
        return [each for each in processes if self._first_process is None or not _is_of_profiler(each)]

    def _started(self) -> bool:
        return self._first_process is not None and self._first_process.exists()

    def _why_it_exited(self) -> str | None:
        """In words, how the profiler that has just exited failed; None if its job had ended before."""
        how = Ended(self._job.exit_code, False, 0.0).how
        if not self._started():
            return f"it {how} before it had started the job"
        first = self._first_process.read_text(encoding="ascii").strip()
        with contextlib.suppress(psutil.NoSuchProcess, ValueError):
            if not _has_ended(psutil.Process(int(first))):
                return f"it {how} while the job ran"
        return None


def _is_of_profiler(process: psutil.Process) -> bool:
    """True if a process belongs to the profiler around a job: it has the mark of all, and not that of the job.

    A process that is just being started has no environment yet; one that has cleared it is the job's.
    """
    if _variable(process, JOB_MARK) is not None:
        return _variable(process, WRAPPED_MARK) is None
    try:
        return time.time() - process.create_time() < LOOK_S
    except psutil.NoSuchProcess:
        return True


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
    except psutil.AccessDenied:  # of another user, as by sudo
        return False


def _variable(process: psutil.Process, name: str) -> str | None:
    return (process.info["environ"] or {}).get(name)
