"""Run one job to its outcome and write its run directory."""

import contextlib
import csv
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from multicard.core.errors import UserError
from multicard.core.files import (
    described,
    is_full,
    mentions_full_disk,
    read_json,
    report_unwritable,
    write_csv,
    write_json,
)
from multicard.core.layout import (
    CHECKPOINT,
    CPU_SAMPLES,
    EPOCH_COLUMNS,
    EPOCHS,
    FROM_FIRST_RANK,
    GPU_SAMPLES,
    JOB,
    LOG,
    MEMORY_SNAPSHOT,
    NODE,
    OUTCOMES,
    PROGRESS,
    RUN,
    SAVED,
    STEP_COLUMNS,
    STEPS,
    TRACE,
    node_file,
    node_files,
    rank_file,
)
from multicard.core.pipeline import full_version
from multicard.core.reasons import Reason, describe_reason
from multicard.core.rendezvous import free_port
from multicard.core.secrets import arguments_without_secrets
from multicard.core.text import counted, printable
from multicard.core.units import SECONDS, with_unit
from multicard.experiment.machine import slurm_job
from multicard.experiment.workload import WORKLOADS
from multicard.launch.attempts import scratch_in, script_version
from multicard.launch.cpu_samples import host_record
from multicard.launch.gpu_samples import GpuSamples
from multicard.launch.judge import judge, judge_gpus, judge_profiler, measured_steps, text_of
from multicard.launch.node_folder import node_folder
from multicard.launch.node_ranks import run_ranks
from multicard.launch.several_nodes import run_on_nodes
from multicard.launch.trace_files import keep_trace
from multicard.launch.variables import secrets_in, settings
from multicard.profilers import PROFILERS
from multicard.runs.parameters import JobParameters, run_id

OF_EVERY_RANK = (
    "rank", "node", "pid", "binding", "gpus", "windows", "energy", "gpu_conditions", "device_memory_used_bytes",
    "observed", "operations", "intraop_threads",
)  # fmt: skip


