"""Run one job to its outcome and write its run directory: prepare, run, collect, judge, write."""

import contextlib
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from multicard.core.files import described, report_unwritable, write_json
from multicard.core.job_file import JobFile, ObservedJob
from multicard.core.layout import EPOCHS, JOB, LOG, MEMORY_SNAPSHOT, RUN, SAVED, STEPS, TRACE, rank_file
from multicard.core.pipeline import full_version
from multicard.core.reasons import Reason, describe_reason
from multicard.core.rendezvous import free_port
from multicard.core.secrets import arguments_without_secrets
from multicard.launch import start
from multicard.launch.attempts import Attempt, scratch_in, scratch_of_ranks, script_version
from multicard.launch.collect import Collected, collect, join_tables
from multicard.launch.job_verdict import judge_attempt
from multicard.launch.judge import MeasuredSteps, measured_steps
from multicard.launch.node_ranks import run_ranks
from multicard.launch.profiler_choice import ProfilerChoice, choose_profiler
from multicard.launch.progress import announce, follow_progress, print_progress, report_outcome
from multicard.launch.several_nodes import run_on_nodes
from multicard.launch.supervise import Ended
from multicard.launch.trace_files import keep_trace
from multicard.launch.variables import secrets_in, settings
from multicard.launchers import LAUNCHERS
from multicard.programs import PROGRAMS
from multicard.programs.program import InputRecords
from multicard.runs.parameters import JobParameters, run_id
from multicard.runs.rank_report import RankReport
from multicard.runs.record import ListedFile, Place, ProfilerUse, RunRecord
from multicard.runs.verdict import Verdict


@dataclass(frozen=True)
class Execution:
    """A command that ran a job, how it ended, and the times in UTC at which it started and ended."""

    command: Sequence[str]
    ended: Ended
    start_time: datetime
    end_time: datetime


def run_job(
    parameters: JobParameters,
    data: Path | None,
    folder: Path,
    time_limit_s: float,
    model: Path | None = None,
    order: Place | None = None,
) -> RunRecord:
    """Run the job and write its run directory; return its record.

    The outcome is `completed`, `out_of_memory`, `diverged`, `timed_out` or `failed`. run.json is written last, so a
    directory that has one is complete. If this process is interrupted, the job has no outcome and no run.json. When the
    job is started again, it resumes from its checkpoint, if it has one.

    `data` and `model`: folders of the prepared data set and language model; None if the run needs none. `folder`: the
    run directory; everything that an earlier attempt left there is removed, except its checkpoint. `order`: the run's
    place in the planned order.

    Raises `UserError`, and writes no run.json, if something other than the job is at fault: the configured profiler
    cannot be used, another process runs the same job, Slurm's controller does not answer, or `folder` cannot be
    written, as on a full disk.
    """
    command = start.rank_command(parameters)
    hidden_from_profilers = LAUNCHERS[parameters.launched_by].hidden_from_profilers
    profiler = choose_profiler(parameters.profiler, parameters.device, hidden_from_profilers, command.python)
    refusal = start.refusal(parameters, command)
    if refusal is not None:
        return refuse_job(parameters, folder, refusal, order)
    inputs = _input_records(parameters, {"dataset": data, "model": model})
    with (
        report_unwritable(folder),
        scratch_in(folder) as shared,
        scratch_of_ranks(parameters, shared) as scratch,
    ):
        attempt = Attempt(parameters, profiler, time_limit_s, folder, scratch, shared)
        has_checkpoint = attempt.checkpoint.is_file()
        _write_job_file(attempt, data, model)
        script = script_version(command.script, command.folder) if command.folder else None
        # The program may write there.
        (folder / SAVED).mkdir()
        secrets = secrets_in()
        announce(attempt, secrets)

        execution = _execute(attempt)
        collected = collect(scratch, folder, parameters)
        verdict = judge_attempt(attempt, execution.ended, collected)
        join_tables(scratch, folder, parameters.ranks)
        measured = measured_steps(folder / STEPS, parameters.ranks)
        verdict = _with_measured_steps(verdict, measured)
        _keep_memory_snapshot(attempt, verdict)
        trace_missing = keep_trace(
            scratch, folder / TRACE, profiler.name, verdict.outcome, parameters, execution.ended,
            _trace_problem(collected),
        )  # fmt: skip

        # Host, hardware, versions and the like are the same on all ranks, so the record takes them from the first
        # report. Without a report they stay unknown.
        first = collected.reports[0] if collected.reports else RankReport(rank=0, outcome=verdict.outcome)
        record = RunRecord(
            run=attempt.name,
            outcome=verdict.outcome,
            reason=verdict.reason,
            parameters=parameters,
            order=order,
            started=_timestamp(execution.start_time),
            ended=_timestamp(execution.end_time),
            profiler=_profiler_use(profiler, execution.ended, trace_missing),
            wall_time_s=round(execution.ended.wall_time_s, 3),
            exit_code=execution.ended.exit_code,
            ended_at_time_limit=execution.ended.timed_out,
            files=tuple(ListedFile(**described(folder / name)) for name in (STEPS, EPOCHS)),
            command=tuple(_command_without_private_parts(attempt, execution.command)),
            variables=settings(),
            withheld=tuple(secrets),
            conditions=tuple(collected.conditions),
            host=first.host,
            hardware=first.hardware,
            versions={**first.versions, "multicard": full_version()} if first.versions else None,
            steps_per_pass=first.steps_per_pass,
            profiled_window=first.profiled_window,
            ranks=tuple(collected.ranks),
            resumed=has_checkpoint,
            data=inputs.get("data"),
            model=inputs.get("model"),
            nodes=tuple(collected.nodes) or None,
            script=script,
        )
        _write_record(attempt, record)
        report_outcome(attempt, record, execution.ended, measured)
        return record


