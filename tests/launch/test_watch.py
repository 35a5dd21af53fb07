"""The stages of waiting for a job, step by step, without processes."""

from dataclasses import replace

import pytest

from multicard.launch.watch import (
    Action,
    JobStart,
    Limits,
    Look,
    Phase,
    ProfilerFailure,
    Progress,
    advance,
)

LIMITS = Limits(exit_s=90.0, leave_s=10.0, unused_s=120.0, finish_s=600.0)
RANKS = frozenset({11, 12})
RUNNING = Progress(Phase.RUNNING, used_at=0.0)
REPORTED = replace(RUNNING, phase=Phase.REPORTED, reported_at=100.0)
WRITING = replace(REPORTED, job_over_at=100.0)  # a profiler, whose job is over
ORPHANED = replace(RUNNING, phase=Phase.ORPHANED, profiler_failure=ProfilerFailure.EXITED_DURING_JOB)


def look(time_s: float, *job: int, ranks: frozenset[int] | None = None, **facts: object) -> Look:
    return Look(time_s, ranks=ranks, job=frozenset(job), **facts)


@pytest.mark.parametrize(
    ("before", "seen", "phase"),
    [
        (RUNNING, look(5), Phase.RUNNING),
        (RUNNING, look(1e6), Phase.RUNNING),  # the time limit of a job is not judged here
        (RUNNING, look(5, 11, ranks=RANKS), Phase.REPORTED),
        (RUNNING, look(5, has_exited=True), Phase.ENDED),  # even if processes are left, which are then ended
        (RUNNING, look(5, 11, ranks=RANKS, has_exited=True), Phase.EXITED),
        (RUNNING, look(5, ranks=RANKS, has_exited=True), Phase.ENDED),
        (REPORTED, look(105, 11, ranks=RANKS), Phase.REPORTED),
        (REPORTED, look(105, 77, ranks=RANKS, has_exited=True), Phase.EXITED),
        (REPORTED, look(105, ranks=RANKS, has_exited=True), Phase.ENDED),
        (replace(REPORTED, phase=Phase.EXITED), look(105, 77, ranks=RANKS, has_exited=True), Phase.EXITED),
        (replace(REPORTED, phase=Phase.EXITED), look(105, ranks=RANKS, has_exited=True), Phase.ENDED),
    ],
)
def test_a_command_without_a_profiler_is_waited_for_with_what_its_ranks_left(
    before: Progress, seen: Look, phase: Phase
) -> None:
    after, _ = advance(before, seen, is_wrapped=False, limits=LIMITS)
    assert (after.phase, after.profiler_failure) == (phase, None)


@pytest.mark.parametrize(
    ("before", "seen", "phase", "failure"),
    [
        (RUNNING, look(120), Phase.RUNNING, None),
        (RUNNING, look(121), Phase.UNUSED, ProfilerFailure.STARTED_NO_JOB),
        (RUNNING, look(121, start=JobStart.ENDED), Phase.UNUSED, ProfilerFailure.LOST_JOB),
        (RUNNING, look(1e6, 5, start=JobStart.ALIVE), Phase.RUNNING, None),
        (RUNNING, look(5, has_exited=True), Phase.ENDED, ProfilerFailure.EXITED_BEFORE_JOB),
        (RUNNING, look(5, has_exited=True, start=JobStart.ENDED), Phase.ENDED, None),
        (
            RUNNING,
            look(5, 11, has_exited=True, start=JobStart.ALIVE),
            Phase.ORPHANED,
            ProfilerFailure.EXITED_DURING_JOB,
        ),
        (RUNNING, look(5, 11, ranks=RANKS), Phase.REPORTED, None),
        (WRITING, look(700, ranks=RANKS, has_profiler_processes=True), Phase.REPORTED, None),
        (WRITING, look(701, ranks=RANKS, has_profiler_processes=True), Phase.LINGERED, None),
        (ORPHANED, look(1e6, 11, has_exited=True), Phase.ORPHANED, ProfilerFailure.EXITED_DURING_JOB),
        # What the profiler left may still write the report.
        (
            ORPHANED,
            look(5, has_exited=True, has_profiler_processes=True),
            Phase.ORPHANED,
            ProfilerFailure.EXITED_DURING_JOB,
        ),
        (ORPHANED, look(5, has_exited=True), Phase.ENDED, ProfilerFailure.EXITED_DURING_JOB),
        # All ranks report: what failed was not the job's profiler.
        (ORPHANED, look(5, 11, ranks=RANKS, has_exited=True), Phase.ORPHANED, None),
        (ORPHANED, look(5, ranks=RANKS, has_exited=True), Phase.ENDED, None),
        # Of a job that has ended, only the job's own processes are waited for.
        (WRITING, look(105, ranks=RANKS, has_exited=True, has_profiler_processes=True), Phase.ENDED, None),
    ],
)
def test_a_profiler_is_waited_for_while_its_job_or_its_report_may_come(
    before: Progress, seen: Look, phase: Phase, failure: ProfilerFailure | None
) -> None:
    after, _ = advance(before, seen, is_wrapped=True, limits=LIMITS)
    assert (after.phase, after.profiler_failure) == (phase, failure)


