"""Decide when to stop waiting for a job and for the profiler that may wrap it.

A launcher waits for one command. The command is the job itself, such as torchrun, or a profiler, such as nsys, that
runs the job as its child. The job is done when each of its ranks has reported, by a file, and has exited; but a rank
may never report, a job may leave processes behind, and a profiler may fail, hang, or leave the job alone.

`Watch` looks at the processes again and again. `advance` decides by what a look saw; it touches no process and no
clock, so that a test can take it through any course of events.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

import psutil

from multicard.launch.processes import JOB_MARK, ProcessTree, end_processes, has_ended, variable_of

FINISH_LIMIT_S = 600.0
LOOK_S = 1.0
# Set for a job that runs as the child of a profiler, and not for the profiler.
WRAPPED_MARK = "MULTICARD_WRAPPED"

# Return the process ids of the ranks of a job once all have written their record, None before.
Ranks = Callable[[], set[int] | None]


@dataclass(frozen=True)
class Limits:
    """Seconds that a job, and what it leaves behind, may take beside the time limit of the job itself."""

    # Between SIGTERM and SIGKILL.
    grace_s: float = 15.0
    # For a rank to exit after it has reported. A rank ends itself sooner: see `multicard.record.observe`.
    exit_s: float = 90.0
    # For other processes that a job started to go on after all ranks have exited.
    leave_s: float = 10.0
    # For a profiler to go on without a process of its job, of which not all ranks have reported.
    unused_s: float = 120.0
    # For a profiler to write its report after the job.
    finish_s: float = FINISH_LIMIT_S
    # For the last output to be read after all processes have ended.
    read_s: float = 60.0
    # For a signal to a whole job, as Slurm sends it, to reach the launcher after it has ended the job's command.
    signal_s: float = 2.0


class Phase(Enum):
    """Stage of waiting for a command.

    A command without a profiler goes from RUNNING to ENDED, past REPORTED and EXITED if its ranks report. With a
    profiler, the command that exits is the profiler: it may leave an ORPHANED job. UNUSED and LINGERED are the ends of
    profilers that go on for too long, before the ranks have reported and after the job.
    """

    # The command runs, and not all ranks have reported.
    RUNNING = auto()
    # The command runs, and all ranks have reported.
    REPORTED = auto()
    # The command has exited after all ranks had reported; processes of the job are left.
    EXITED = auto()
    # The profiler has exited before all ranks had reported; the job goes on, and a report may still be written.
    ORPHANED = auto()
    # Final: no process is left that is worth waiting for.
    ENDED = auto()
    # Final: the profiler went on too long without a process of the job.
    UNUSED = auto()
    # Final: the profiler went on too long after the job.
    LINGERED = auto()

    @property
    def is_final(self) -> bool:
        """True if there is nothing to wait for any more."""
        return self in (Phase.ENDED, Phase.UNUSED, Phase.LINGERED)


class Action(Enum):
    """What is to be done before the next look."""

    WAIT = auto()
    END_JOB = auto()


class JobStart(Enum):
    """State of the first process of a job that a profiler starts."""

    NOT_STARTED = auto()
    ALIVE = auto()
    ENDED = auto()


class ProfilerFailure(Enum):
    """How a profiler failed while not all ranks of its job had reported."""

    EXITED_BEFORE_JOB = auto()
    EXITED_DURING_JOB = auto()
    STARTED_NO_JOB = auto()
    LOST_JOB = auto()


@dataclass(frozen=True)
class Look:
    """Facts that one look at the processes found."""

    now: float  # seconds of `time.monotonic`
    # The command has exited.
    has_exited: bool = False
    # Process ids of the ranks; None until all of them have reported.
    ranks: frozenset[int] | None = None
    # Ids of the job's processes, without those of a profiler.
    job: frozenset[int] = frozenset()
    # Processes of the profiler are left.
    has_profiler_processes: bool = False
    # State of the first process of a job that a profiler wraps.
    start: JobStart = JobStart.NOT_STARTED


@dataclass(frozen=True)
class Progress:
    """State of a `Watch`: its phase, and the times from which the limits count, by `time.monotonic`."""

    phase: Phase
    # When the profiler last had a process of its job; at first, when the waiting began.
    used_at: float
    # When all ranks had reported.
    reported_at: float | None = None
    # When no rank was left after that.
    ranks_gone_at: float | None = None
    # When the profiler had nothing to do any more but to write its report.
    job_over_at: float | None = None
    profiler_failure: ProfilerFailure | None = None


def advance(before: Progress, look: Look, is_wrapped: bool, limits: Limits) -> tuple[Progress, Action]:
    """Return the state after a look, and what is to be done now.

    `is_wrapped`: the command is a profiler that runs the job as its child.

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
    """Return the state once all ranks have reported, which shows that the profiler, if any, has not failed them."""
    job_over_at = progress.job_over_at
    if is_wrapped and job_over_at is None:
        job_over_at = look.now
    return replace(
        progress,
        # A profiler that has exited before stays one that has: its other processes may still write the report.
        phase=Phase.REPORTED if progress.phase is Phase.RUNNING else progress.phase,
        reported_at=look.now,
        job_over_at=job_over_at,
        profiler_failure=None,
    )


def _while_running(progress: Progress, look: Look, is_wrapped: bool, limits: Limits) -> Progress:
    """Return the state after a look before which the command ran and not all ranks had reported."""
    if not is_wrapped:
        # Ranks that have not reported by now never will.
        return replace(progress, phase=Phase.ENDED) if look.has_exited else progress
    if look.has_exited:
        failures = {
            JobStart.NOT_STARTED: ProfilerFailure.EXITED_BEFORE_JOB,
            JobStart.ALIVE: ProfilerFailure.EXITED_DURING_JOB,
            JobStart.ENDED: None,  # the job ended first, so it is not the profiler that failed
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
    """Return the state when the job has ended after its profiler's first process had."""
    if not look.has_profiler_processes:
        return replace(progress, phase=Phase.ENDED)
    if progress.job_over_at is None:
        return replace(progress, job_over_at=look.now)
    return progress


def _with_deadline_of_job(progress: Progress, look: Look, limits: Limits) -> tuple[Progress, Action]:
    """Return the state with the time at which the ranks were gone, and whether the job is to be ended.

    A rank may take its time to exit after it has reported; what it started gets less time after that.
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

    `first_process`: file with the id of the job's first process, which a profiler that wraps the job writes as it
    starts the job; None if the command is the job.
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
        """Wait until the job has ended, and a profiler too; end what goes on too long after the job is done.

        Raise `TimeoutError` at the deadline, by `time.monotonic`.
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
            if look.has_exited:  # so that waiting for the command takes no time any more
                time.sleep(LOOK_S / 5)
        raise TimeoutError

    def _look(self) -> Look:
        """Look at what the current phase depends on; to list processes costs time that the job may need."""
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
        """True if a process belongs to the profiler: it has the mark that all processes get, and not the job's."""
        if not self._is_wrapped:
            return False
        if variable_of(process, JOB_MARK) is not None:
            return variable_of(process, WRAPPED_MARK) is None
        # A process that is just being started has no environment yet. One that has cleared it is the job's.
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
