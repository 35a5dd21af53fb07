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

LONGEST_LINE = 1 << 16  # characters, where a job prints no end of a line


@dataclass(frozen=True)
class Ended:
    """How a command ended, as `run` returns it."""

    exit_code: int
    timed_out: bool
    wall_time_s: float
    # True if the command is a profiler that did not exit after its job, and was killed.
    lingered: bool = False
    # How the profiler that wraps the job failed by itself while not all ranks had reported, if it did.
    profiler_failure: str | None = None
    # Why the job was started again, if it was.
    profiler_failed_before: str | None = None


def in_profiler(command: list[str], first_process: Path) -> list[str]:
    """Return the command of a job for a profiler that runs it as its child.

    By a variable, the processes of the job differ from those of the profiler. The first of them writes its id to the
    file `first_process`, which shows that the profiler has started the job.
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
    """Run `command`, write its output to `log`, as `BoundedLog` does, and hand each line to `on_line`.

    Every process of the job is found, even one that detaches or clears its environment: see
    `multicard.launch.keeper`. What is left when the command has exited, or when this process gets a signal to end or is
    killed, gets SIGTERM and then SIGKILL. A process that is no descendant but holds the output open may write to it
    later: that is not read.

    Parameters
    ----------
    time_limit_s
        Seconds after which the command is ended.
    ranks
        Function that returns the process ids of the ranks once all have written their record, and None before. If it is
        given, the job is done when all ranks have exited; processes that it leaves behind are ended.
    first_process
        If it is given, the command is a profiler that runs the job as its child, started by `in_profiler` with this
        file. If it runs too long after its job it is killed; if it exits before the job, the job goes on.
    folder
        Folder that the command runs in, by default the current one.
    limits
        Further limits of time.

    Raises `UserError` if the log cannot be written; then the job is ended.
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
                # The job may have failed by a signal that is on its way to this process too, which then ends by it.
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
        lingered=progress is not None and progress.phase is Phase.LINGERED,
        profiler_failure=_failure_words(progress.profiler_failure, exit_code) if progress else None,
    )


def _failure_words(failure: ProfilerFailure | None, exit_code: int) -> str | None:
    """Describe how a profiler failed."""
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
    """Thread that copies the output of a job to its log, and hands on its lines.

    It is a thread because a process of no descent can hold the pipe open.
    """

    def __init__(self, tree: ProcessTree, log: BoundedLog, on_line: Callable[[str], None]):
        super().__init__(daemon=True)
        self._tree = tree
        self._log = log
        self._on_line = on_line
        self.error: OSError | None = None  # why the log cannot be written, for which the job is ended

    def run(self) -> None:
        """Read to the end of the output, whatever happens: a job that writes to a full pipe hangs."""
        unfinished_line = ""
        for text in self._tree.output():
            try:
                self._write(text)
            except ValueError:  # the log is closed: nothing waits for the output any more
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
        if self.error is not None:
            return
        try:
            self._log.write(text.encode(errors="replace"))
        except OSError as error:
            self.error = error
            self._tree.end()
