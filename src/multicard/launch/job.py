"""Run one job to its outcome and write its run directory: prepare, run, collect, judge, write."""

import contextlib
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import described, is_full, mentions_full_disk, report_unwritable, write_json
from multicard.core.job_file import JobFile, ObservedJob
from multicard.core.layout import (
    CHECKPOINT,
    EPOCHS,
    JOB,
    LOG,
    MEMORY_SNAPSHOT,
    PROGRESS,
    RUN,
    SAVED,
    STEPS,
    TRACE,
    rank_file,
)
from multicard.core.pipeline import full_version
from multicard.core.reasons import Reason, describe_reason
from multicard.core.rendezvous import free_port
from multicard.core.secrets import arguments_without_secrets
from multicard.core.text import counted, printable
from multicard.core.units import SECONDS, with_unit
from multicard.launch import start
from multicard.launch.attempts import scratch_in, script_version
from multicard.launch.collect import Collected, collect, join_tables
from multicard.launch.judge import (
    JobFacts,
    MeasuredSteps,
    judge,
    judge_gpus,
    judge_profiler,
    measured_steps,
    text_of,
)
from multicard.launch.node_folder import node_folder
from multicard.launch.node_ranks import run_ranks
from multicard.launch.profiler_choice import ProfilerChoice, choose_profiler
from multicard.launch.several_nodes import run_on_nodes
from multicard.launch.supervise import Ended
from multicard.launch.trace_files import keep_trace
from multicard.launch.training_checks import judge_training
from multicard.launch.variables import secrets_in, settings
from multicard.launchers import LAUNCHERS
from multicard.profilers import PROFILERS
from multicard.programs import PROGRAMS
from multicard.programs.machine import slurm_job
from multicard.programs.program import InputRecords
from multicard.runs.parameters import JobParameters, run_id
from multicard.runs.rank_report import RankReport
from multicard.runs.record import ListedFile, Place, ProfilerUse, RunRecord
from multicard.runs.verdict import Verdict

LOG_TAIL = 20_000  # messages about a full disk are searched for in so many characters at the end of a log


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job: its parameters, profiler, time limit and folders; made by `run_job`."""

    parameters: JobParameters
    profiler: ProfilerChoice
    time_limit_s: float
    folder: Path  # the run directory
    scratch: Path  # folder that ranks write to: see `_scratch_of_ranks`
    shared: Path  # temporary folder in the run directory, which all nodes see

    @property
    def name(self) -> str:
        """The id of the run."""
        return run_id(self.parameters)

    @property
    def log(self) -> Path:
        """The file with the output of the job."""
        return self.folder / LOG

    @property
    def checkpoint(self) -> Path:
        """The file from which the job resumes, if an earlier attempt was interrupted and left it."""
        return self.folder / CHECKPOINT


@dataclass(frozen=True)
class Execution:
    """The command of a job, how it ended, and when it started and ended, in UTC."""

    command: Sequence[str]
    ended: Ended
    start: datetime
    end: datetime


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
        _scratch_of_ranks(parameters, shared) as scratch,
    ):
        attempt = Attempt(parameters, profiler, time_limit_s, folder, scratch, shared)
        has_checkpoint = attempt.checkpoint.is_file()
        _write_job_file(attempt, data, model)
        script = script_version(command.script, command.folder) if command.folder else None
        (folder / SAVED).mkdir()  # the program may write there
        secrets = secrets_in()
        _announce(attempt, secrets)
        execution = _execute(attempt)
        collected = collect(scratch, folder, parameters)
        verdict = _judge(attempt, execution.ended, collected)
        join_tables(scratch, folder, parameters.ranks)
        measured = measured_steps(folder / STEPS, parameters.ranks)
        if measured is not None and verdict.reason is not None:
            reason = replace(verdict.reason, measured_steps=measured.count, step_s=measured.step_s)
            verdict = verdict._replace(reason=reason)
        _keep_memory_snapshot(attempt, verdict)
        missing = keep_trace(
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
            started=_timestamp(execution.start),
            ended=_timestamp(execution.end),
            profiler=_profiler_use(profiler, execution.ended, missing),
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
        _report(attempt, record, execution.ended, measured)
        return record


def refuse_job(parameters: JobParameters, folder: Path, why: Reason | str, order: Place | None = None) -> RunRecord:
    """Write the run directory of a job that this machine cannot run, and return its record: the job has `failed`.

    `why`: the reason. A message becomes the reason `cannot_run` on this host.
    """
    reason = Reason("cannot_run", node=socket.gethostname(), message=why) if isinstance(why, str) else why
    text, now = describe_reason(reason), _timestamp(datetime.now(UTC))
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
    _print(f"{PROGRESS}{record.run}: failed, {text}")
    return record


def _scratch_of_ranks(parameters: JobParameters, shared: Path) -> AbstractContextManager[Path]:
    """Return the folder that ranks write to.

    In a Slurm job on one node it is a temporary folder of that node, because writing over a network disturbs what is
    measured. Otherwise it is `shared`. In a job on several nodes, each node makes a folder of its own for its ranks,
    and copies the files to `shared` when they have ended.
    """
    if slurm_job() and parameters.nodes == 1:
        return node_folder()
    return contextlib.nullcontext(shared)


def _input_records(parameters: JobParameters, folders: Mapping[str, Path | None]) -> InputRecords:
    """Return the records of a job's data set and model, read from their folders by the parameter that names each."""
    records = InputRecords()
    for parameter, entry in PROGRAMS[parameters.workload].inputs.items():
        folder = folders[parameter]
        if folder is not None:
            records |= entry.record(folder)
    return records


