"""Decide when to stop waiting for a job and for the profiler that may wrap it.

A launcher waits for one command. The command is the job itself, such as torchrun, or a profiler, such as nsys, that
runs the job as its child. The job is done when each of its ranks has written its report to a file, and has exited. But
a rank may never report, a job may leave processes behind, and a profiler may fail, hang, or exit before the job.

`Watch` looks at the processes again and again. `advance` decides from the facts of each look what to do. It uses no
process and no clock itself, so that a test can take it through any sequence of events.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

import psutil

from multicard.launch.processes import JOB_MARK, ProcessTree, end_processes, has_ended, variable_of

LOOK_S = 1.0  # seconds between looks while the command runs
# Environment variable that the processes of a wrapped job have, and those of the profiler that wraps it do not.
WRAPPED_MARK = "MULTICARD_WRAPPED"

# Function that returns the process ids of the ranks of a job once all have written their record, and None before.
Ranks = Callable[[], set[int] | None]


@dataclass(frozen=True)
class Limits:
    """Limits, in seconds, of the stages after and around the work of a job; its own time limit is not among them."""

    # Time between SIGTERM and SIGKILL.
    grace_s: float = 15.0
    # If a rank is left `exit_s` + `leave_s` after all ranks have reported, the job is ended. A rank of a script ends
    # itself sooner: see `multicard.observe`.
    exit_s: float = 90.0
    # If processes of the job are left so long after all ranks have reported and exited, the job is ended.
    leave_s: float = 10.0
    # Before all ranks have reported: if a profiler has had no process of its job for so long, it has failed.
    unused_s: float = 120.0
    # If a profiler is left so long after all ranks have reported, it is killed. It writes its report in this time. If a
    # profiler exits before its job, this is the time for its other processes once the job has ended.
    finish_s: float = 600.0
    # Longest wait for the last output to be read after all processes have ended.
    read_s: float = 60.0
    # Wait after a command that failed. A signal to all processes, such as Slurm's, may have ended it, and then reaches
    # the launcher in this time.
    signal_s: float = 2.0


class Phase(Enum):
    """Stage of waiting for a command.

    A job without a profiler goes from RUNNING to ENDED. If its ranks report, it goes through REPORTED, and through
    EXITED if processes are left. With a profiler, "the command" is the profiler: if it exits before the ranks have
    reported, the job is ORPHANED. A profiler that runs too long ends as UNUSED if it has no job, or as LINGERED if its
    job is done.
    """

    # The command runs, and not all ranks have reported.
    RUNNING = auto()
    # The command runs, and all ranks have reported.
    REPORTED = auto()
    # The command has exited after all ranks had reported; processes of the job are left.
    EXITED = auto()
    # The profiler has exited before all ranks had reported. The job goes on, and the profiler's other processes may
    # still write its report.
    ORPHANED = auto()
    # Final: the command has exited, and no other process has to be waited for.
    ENDED = auto()
    # Final: the profiler went on too long without a process of the job.
    UNUSED = auto()
    # Final: the profiler went on too long after the job.
    LINGERED = auto()

    @property
    def is_final(self) -> bool:
        """True if waiting has ended."""
        return self in (Phase.ENDED, Phase.UNUSED, Phase.LINGERED)


class Action(Enum):
    """What `Watch` has to do before the next look."""

    WAIT = auto()
    END_JOB = auto()  # end the processes of the job, not those of a profiler


class JobStart(Enum):
    """State of the first process of a job, which a profiler that wraps the job starts."""

    NOT_STARTED = auto()
    ALIVE = auto()
    ENDED = auto()


class ProfilerFailure(Enum):
    """How a profiler failed before all ranks of its job had reported."""

    # It exited, and had not started the job.
    EXITED_BEFORE_JOB = auto()
    # It exited, and the job's first process was still running.
    EXITED_DURING_JOB = auto()
    # It did not exit, and had not started the job within `Limits.unused_s`.
    STARTED_NO_JOB = auto()
    # It did not exit, but had no process of its job for `Limits.unused_s`.
    LOST_JOB = auto()


@dataclass(frozen=True)
class Look:
    """Facts that one look at the processes found."""

    now: float  # time of the look, in seconds of `time.monotonic`
    # True if the command has exited.
    has_exited: bool = False
    # Process ids of the ranks; None until all ranks have reported.
    ranks: frozenset[int] | None = None
    # Ids of the job's processes, without those of a profiler. Not looked up, and empty, while a job without a profiler
    # has not reported. While a wrapped job has not reported and its profiler runs, some of them are enough.
    job: frozenset[int] = frozenset()
    # True if processes of the profiler are left. Only looked up once all ranks have reported or the command has exited.
    has_profiler_processes: bool = False
    # State of the first process of a wrapped job; always NOT_STARTED without a profiler.
    start: JobStart = JobStart.NOT_STARTED


@dataclass(frozen=True)
class Progress:
    """State of a `Watch`: its phase, and the times from which the limits count, in seconds of `time.monotonic`.

    Each time is that of the look which first found the event; None before.
    """

    phase: Phase
    # The last look at which the profiler had a process of its job; before the first such look, the start of waiting.
    used_at: float
    # All ranks have reported.
    reported_at: float | None = None
    # All ranks have reported, and none of them is left.
    ranks_gone_at: float | None = None
    # The profiler has only to write its report: all ranks have reported, or no process of an orphaned job is left.
    job_over_at: float | None = None
    # How the profiler failed; None if it did not, or if all ranks have reported.
    profiler_failure: ProfilerFailure | None = None


def advance(before: Progress, look: Look, is_wrapped: bool, limits: Limits) -> tuple[Progress, Action]:
    """Return the state after a look, and what has to be done now.

    `before`: the state before the look. `is_wrapped`: True if the command is a profiler that runs the job as its child.

    >>> running = Progress(Phase.RUNNING, used_at=0.0)
    >>> after, action = advance(running, Look(5.0, has_exited=True), is_wrapped=False, limits=Limits())
    >>> after.phase, action
    (<Phase.ENDED: 5>, <Action.WAIT: 1>)
    """
    progress = before
    if look.ranks is not None and progress.reported_at is None:
        progress = _after_report(progress, look, is_wrapped)
    match progress.phase:
        case Phase.RUNNING:
            progress = _while_running(progress, look, is_wrapped, limits)
        case Phase.REPORTED if look.has_exited:
            progress = replace(progress, phase=Phase.EXITED if look.job else Phase.ENDED)
        case Phase.EXITED if not look.job:
            progress = replace(progress, phase=Phase.ENDED)
        case Phase.ORPHANED if not look.job:
            progress = _after_orphans(progress, look)
    if progress.phase.is_final:
        return progress, Action.WAIT
    progress, action = _with_deadline_of_job(progress, look, limits)
    if progress.job_over_at is not None and look.now - progress.job_over_at > limits.finish_s:
        progress = replace(progress, phase=Phase.LINGERED)
    return progress, action


def _after_report(progress: Progress, look: Look, is_wrapped: bool) -> Progress:
    """Return the state once all ranks have reported.

    The reports show that a profiler did not keep the job from its work, so a failure that was noted is dropped.
    """
    job_over_at = progress.job_over_at
    if is_wrapped and job_over_at is None:
        job_over_at = look.now
    return replace(
        progress,
        # If the profiler has exited before, the phase stays ORPHANED: its other processes may still write the report.
        phase=Phase.REPORTED if progress.phase is Phase.RUNNING else progress.phase,
        reported_at=look.now,
        job_over_at=job_over_at,
        profiler_failure=None,
    )


def _while_running(progress: Progress, look: Look, is_wrapped: bool, limits: Limits) -> Progress:
    """Return the state after a look in the phase RUNNING, if not all ranks have reported by now."""
    if not is_wrapped:
        # If the job's command has exited, ranks that have not reported never will.
        return replace(progress, phase=Phase.ENDED) if look.has_exited else progress
    if look.has_exited:
        failures = {
            JobStart.NOT_STARTED: ProfilerFailure.EXITED_BEFORE_JOB,
            JobStart.ALIVE: ProfilerFailure.EXITED_DURING_JOB,
            JobStart.ENDED: None,  # the job ended before the profiler did, so the profiler did not fail
        }
        phase = Phase.ORPHANED if look.job else Phase.ENDED
        return replace(progress, phase=phase, profiler_failure=failures[look.start])
    if look.job:
        return replace(progress, used_at=look.now)
    if look.now - progress.used_at <= limits.unused_s:
        return progress
    has_started = look.start is not JobStart.NOT_STARTED
    failure = ProfilerFailure.LOST_JOB if has_started else ProfilerFailure.STARTED_NO_JOB
    return replace(progress, phase=Phase.UNUSED, profiler_failure=failure)


def _after_orphans(progress: Progress, look: Look) -> Progress:
    """Return the state when no process of an orphaned job is left: wait for the profiler's other processes, if any."""
    if not look.has_profiler_processes:
        return replace(progress, phase=Phase.ENDED)
    if progress.job_over_at is None:
        return replace(progress, job_over_at=look.now)
    return progress


