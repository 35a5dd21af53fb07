"""Run one job to its outcome and leave its run directory whole."""

import contextlib
import csv
import re
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from multicard.errors import UserError
from multicard.experiment.parameters import JobParameters, run_id
from multicard.files import described, read_json, room_for, tells_of_no_room, write_csv, write_json
from multicard.launch import nsys
from multicard.launch.commands import LOOPBACK, job_environment, training_command
from multicard.launch.process import FINISH_LIMIT_S, Ended, Wrapped, run
from multicard.record.attempts import is_spent, scratch_in, written
from multicard.record.names import (
    CAPTURED,
    CHECKPOINT,
    EPOCH_COLUMNS,
    EPOCHS,
    JOB,
    LOG,
    OUTCOMES,
    RUN,
    SAVED,
    STEP_COLUMNS,
    STEPS,
    TRACE,
    rank_file,
)

PROGRESS = "multicard: "  # lines of a job that a person wants to see
TRAINERS = {"vision": "multicard.vision.train", "llm": "multicard.llm.train"}
OF_EVERY_RANK = ("rank", "pid", "binding", "energy", "device_memory_used_bytes", "held_bytes")
# A rank and its exit code in the list of failures with which torchrun ends.
FAILED_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+) ")
# What gloo, NCCL and the store of a process group say when another rank is gone, in lower case.
LOST_PEER = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "connection was likely closed", "remote process exited", "ncclremoteerror", "communicator was aborted",
)  # fmt: skip
FROM_FIRST_RANK = ("host", "hardware", "versions", "data", "model", "steps_per_pass", "saved", "resumed")
# Training after which a checkpoint is worth its place: to start anew costs no more than this.
CHECKPOINT_AFTER_S = 30.0


def run_job(
    parameters: JobParameters,
    data: Path,
    folder: Path,
    time_limit_s: float,
    model: Path | None = None,
    checkpoint_after_s: float = CHECKPOINT_AFTER_S,
) -> dict[str, Any]:
    """Run the job and write its run directory; return what run.json holds.

    Whatever becomes of the job is an outcome and is written down: `completed`, `out_of_memory`, `diverged`,
    `timed_out` or `failed`. run.json comes last, so a directory that has one is whole. A job that was interrupted has
    no outcome; started again, it goes on from its checkpoint, if it has one.

    Parameters
    ----------
    data
        Folder of the prepared data set.
    folder
        The run directory. What an earlier attempt left in it is removed, but for its checkpoint.
    time_limit_s
        Seconds after which the job is ended.
    model
        Folder of the prepared model, of a language model's tuning.
    checkpoint_after_s
        Least time between two checkpoints, and before the first; with 0 there is one after every epoch.

    Raises
    ------
    UserError
        If the profiler that is demanded cannot be had, or a disk is full: that is no outcome of the job.
    """
    name = run_id(parameters)
    profiler, why = choose_profiler(parameters.profiler)
    with room_for(folder), scratch_in(folder) as scratch:
        checkpoint = folder / CHECKPOINT
        before = written(checkpoint)
        write_json(
            scratch / JOB,
            {
                "parameters": parameters.stated(),
                "profiler": profiler,
                "data": str(data.absolute()),
                "model": str(model.absolute()) if model else None,
                "keep": str((folder / SAVED).absolute()),
                "scratch": str(scratch.absolute()),
                "checkpoint": str(checkpoint.absolute()),
                "checkpoint_after_s": checkpoint_after_s,
                "resume": before is not None,
            },
        )
        command = _command(parameters, profiler, scratch)
        # All ranks are on this machine; what the user set is kept.
        environment = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK) | job_environment()
        environment |= {"OMP_NUM_THREADS": str(parameters.threads), "PYTHONUNBUFFERED": "1"}
        if profiler == "nsys":
            environment |= nsys.PROFILE_ENVIRONMENT
        start = datetime.now(UTC)
        _say(f"{PROGRESS}{name}: starts, profiler {profiler}")
        watched = None
        if profiler == "nsys":
            watched = Wrapped(str((scratch / JOB).absolute()), partial(_all_said, scratch, parameters.ranks))
        ended = run(command, environment, folder / LOG, time_limit_s, _follow, watched)
        end = datetime.now(UTC)

        ranks = _rank_records(scratch, parameters.ranks)
        outcome, reason = judge(ended, ranks, parameters.ranks, time_limit_s, folder / LOG)
        if outcome == "failed" and _ran_out_of_room(reason, folder / LOG):
            raise UserError(f"{folder}: no room for what the run writes; make room and start again")
        _gather(scratch, folder, parameters.ranks)
        captured = _keep_trace(scratch, folder / TRACE, profiler, outcome, parameters.ranks, ended)
        record = {
            "run": name,
            "outcome": outcome,
            "reason": reason,
            "parameters": parameters.model_dump(),
            "started": start.isoformat(timespec="milliseconds"),
            "ended": end.isoformat(timespec="milliseconds"),
            "wall_time_s": round(ended.wall_time_s, 3),
            "exit_code": ended.exit_code,
            "profiler": {"used": profiler, "why": why, "trace_missing": captured["missing"]},
            "command": [part.replace(str(scratch), "$SCRATCH") for part in command],
            **{key: ranks[0].get(key) if ranks else None for key in FROM_FIRST_RANK},
            "ranks": [{key: r.get(key) for key in OF_EVERY_RANK} for r in ranks],
        }
        if is_spent(outcome, before, written(checkpoint)):
            checkpoint.unlink(missing_ok=True)
        write_json(folder / RUN, record)
        _say(f"{PROGRESS}{name}: {outcome}{f', {reason}' if reason else ''} ({ended.wall_time_s:.0f} s)")
        return record