def refuse_job(parameters: JobParameters, folder: Path, why: Reason | str, order: Place | None = None) -> RunRecord:
    """Write the run directory of a job that this machine cannot run, and return its record: the job has `failed`.

    `why`: the reason. A message becomes the reason `cannot_run` on this host.
    """
    reason = Reason("cannot_run", node=socket.gethostname(), message=why) if isinstance(why, str) else why
    text = describe_reason(reason)
    now = _timestamp(datetime.now(UTC))
    with report_unwritable(folder), scratch_in(folder) as scratch:
        (folder / LOG).write_text(f"{text}\n", encoding="utf-8")
        join_tables(scratch, folder, 0)
        missing = keep_trace(scratch, folder / TRACE, "none", "failed", parameters)
        record = RunRecord(
            run=run_id(parameters),
            outcome="failed",
            reason=reason,
            parameters=parameters,
            order=order,
            started=now,
            ended=now,
            profiler=ProfilerUse(used="none", why="nothing ran", trace_missing=missing),
            wall_time_s=0.0,
            ended_at_time_limit=False,
        )
        write_json(folder / RUN, record.as_json())
    print_progress(record.run, f"failed, {text}")
    return record


def _input_records(parameters: JobParameters, folders: Mapping[str, Path | None]) -> InputRecords:
    """Return the records of a job's data set and model, read from their folders by the parameter that names each."""
    records = InputRecords()
    for parameter, entry in PROGRAMS[parameters.workload].inputs.items():
        folder = folders[parameter]
        if folder is not None:
            records |= entry.record(folder)
    return records


def observed_job(parameters: JobParameters, profiler: str) -> ObservedJob:
    """Return what the observer of a job needs to know. `profiler`: name of the profiler that is used."""
    words = start.rank_command(parameters).words
    # Without a profiler, nothing would record the profiled steps. A program that itself states how many steps it trains
    # has them nevertheless: otherwise it would be ended after its last step, before it has tested after its last epoch.
    has_profiled_steps = profiler != "none" or parameters.measured_steps is None
    return ObservedJob(
        device=parameters.device,
        devices=parameters.devices,
        devices_per_node=parameters.devices_per_node,
        ranks=parameters.ranks,
        ranks_per_node=parameters.ranks_per_node,
        warmup_steps=parameters.warmup_steps,
        measured_steps=parameters.measured_steps,
        profiled_steps=parameters.profiled_steps if has_profiled_steps else 0,
        # The names of files and modules among the words of the command, by which a rank is recognized.
        program=tuple(Path(word).name for word in words),
        ablate=parameters.ablated,
        count_operations=parameters.counts_operations,
        memory_snapshot=parameters.memory_snapshot,
    )