def run_job(
    parameters: JobParameters,
    data: Path | None,
    folder: Path,
    time_limit_s: float,
    model: Path | None = None,
    order: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the job and write its run directory; return what run.json holds.

    Every job has an outcome: `completed`, `out_of_memory`, `diverged`, `timed_out` or `failed`. run.json is written
    last, so a directory that has one is complete. A job that was interrupted has no outcome; started again, it resumes
    from its checkpoint, if it has one.

    `data` and `model`: folders of the prepared data set and language model, for a run that has them; `folder`: the run
    directory, from which all is removed that an earlier attempt left but its checkpoint; `order`: the run's place in
    the planned order, for run.json; see `multicard.experiment.order.Place`.

    Raises `UserError` if the configured profiler cannot be used, or `folder` cannot be written, such as on a full disk:
    that is no outcome of the job.
    """
    name, several = run_id(parameters), parameters.nodes > 1
    work = WORKLOADS[parameters.workload]
    launching = work.launching(parameters)
    seen = launching.hidden_from_profilers, launching.interpreter
    choice = choose_profiler(parameters.profiler, parameters.device, *seen)
    if refusal := work.refusal(parameters):
        return refuse_job(parameters, folder, refusal, order)
    inputs = {"data": None, "model": None} | (work.input_facts(data, model) if data else {})
    # On a cluster ranks write to a folder on the node, since writing over a network disturbs what is measured; of
    # several nodes each makes its own and copies it to the shared one.
    is_near = slurm_job() and not several
    with (
        report_unwritable(folder),
        scratch_in(folder) as shared,
        node_folder() if is_near else contextlib.nullcontext(shared) as scratch,
    ):
        checkpoint = folder / CHECKPOINT
        resumes = checkpoint.is_file()
        observed = work.observed(parameters)
        if choice.name == "none" and work.is_user_program:
            observed["profiled_steps"] = 0  # nothing would record them
        write_json(
            scratch / JOB,
            {
                "parameters": parameters.stated(),
                "profiler": choice.name,
                "data": str(data.absolute()) if data else None,
                "model": str(model.absolute()) if model else None,
                "keep": str((folder / SAVED).absolute()),
                "scratch": str(scratch.absolute()),
                "shared": str(shared.absolute()),
                "time_limit_s": time_limit_s,
                "port": free_port() if several else None,
                "checkpoint": str(checkpoint.absolute()),
                "observe": observed,
            },
        )
        scripts = {}
        if own_folder := launching.folder:
            scripts = {"script": script_version(launching.script, own_folder)}
            (folder / SAVED).mkdir()  # the script may write there
        start, secrets = datetime.now(UTC), secrets_in()
        remark = "" if choice.name == parameters.profiler and choice.caveat is None else f" ({choice.why})"
        _print(f"{PROGRESS}{name}: starting, profiler {choice.name}{remark}")
        if secrets:
            found = f"{counted(len(secrets), 'variable')} withheld that may be secret"
            _print(f"{PROGRESS}{name}: {found}: {', '.join(secrets)}")
        if several:  # each node makes the command and the environment of its ranks
            job = (scratch / JOB).absolute()
            command, ended = run_on_nodes(parameters, shared, job, folder / LOG, time_limit_s, _follow)
        else:
            ranks = range(parameters.ranks)
            command, ended = run_ranks(parameters, choice.name, scratch, folder / LOG, time_limit_s, _follow, ranks)
        end = datetime.now(UTC)

        samples = _gpu_samples(scratch, folder, parameters.nodes)
        ranks = [rank | samples[rank["node"]].of_rank(rank) for rank in _rank_records(scratch, parameters)]
        nodes = _nodes(scratch, parameters, ranks) if several else []
        node_of = {rank: node["name"] for node in nodes for rank in node["ranks"]}
        outcome, reason = judge(ended, ranks, parameters.ranks, time_limit_s, folder / LOG, node_of)
        if outcome == "failed":
            reason = judge_profiler(reason, PROFILERS[choice.name], ended, folder / LOG)
        if outcome == "completed" and parameters.device == "cuda":
            outcome, reason = judge_gpus(ranks, parameters.devices)
        outcome, reason = work.judge(parameters, outcome, reason, ranks, scratch)
        if outcome == "failed" and (full := _full_folder(reason, folder / LOG, folder, scratch)):
            raise UserError(f"{full}: cannot be written: No space left on device; free space and start again")
        _join_parts(scratch, folder, parameters.ranks)
        measured = measured_steps(folder / STEPS, parameters.ranks)
        if measured and reason is not None:
            reason = replace(reason, measured_steps=measured[0], step_s=measured[1])
        if reason and reason.held and (snapshot := scratch / rank_file(MEMORY_SNAPSHOT, reason.rank)).exists():
            shutil.move(snapshot, folder / MEMORY_SNAPSHOT)  # of the rank that the reason tells of
        if ended.profiler_failed_before:
            choice = choice._replace(why=f"{choice.why}; the job was started again: {ended.profiler_failed_before}")
        failed = ((each["rank"], each.get("trace_problem")) for each in ranks)
        problem = next((f"rank {rank}: {found}" for rank, found in failed if found), None)
        missing = keep_trace(scratch, folder / TRACE, choice.name, outcome, parameters, ended, problem)
        record = {
            **_record(parameters, order, outcome, reason, start, end, choice, missing),
            "wall_time_s": round(ended.wall_time_s, 3),
            "exit_code": ended.exit_code,
            "ended_at_time_limit": ended.timed_out,
            "files": [described(folder / name) for name in (STEPS, EPOCHS)],
            "command": arguments_without_secrets([part.replace(str(scratch), "$SCRATCH") for part in command]),
            "variables": settings(),
            "withheld": secrets,
            "conditions": _conditions(scratch, parameters.nodes, ranks),
            **_from_ranks(ranks),
            "resumed": resumes,
            **inputs,
            **({"nodes": nodes} if several else {}),
            **scripts,
        }
        if own_folder:
            with contextlib.suppress(OSError):  # something is in it
                (folder / SAVED).rmdir()
        if outcome != "timed_out":  # the run is done, or the checkpoint may be the cause
            checkpoint.unlink(missing_ok=True)
        write_json(folder / RUN, record)
        step_s = measured[1] if measured and outcome == "completed" else None
        details = [outcome, step_s and f"{with_unit(step_s, SECONDS)} per step", describe_reason(record["reason"])]
        see = outcome == "failed" and reason.message is None and f"see {folder / LOG}"
        text = "; ".join(filter(None, (", ".join(filter(None, details)), see)))
        _print(f"{PROGRESS}{name}: {text} ({ended.wall_time_s:.0f} s)")
        return record


def refuse_job(
    parameters: JobParameters, folder: Path, why: Reason | str, order: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Leave the run directory of a job that this machine cannot run, for a reason or by a message: it has `failed`."""
    reason = Reason("cannot_run", node=socket.gethostname(), message=why) if isinstance(why, str) else why
    text, now = describe_reason(reason.record()), datetime.now(UTC)
    with report_unwritable(folder), scratch_in(folder) as scratch:
        (folder / LOG).write_text(f"{text}\n", encoding="utf-8")
        _join_parts(scratch, folder, 0)
        missing = keep_trace(scratch, folder / TRACE, "none", "failed", parameters)
        record = {
            **_record(parameters, order, "failed", reason, now, now, Choice("none", "nothing ran"), missing),
            "wall_time_s": 0.0,
            "exit_code": None,
            "ended_at_time_limit": False,
            "command": [],
            "variables": None,
            "conditions": [],
            **_from_ranks([]),
        }
        write_json(folder / RUN, record)
    _print(f"{PROGRESS}{record['run']}: failed, {text}")
    return record


def _record(
    parameters: JobParameters,
    order: Mapping[str, Any] | None,
    outcome: str,
    reason: Reason | None,
    start: datetime,
    end: datetime,
    choice: "Choice",
    missing: str | None,
) -> dict[str, Any]:
    """What is recorded of every job; `missing`: why there is no trace."""
    return {
        "run": run_id(parameters),
        "outcome": outcome,
        "reason": reason.record() if reason else None,
        "parameters": parameters.model_dump(),
        "order": order,
        "started": start.isoformat(timespec="milliseconds"),
        "ended": end.isoformat(timespec="milliseconds"),
        "profiler": {"used": choice.name, "why": choice.why, "caveat": choice.caveat, "trace_missing": missing},
    }


def _from_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the record takes from those of the ranks."""
    first = {key: ranks[0].get(key) if ranks else None for key in FROM_FIRST_RANK}
    if first["versions"]:
        first["versions"]["multicard"] = full_version()
    return first | {"ranks": [{key: rank.get(key) for key in OF_EVERY_RANK} for rank in ranks]}


class Choice(NamedTuple):
    """Name of the profiler of a job, the reason for it, and why it may record too little."""

    name: str
    why: str
    caveat: str | None = None


def choose_profiler(wanted: str, device: str, hidden: str | None = None, python: str | None = None) -> Choice:
    """Resolve `auto` to the first profiler that can be used, without a caveat, for jobs on `device` (cpu, cuda).

    `hidden`: why one that runs the job as its child would not see its ranks; `python`: their interpreter, if not this
    one. A profiler that is configured and cannot be used is a `UserError`.
    """
    is_stated, reasons = wanted in PROFILERS, list[str]()
    for name in [wanted] if is_stated else PROFILERS:
        profiler = PROFILERS[name]
        if hidden and profiler.node_file:
            usable, why, caveat = False, f"{name} would see no rank: {hidden}", None
        else:
            usable, why, caveat = profiler.availability(device, python)
        if usable and is_stated:
            return Choice(name, "; ".join(filter(None, ("as configured", why, caveat))), caveat)
        if usable and caveat is None:
            return Choice(name, why or "; ".join(reasons))
        reasons.append(caveat or why)
    what = f"{wanted} cannot" if is_stated else "none can"
    raise UserError(f"profiler: {what} be used: {'; '.join(reasons)}")


def _full_folder(reason: Reason, log: Path, *folders: Path) -> Path | None:
    """Return the folder whose disk was full when a job failed; None if none was.

    What a job prints is no proof: a script may say so of another disk. It has to name the folder, or the folder has to
    be full now.
    """
    lines = [reason.message or "", *text_of(log)[-20_000:].splitlines()]
    complaints = [line for line in lines if mentions_full_disk(line)]
    for folder in folders:
        named = any(str(folder) in line or str(folder.absolute()) in line for line in complaints)
        if named or (complaints and is_full(folder)):
            return folder
    return None


def _rank_records(scratch: Path, parameters: JobParameters) -> list[dict[str, Any]]:
    paths = [scratch / rank_file("rank.json", rank) for rank in range(parameters.ranks)]
    records = [read_json(path) for path in paths if path.exists()]
    assert all(record["outcome"] in OUTCOMES for record in records)
    return [record | {"node": record["rank"] // parameters.ranks_per_node} for record in records]


def _nodes(scratch: Path, parameters: JobParameters, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, host, hardware and ranks of every node; None for what a node did not report."""

    def described(node: int) -> dict[str, Any]:
        file, first_rank = scratch / node_file(NODE, node), node * parameters.ranks_per_node
        record = next((rank for rank in ranks if rank["node"] == node), {})
        return {
            "name": read_json(file)["name"] if file.exists() else f"node {node}",
            "host": record.get("host"),
            "hardware": record.get("hardware"),
            "ranks": list(range(first_rank, first_rank + parameters.ranks_per_node)),
        }

    return [described(node) for node in range(parameters.nodes)]


def _gpu_samples(scratch: Path, folder: Path, nodes: int) -> list[GpuSamples]:
    """Move the samples of every node's GPUs into the run directory, and read them."""
    names = node_files(GPU_SAMPLES, nodes)
    for name in names:
        if (scratch / name).exists():
            shutil.move(scratch / name, folder / name)
    return [GpuSamples.read(folder / name) for name in names]


def _conditions(scratch: Path, nodes: int, ranks: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Who else used the CPUs of every node; None of one that did not report."""
    files = [scratch / name for name in node_files(CPU_SAMPLES, nodes)]
    windows = [
        [window for rank in ranks if rank["node"] == node for window in rank.get("windows") or ()]
        for node in range(nodes)
    ]
    return [host_record(file, own) if file.exists() else None for file, own in zip(files, windows, strict=True)]


def _join_parts(scratch: Path, folder: Path, count: int) -> None:
    """Join the parts of the ranks, in the order of the ranks; what no rank wrote stays an empty table."""
    steps = [scratch / rank_file(STEPS, rank) for rank in range(count)]
    write_csv(folder / STEPS, STEP_COLUMNS, _rows(steps))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, _rows([scratch / rank_file(EPOCHS, 0)]))


def _rows(parts: list[Path]) -> Iterator[dict[str, str]]:
    for part in parts:
        if part.exists():
            with part.open(newline="", encoding="utf-8") as source:
                yield from csv.DictReader(source)


def _follow(line: str) -> None:
    _, told, progress = line.rpartition(f"{PROGRESS}  ")  # a progress bar of the script may stand before it
    if told:
        _print(told + progress)


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not end the run
        print(printable(line), file=sys.stderr, flush=True)