def choose_profiler(wanted: str) -> tuple[str, str]:
    """Resolve `auto`; return the profiler and the reason.

    Raises
    ------
    UserError
        If nsys is demanded and cannot be had.
    """
    if wanted in ("kineto", "none"):
        return wanted, "as configured"
    version = nsys.version()
    if version:
        return "nsys", f"nsys {version} is on the PATH"
    if wanted == "nsys":
        raise UserError("profiler: nsys is demanded, but no working nsys is on the PATH")
    return "kineto", f"no nsys on the PATH{' that works' if nsys.is_there() else ''}"


def judge(
    ended: Ended, ranks: list[dict[str, Any]], expected: int, time_limit_s: float, log: Path
) -> tuple[str, str | None]:
    """Outcome of a job and, unless it completed, the reason in one line.

    What the ranks wrote down decides; how a launcher or profiler ended after them does not. Of several failures the one
    that others follow from is told: not a connection that broke because the rank at its other end was gone.
    """
    if len(ranks) == expected and all(record["outcome"] == "completed" for record in ranks):
        return "completed", None
    for outcome in ("out_of_memory", "diverged"):
        for record in ranks:
            if record["outcome"] == outcome:
                return outcome, record["reason"]
    if ended.timed_out:
        return "timed_out", f"ended after its time limit of {time_limit_s / 60:g} min"
    failed = [record for record in ranks if record["outcome"] == "failed"]
    failed.sort(key=lambda record: _lost_a_peer(record["reason"]))
    silent = sorted(set(range(expected)) - {record["rank"] for record in ranks})
    signalled = _ended_by_signal(silent, ended, log)
    if failed and not (signalled and _lost_a_peer(failed[0]["reason"])):
        return "failed", f"rank {failed[0]['rank']}: {failed[0]['reason']}"
    if signalled:
        return "failed", f"{signalled}; see {log}"
    return "failed", f"exit code {ended.exit_code}, no word from rank {', '.join(map(str, silent))}; see {log}"


def _lost_a_peer(reason: str) -> bool:
    return any(sign in reason.lower() for sign in LOST_PEER)


