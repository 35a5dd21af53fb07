"""Run one command under a time limit and leave none of its processes behind."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from multicard.core.files import report_unwritable
from multicard.launch.bounded_log import BoundedLog
from multicard.launch.ending import deferred_signals, end_process
from multicard.launch.processes import ProcessTree, end_processes
from multicard.launch.watch import WRAPPED_MARK, Limits, Phase, ProfilerFailure, Ranks, Watch

LONGEST_LINE = 1 << 16  # a line with more characters is handed on in parts, before its end has come


@dataclass(frozen=True)
class Ended:
    """How a command ended; returned by `run`."""

    # −N if signal N ended the command; −9 also if its code is unknown because it could not be ended.
    exit_code: int
    timed_out: bool
    wall_time_s: float
    # Seconds after its job in which a profiler did not exit, so that it was killed; None if that did not happen.
    lingered_s: float | None = None
    # How a profiler that wraps the job failed before all ranks had reported; None if it did not fail.
    profiler_failure: str | None = None
    # How the profiler failed at the start before this one, for which the job was started again; None at the first.
    profiler_failed_before: str | None = None


def in_profiler(command: list[str], first_process: Path) -> list[str]:
    """Return the command of a job in the form in which a profiler that wraps the job has to start it.

    It sets the variable `WRAPPED_MARK` for the processes of the job, which distinguishes them from the profiler's own.
    The first process of the job writes its id to the file `first_process`, which shows that the profiler has started
    the job.
    """
    noted = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(first_process)]
    return ["env", f"{WRAPPED_MARK}=1", *noted, *command]


def run(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    ranks: Ranks | None = None,
    first_process: Path | None = None,
    folder: Path | None = None,
    limits: Limits | None = None,
) -> Ended:
    """Run `command`, write its output to `log`, a `BoundedLog`, and call `on_line` with each line of it.

    All processes that the command starts belong to the job, even one that detaches or clears its environment: see
    `multicard.launch.keeper`. Those that are left get SIGTERM and then SIGKILL once the command has exited, or when
    this process gets a signal to end, or is killed. A process outside of the job may have the output open and write to
    it after that; such output is not read.

    Parameters
    ----------
    time_limit_s
        Seconds after which the command is ended.
    ranks
        Function that returns the process ids of the ranks once all have written their record, and None before. If it is
        given, the job is done once all ranks have exited; then other processes of the job are ended, too.
    first_process
        If it is given, the command is a profiler that runs the job as its child, and the job was made by `in_profiler`
        with this file. A profiler that runs too long after its job is killed. If the profiler exits before the job, the
        job goes on.
    folder
        Folder that the command runs in, by default the current one.
    limits
        Further limits of time.

    Raises `UserError` if the log cannot be written; the job is ended before.
    """
    started_at = time.monotonic()
    limits = limits or Limits()
    with report_unwritable(log), BoundedLog(log) as file, deferred_signals() as signals:
        tree = ProcessTree(command, environment, folder, limits.grace_s)
        reader = OutputReader(tree, file, on_line)
        reader.start()
        watch = None if ranks is None else Watch(tree, ranks, first_process, limits)
        timed_out = False
        try:
            with signals.delivered(end_process):
                if watch is None:
                    tree.wait(time_limit_s)
                else:
                    watch.wait(started_at + time_limit_s)
                # If a signal to all processes, such as Slurm's, ended the command, it is about to reach this process,
                # too. Waiting lets it end this process here, so that the job does not count as failed.
                if tree.exit_code:
                    time.sleep(limits.signal_s)
        except TimeoutError:
            timed_out = True
        finally:
            end_processes(tree.processes, limits.grace_s)
            tree.close()
            reader.join(limits.read_s)
        if reader.error is not None:
            raise reader.error
    exit_code = -signal.SIGKILL if tree.exit_code is None else tree.exit_code
    progress = watch.progress if watch else None
    return Ended(
        exit_code,
        timed_out,
        time.monotonic() - started_at,
        lingered_s=limits.finish_s if progress is not None and progress.phase is Phase.LINGERED else None,
        profiler_failure=_failure_words(progress.profiler_failure, exit_code) if progress else None,
    )


def _failure_words(failure: ProfilerFailure | None, exit_code: int) -> str | None:
    """Return how a profiler failed, in words; None if it did not."""
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with {exit_code}"
    match failure:
        case ProfilerFailure.EXITED_BEFORE_JOB:
            return f"it {how} before it had started the job"
        case ProfilerFailure.EXITED_DURING_JOB:
            return f"it {how} while the job ran"
        case ProfilerFailure.LOST_JOB:
            return "it went on without the job"
        case ProfilerFailure.STARTED_NO_JOB:
            return "it did not start the job"
    return None


class OutputReader(threading.Thread):
    """Thread that copies the output of a job to its log, and calls `on_line` with each line.

    Reading ends only when every process has closed the pipe. A process outside of the job can hold it open for ever, so
    reading is left to a thread, for which the launcher waits no longer than `Limits.read_s` after the job.
    """

    def __init__(self, tree: ProcessTree, log: BoundedLog, on_line: Callable[[str], None]):
        super().__init__(daemon=True)
        self._tree = tree
        self._log = log
        self._on_line = on_line
        self.error: OSError | None = None  # why the log cannot be written; set when the job is ended for it

    def run(self) -> None:
        """Read to the end of the output, even if the log cannot be written: a job that writes to a full pipe hangs."""
        unfinished_line = ""
        for text in self._tree.output():
            try:
                self._write(text)
            except ValueError:  # `run` has closed the log, so it no longer waits for output
                return
            *lines, unfinished_line = (unfinished_line + text).split("\n")
            if len(unfinished_line) > LONGEST_LINE:
                lines.append(unfinished_line)
                unfinished_line = ""
            for line in lines:
                self._on_line(line)
        if unfinished_line:
            self._on_line(unfinished_line)

    def _write(self, text: str) -> None:
        """Write to the log. At the first error, end the job; after that, write nothing."""
        if self.error is not None:
            return
        try:
            self._log.write(text.encode(errors="replace"))
        except OSError as error:
            self.error = error
            self._tree.end()