def observed_job(parameters: JobParameters, profiler: str) -> ObservedJob:
    """Return what the observer of a job needs to know; `profiler`: name of the one that is used."""
    words = start.rank_command(parameters).words
    # Without a profiler, nothing would record them. A program that itself states how many steps it trains has them
    # nevertheless: without them it would be ended after its last step, before it has tested after its last epoch.
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
    parameters, scratch = attempt.parameters, attempt.scratch
    start = datetime.now(UTC)
    if parameters.nodes > 1:  # each node builds the command and the environment of its own ranks
        job = (scratch / JOB).absolute()
        command, ended = run_on_nodes(parameters, attempt.shared, job, attempt.log, attempt.time_limit_s, _follow)
    else:
        ranks = range(parameters.ranks)
        command, ended = run_ranks(
            parameters, attempt.profiler.name, scratch, attempt.log, attempt.time_limit_s, _follow, ranks
        )
    return Execution(command, ended, start, datetime.now(UTC))


def _judge(attempt: Attempt, ended: Ended, collected: Collected) -> Verdict:
    """Return the verdict on a job: by its exit and the reports of its ranks first, then by whether it trained.

    Raises `UserError` if the job failed because a disk was full, so that the user can free space and try again.
    """
    parameters = attempt.parameters
    facts = JobFacts(
        ended, collected.reports, parameters.ranks, attempt.time_limit_s, text_of(attempt.log), collected.node_of
    )
    verdict = judge(facts)
    if verdict.outcome == "failed" and verdict.reason is not None:
        # The reason becomes `profiler_failed` if no rank explains the failure and the profiler itself failed.
        reason = judge_profiler(verdict.reason, PROFILERS[attempt.profiler.name], ended, attempt.log)
        verdict = verdict._replace(reason=reason)
    if verdict.outcome == "completed" and parameters.device == "cuda":
        # The job failed if ranks shared a GPU.
        verdict = judge_gpus(collected.reports, parameters.devices)
    verdict = judge_training(parameters, verdict, collected.reports, attempt.scratch)
    if verdict.outcome == "failed" and verdict.reason is not None:
        full = _full_folder(verdict.reason, attempt.log, (attempt.folder, attempt.scratch))
        if full is not None:
            raise UserError(f"{full}: cannot be written: No space left on device; free space and start again")
    return verdict


def _full_folder(reason: Reason, log: Path, folders: Sequence[Path]) -> Path | None:
    """Return the first of `folders` whose disk was full when a job failed; None if none was.

    The reason or the end of the log must have a line about a full disk. Such a line alone proves nothing, because a
    script may complain about another disk: the line has to name the folder, or the folder's disk has to be full now.
    """
    lines = [reason.message or "", *text_of(log)[-LOG_TAIL:].splitlines()]
    complaints = [line for line in lines if mentions_full_disk(line)]
    for folder in folders:
        is_named = any(str(folder) in line or str(folder.absolute()) in line for line in complaints)
        if is_named or (complaints and is_full(folder)):
            return folder
    return None


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
    problems = [report for report in collected.reports if report.trace_problem]
    return f"rank {problems[0].rank}: {problems[0].trace_problem}" if problems else None


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
    return arguments_without_secrets([part.replace(str(attempt.scratch), "$SCRATCH") for part in command])


def _write_record(attempt: Attempt, record: RunRecord) -> None:
    """Write run.json. Before that, remove an empty folder of saved files, and a checkpoint that is of no use."""
    with contextlib.suppress(OSError):  # the folder is not empty
        (attempt.folder / SAVED).rmdir()
    # After a time-out, another attempt can go on from the checkpoint. After a failure, the checkpoint may be the cause.
    if record.outcome != "timed_out":
        attempt.checkpoint.unlink(missing_ok=True)
    write_json(attempt.folder / RUN, record.as_json())


def _announce(attempt: Attempt, secrets: Sequence[str]) -> None:
    """Print that the job starts, the profiler that it runs under, and the variables that are withheld from it."""
    profiler = attempt.profiler
    is_as_configured = profiler.name == attempt.parameters.profiler and profiler.caveat is None
    remark = "" if is_as_configured else f" ({profiler.why})"
    _print(f"{PROGRESS}{attempt.name}: starting, profiler {profiler.name}{remark}")
    if secrets:
        withheld = f"{counted(len(secrets), 'variable')} withheld that may be secret"
        _print(f"{PROGRESS}{attempt.name}: {withheld}: {', '.join(secrets)}")


def _report(attempt: Attempt, record: RunRecord, ended: Ended, measured: MeasuredSteps | None) -> None:
    """Print the outcome of the job, the time of a step if it completed, and the reason if it did not."""
    details: list[str] = [record.outcome]
    if measured is not None and record.completed:
        details.append(f"{with_unit(measured.step_s, SECONDS)} per step")
    text = ", ".join(filter(None, (*details, describe_reason(record.reason))))
    if record.outcome == "failed" and record.reason is not None and record.reason.message is None:
        text += f"; see {attempt.log}"
    _print(f"{PROGRESS}{attempt.name}: {text} ({ended.wall_time_s:.0f} s)")


def _follow(line: str) -> None:
    """Print the progress message in a line that the job printed; print nothing for a line without one.

    The message begins with `PROGRESS` and two blanks. Text before it is dropped, such as a script's progress bar.
    """
    _, prefix, progress = line.rpartition(f"{PROGRESS}  ")
    if prefix:
        _print(prefix + progress)


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not end the run
        print(printable(line), file=sys.stderr, flush=True)