def _ended_by_signal(silent: list[int], ended: Ended, log: Path) -> str | None:
    """Name the rank that ended first of those that left no word, if a signal ended it.

    torchrun ends by listing the ranks that failed, the first of them last. The others it ends itself.
    """
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    listed = FAILED_RANK.findall(said)
    ends = [(rank, int(code)) for rank, code in listed[-1:] + listed[:-1] if int(rank) in silent]
    if silent and not listed:
        ends = [(", ".join(map(str, silent)), ended.exit_code)]
    if not ends:
        return None
    who, code = ends[0]
    number = -code if code < 0 else code - 128  # as Popen has it, or as a shell or a profiler around the job
    if number not in list(signal.Signals):
        return None
    why = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"rank {who}: ended by {signal.Signals(number).name}{why}"


def _command(parameters: JobParameters, profiler: str, scratch: Path) -> list[str]:
    command = training_command(
        TRAINERS[parameters.workload],
        ["--job", str((scratch / JOB).absolute())],
        parameters.ranks,
        distributed=parameters.distributed,
    )
    if profiler == "nsys":
        command = nsys.profile_command(command, (scratch / "report.nsys-rep").absolute(), parameters.device)
    return command


def _all_said(scratch: Path, count: int) -> bool:
    return all((scratch / rank_file("rank.json", rank)).exists() for rank in range(count))


def _ran_out_of_room(reason: str, log: Path) -> bool:
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return tells_of_no_room(reason) or tells_of_no_room(said[-20_000:])


def _rank_records(scratch: Path, count: int) -> list[dict[str, Any]]:
    paths = [scratch / rank_file("rank.json", rank) for rank in range(count)]
    records = [read_json(path) for path in paths if path.exists()]
    assert all(record["outcome"] in OUTCOMES for record in records)
    return records


def _gather(scratch: Path, folder: Path, count: int) -> None:
    """Join the parts of the ranks, in the order of the ranks; what no rank wrote stays an empty table."""
    steps = [scratch / rank_file(STEPS, rank) for rank in range(count)]
    write_csv(folder / STEPS, STEP_COLUMNS, _rows(steps))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, _rows([scratch / rank_file(EPOCHS, 0)]))


def _rows(parts: list[Path]) -> Iterator[dict[str, str]]:
    for part in parts:
        if part.exists():
            with part.open(newline="", encoding="utf-8") as source:
                yield from csv.DictReader(source)


def _keep_trace(scratch: Path, target: Path, profiler: str, outcome: str, count: int, ended: Ended) -> dict[str, Any]:
    """Move the trace into the run directory; its manifest says what is there, or why nothing is."""
    missing, files = None, []
    if profiler == "none":
        missing = "no profiler was used"
    elif outcome != "completed":
        missing = f"the run ended as {outcome}"
    elif profiler == "nsys":
        files = [scratch / "report.nsys-rep"]
        try:
            nsys.check_report(files[0])
        except nsys.TraceError as error:
            missing, files = f"{error}{_how_nsys_ended(ended)}", []
    else:
        files = [scratch / f"rank{rank}.json.gz" for rank in range(count)]
        absent = [file.name for file in files if not file.exists()]
        if absent:
            missing, files = f"the profiler left no {', '.join(absent)}", []
    target.mkdir()
    for file in files:
        file.replace(target / file.name)
    captured = {
        "profiler": profiler,
        "missing": missing,
        "files": [described(target / file.name) for file in files],
    }
    write_json(target / CAPTURED, captured)
    return captured


def _how_nsys_ended(ended: Ended) -> str:
    if ended.lingered:
        return f": it did not end within {FINISH_LIMIT_S:g} s after the job, and was ended"
    if ended.exit_code < 0:
        return f": {signal.Signals(-ended.exit_code).name} ended it"
    if ended.orphaned:
        return ": it ended before the job did"
    return ""


def _follow(line: str) -> None:
    if line.startswith(PROGRESS):
        _say(line)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed takes nothing from the run
        print(line, file=sys.stderr, flush=True)