def _write_job_file(attempt: Attempt, data: Path | None, model: Path | None) -> None:
    """Write job.json, from which the ranks, the observer and other nodes read what to do."""
    parameters = attempt.parameters
    job_file = JobFile(
        scratch=attempt.scratch.absolute(),
        profiler=attempt.profiler.name,
        observe=observed_job(parameters, attempt.profiler.name),
        time_limit_s=attempt.time_limit_s,
        port=free_port(),
        parameters=parameters.stated(),
        data=data.absolute() if data else None,
        model=model.absolute() if model else None,
        saved=(attempt.folder / SAVED).absolute(),
        shared=attempt.shared.absolute(),
        checkpoint=attempt.checkpoint.absolute(),
    )
    job_file.write()


def _execute(attempt: Attempt) -> Execution:
    """Run the ranks, on this node or on several, until all have ended."""
    parameters, log, time_limit_s = attempt.parameters, attempt.log, attempt.time_limit_s
    start_time = datetime.now(UTC)
    if parameters.nodes > 1:
        # Each node builds the command and the environment of its own ranks.
        job_file = (attempt.scratch / JOB).absolute()
        command, ended = run_on_nodes(parameters, attempt.shared, job_file, log, time_limit_s, follow_progress)
    else:
        profiler, ranks = attempt.profiler.name, range(parameters.ranks)
        command, ended = run_ranks(parameters, profiler, attempt.scratch, log, time_limit_s, follow_progress, ranks)
    return Execution(command, ended, start_time, end_time=datetime.now(UTC))


def _with_measured_steps(verdict: Verdict, measured: MeasuredSteps | None) -> Verdict:
    """Return the verdict with the measured steps of a job in the reason for which it did not complete."""
    if measured is None or verdict.reason is None:
        return verdict
    reason = replace(verdict.reason, measured_steps=measured.count, step_s=measured.step_s)
    return verdict._replace(reason=reason)


def _keep_memory_snapshot(attempt: Attempt, verdict: Verdict) -> None:
    """Move a rank's memory snapshot into the run directory, if its GPU ran out of memory and PyTorch wrote one."""
    reason = verdict.reason
    if reason is None or not reason.held or reason.rank is None:
        return
    snapshot = attempt.scratch / rank_file(MEMORY_SNAPSHOT, reason.rank)
    if snapshot.exists():
        shutil.move(snapshot, attempt.folder / MEMORY_SNAPSHOT)


def _trace_problem(collected: Collected) -> str | None:
    """Return the first problem with a trace that a rank reported, with the number of the rank; None if no rank did."""
    for report in collected.reports:
        if report.trace_problem:
            return f"rank {report.rank}: {report.trace_problem}"
    return None


def _timestamp(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def _profiler_use(profiler: ProfilerChoice, ended: Ended, missing: str | None) -> ProfilerUse:
    """Return the profiler's entry in the record; `missing`: why there is no trace, None if there is one."""
    why = profiler.why
    if ended.profiler_failed_before:
        why = f"{why}; the job was started again: {ended.profiler_failed_before}"
    return ProfilerUse(used=profiler.name, why=why, caveat=profiler.caveat, trace_missing=missing)


def _command_without_private_parts(attempt: Attempt, command: Sequence[str]) -> list[str]:
    """Return the command without secrets, and with $SCRATCH in place of the path of its scratch folder."""
    scratch = str(attempt.scratch)
    words = [word.replace(scratch, "$SCRATCH") for word in command]
    return arguments_without_secrets(words)


def _write_record(attempt: Attempt, record: RunRecord) -> None:
    """Write run.json. Before that, remove an empty folder of saved files, and a checkpoint that is of no use."""
    # Removing a folder that is not empty raises an error.
    with contextlib.suppress(OSError):
        (attempt.folder / SAVED).rmdir()
    # After a time-out, another attempt can go on from the checkpoint. After a failure, the checkpoint may be the cause.
    if record.outcome != "timed_out":
        attempt.checkpoint.unlink(missing_ok=True)
    write_json(attempt.folder / RUN, record.as_json())