def _with_deadline_of_job(progress: Progress, look: Look, limits: Limits) -> tuple[Progress, Action]:
    """Return the state with `ranks_gone_at`, and END_JOB if processes of the job have stayed too long.

    Before all ranks have reported, nothing is ended here. After that, a rank has the time `exit_s` + `leave_s` to exit.
    Once all ranks have exited, the other processes of the job have the time `leave_s`.
    """
    reported_at = progress.reported_at
    ranks_gone_at = progress.ranks_gone_at
    if reported_at is None or look.ranks is None:
        return progress, Action.WAIT
    if ranks_gone_at is None and not look.ranks & look.job:
        ranks_gone_at = look.now
    ranks_due_at = reported_at + limits.exit_s if ranks_gone_at is None else ranks_gone_at
    is_late = look.now - ranks_due_at > limits.leave_s
    return replace(progress, ranks_gone_at=ranks_gone_at), Action.END_JOB if is_late else Action.WAIT


class Watch:
    """Waits for a command and the job that it runs; made and used by `multicard.launch.supervise.run`.

    `first_process`: file to which the first process of a wrapped job writes its id when the profiler starts it (see
    `in_profiler`); None if the command is the job itself.
    """

    def __init__(self, tree: ProcessTree, ranks: Ranks, first_process: Path | None, limits: Limits):
        self._tree = tree
        self._ranks = ranks
        self._first_process = first_process
        self._limits = limits
        self._reported: frozenset[int] | None = None
        self._last_of_job: list[psutil.Process] = []
        self.progress = Progress(Phase.RUNNING, used_at=time.monotonic())

    @property
    def _is_wrapped(self) -> bool:
        return self._first_process is not None

    def wait(self, deadline: float) -> None:
        """Wait until the job and its profiler have ended; end processes of the job that stay too long.

        Raises `TimeoutError` at `deadline`, a time of `time.monotonic`.
        """
        while (now := time.monotonic()) < deadline:
            with contextlib.suppress(TimeoutError):
                self._tree.wait(min(LOOK_S, deadline - now))
            look = self._look()
            self.progress, action = advance(self.progress, look, self._is_wrapped, self._limits)
            if action is Action.END_JOB:
                end_processes(self._processes_of_job, self._limits.grace_s)
            if self.progress.phase.is_final:
                return
            if look.has_exited:  # then `_tree.wait` above returns at once, and this loop would not pause
                time.sleep(LOOK_S / 5)
        raise TimeoutError

    def _look(self) -> Look:
        """Return the facts that `advance` needs now, and look up no others.

        Listing processes costs CPU time that the job may need. So while a wrapped job works, processes are listed only
        if all that were found last time have ended.
        """
        now = time.monotonic()
        has_exited = self._tree.exit_code is not None
        if self._reported is None and (pids := self._ranks()) is not None:
            self._reported = frozenset(pids)
        look = Look(now, has_exited, self._reported)
        if self._reported is None and not self._is_wrapped:
            return look
        if self._reported is None and not has_exited:
            alive = [process for process in self._last_of_job if not has_ended(process)]
            self._last_of_job = alive or self._processes_of_job()
            return replace(look, job=_ids(self._last_of_job), start=self._start_of_job())
        processes = self._tree.processes()
        job = [process for process in processes if not self._is_of_profiler(process)]
        return replace(
            look,
            job=_ids(job),
            has_profiler_processes=len(job) < len(processes),
            start=self._start_of_job(),
        )

    def _processes_of_job(self) -> list[psutil.Process]:
        return [process for process in self._tree.processes() if not self._is_of_profiler(process)]

    def _is_of_profiler(self, process: psutil.Process) -> bool:
        """True if a process belongs to the profiler: it has `JOB_MARK`, as all processes, but not `WRAPPED_MARK`."""
        if not self._is_wrapped:
            return False
        if variable_of(process, JOB_MARK) is not None:
            return variable_of(process, WRAPPED_MARK) is None
        # A process without `JOB_MARK` is either just being started, and counts as the profiler's for a second, or has
        # cleared its environment, and counts as the job's.
        try:
            return time.time() - process.create_time() < LOOK_S
        except psutil.NoSuchProcess:
            return True

    def _start_of_job(self) -> JobStart:
        if self._first_process is None or not self._first_process.exists():
            return JobStart.NOT_STARTED
        pid = self._first_process.read_text(encoding="ascii").strip()
        with contextlib.suppress(psutil.NoSuchProcess, ValueError):
            if not has_ended(psutil.Process(int(pid))):
                return JobStart.ALIVE
        return JobStart.ENDED


def _ids(processes: list[psutil.Process]) -> frozenset[int]:
    return frozenset(process.pid for process in processes)