@pytest.mark.parametrize(
    ("job", "time_s", "action"),
    [
        ({11, 77}, 200.0, Action.WAIT),  # a rank exits 90 s after it has reported, or is ended 10 s later
        ({11, 77}, 200.1, Action.END_JOB),
        ({77}, 110.0, Action.WAIT),
        ({77}, 200.0, Action.WAIT),  # this is the first look that finds no rank
    ],
)
def test_a_rank_gets_longer_to_exit_than_what_it_started(job: set[int], time_s: float, action: Action) -> None:
    seen = look(time_s, *job, ranks=RANKS)
    assert advance(REPORTED, seen, is_wrapped=False, limits=LIMITS)[1] is action


def test_what_goes_on_after_the_ranks_is_ended_again_and_again() -> None:
    progress, actions = REPORTED, []
    for time_s in (103.0, 113.0, 113.1, 120.0):
        progress, action = advance(progress, look(time_s, 77, ranks=RANKS), is_wrapped=False, limits=LIMITS)
        actions.append(action)
    assert progress.ranks_gone_at == 103.0
    assert actions == [Action.WAIT, Action.WAIT, Action.END_JOB, Action.END_JOB]


def test_a_profiler_that_is_used_again_starts_its_limit_again_and_its_report_has_a_limit_of_its_own() -> None:
    progress, _ = advance(RUNNING, look(100, 11), is_wrapped=True, limits=LIMITS)
    progress, _ = advance(progress, look(220), is_wrapped=True, limits=LIMITS)
    assert progress.phase is Phase.RUNNING
    progress, _ = advance(progress, look(221, 11, ranks=RANKS), is_wrapped=True, limits=LIMITS)
    assert (progress.reported_at, progress.job_over_at) == (221, 221)
    # A profiler that was orphaned writes its report once its job has gone.
    writing, _ = advance(ORPHANED, look(50, has_profiler_processes=True), is_wrapped=True, limits=LIMITS)
    lingered, _ = advance(writing, look(651, has_profiler_processes=True), is_wrapped=True, limits=LIMITS)
    assert (writing.job_over_at, lingered.phase) == (50, Phase.LINGERED)


def test_only_a_profiler_has_a_limit_after_the_job_and_it_begins_once() -> None:
    progress, _ = advance(RUNNING, look(5, 11, ranks=RANKS), is_wrapped=False, limits=LIMITS)
    assert (progress.phase, progress.job_over_at) == (Phase.REPORTED, None)
    # Ranks that had gone when they were seen to have reported: the profiler has been writing since then.
    writing = replace(ORPHANED, job_over_at=50.0)
    progress, _ = advance(writing, look(60, ranks=RANKS, has_profiler_processes=True), is_wrapped=True, limits=LIMITS)
    assert (progress.reported_at, progress.job_over_at) == (60, 50)
