"""Run one job to its outcome and leave its run directory whole."""

import csv
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multicard.errors import UserError
from multicard.experiment.parameters import JobParameters, run_id
from multicard.experiment.resources import cpus
from multicard.files import described, read_json, write_csv, write_json
from multicard.launch import nsys, slurm
from multicard.launch.commands import LOOPBACK, Place, job_environment, training_command
from multicard.launch.process import GRACE_S, run
from multicard.record.names import (
    CAPTURED,
    EPOCH_COLUMNS,
    EPOCHS,
    JOB,
    LOG,
    NODE,
    OUTCOMES,
    REPORT,
    RUN,
    SAVED,
    STEP_COLUMNS,
    STEPS,
    TRACE,
    node_file,
    rank_file,
)
from multicard.record.outcome import judge

PROGRESS = "multicard: "  # lines of a job that a person wants to see
TRAINERS = {"vision": "multicard.vision.train", "llm": "multicard.llm.train"}
SCRATCH = ".scratch-"
OF_EVERY_RANK = ("rank", "node", "pid", "binding", "energy", "device_memory_used_bytes", "held_bytes")
FROM_FIRST_RANK = ("host", "hardware", "versions", "data", "model", "steps_per_pass", "saved")


def run_job(
    parameters: JobParameters, data: Path, folder: Path, time_limit_s: float, model: Path | None = None
) -> dict[str, Any]:
    """Run the job and write its run directory; return what run.json holds.

    Whatever becomes of the job is an outcome and is written down: `completed`, `out_of_memory`, `diverged`,
    `timed_out` or `failed`. run.json comes last, so a directory that has one is whole.

    Parameters
    ----------
    data
        Folder of the prepared data set.
    folder
        The run directory. What an earlier attempt left in it is removed.
    time_limit_s
        Seconds after which the job is ended.
    model
        Folder of the prepared model, of a language model's tuning.
    """
    name, several = run_id(parameters), parameters.nodes > 1
    profiler, why = choose_profiler(parameters.profiler)
    _clear(folder)
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
    try:
        write_json(
            scratch / JOB,
            {
                "parameters": parameters.stated(),
                "profiler": profiler,
                "data": str(data.absolute()),
                "model": str(model.absolute()) if model else None,
                "keep": str((folder / SAVED).absolute()),
                "scratch": str(scratch.absolute()),
                "time_limit_s": time_limit_s,
                "port": slurm.free_port() if several else None,
            },
        )
        command, environment = node_command(parameters, profiler, scratch), environment_of(parameters, profiler)
        if several:
            program = [sys.executable, "-m", "multicard.record.node", "--job", str((scratch / JOB).absolute())]
            gpus = parameters.devices_per_node if parameters.device == "cuda" else 0
            command = slurm.srun_command(program, parameters.nodes, cpus(parameters), gpus)
            environment |= slurm.srun_environment()
        start = datetime.now(UTC)
        _say(f"{PROGRESS}{name}: starts, profiler {profiler}")
        # Beyond their own grace, for nodes to end what they started.
        grace_s = 2 * GRACE_S if several else GRACE_S
        ended = run(command, environment, folder / LOG, time_limit_s, _follow, grace_s)
        end = datetime.now(UTC)

        ranks = _rank_records(scratch, parameters)
        nodes = _nodes(scratch, parameters, ranks) if several else []
        node_of = {rank: node["name"] for node in nodes for rank in node["ranks"]}
        outcome, reason = judge(ended, ranks, parameters.ranks, time_limit_s, folder / LOG, node_of)
        _gather(scratch, folder, parameters.ranks)
        captured = _keep_trace(scratch, folder / TRACE, profiler, outcome, parameters)
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
            **_told_by(ranks),
            **({"nodes": nodes} if several else {}),
        }
        write_json(folder / RUN, record)
        _say(f"{PROGRESS}{name}: {outcome}{f', {reason}' if reason else ''} ({ended.wall_time_s:.0f} s)")
        return record
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refuse_job(parameters: JobParameters, folder: Path, reason: str) -> dict[str, Any]:
    """Leave the run directory of a job that the machine which it was sent to cannot run: its outcome is `failed`."""
    _clear(folder)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    (folder / LOG).write_text(f"{reason}\n", encoding="utf-8")
    _gather(folder, folder, 0)
    captured = _keep_trace(folder, folder / TRACE, "none", "failed", parameters)
    record = {
        "run": run_id(parameters),
        "outcome": "failed",
        "reason": reason,
        "parameters": parameters.model_dump(),
        "started": now,
        "ended": now,
        "wall_time_s": 0.0,
        "exit_code": None,
        "profiler": {"used": "none", "why": "nothing ran", "trace_missing": captured["missing"]},
        "command": [],
        **_told_by([]),
    }
    write_json(folder / RUN, record)
    _say(f"{PROGRESS}{record['run']}: failed, {reason}")
    return record


def _told_by(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the record takes from those of the ranks."""
    told = {key: ranks[0].get(key) if ranks else None for key in FROM_FIRST_RANK}
    return told | {"ranks": [{key: rank.get(key) for key in OF_EVERY_RANK} for rank in ranks]}


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
    return "kineto", "no nsys on the PATH"


def node_command(parameters: JobParameters, profiler: str, scratch: Path, place: Place | None = None) -> list[str]:
    """Command that runs the ranks of one node, under nsys where that is the profiler."""
    command = training_command(
        TRAINERS[parameters.workload],
        ["--job", str((scratch / JOB).absolute())],
        parameters.ranks_per_node,
        distributed=parameters.distributed,
        place=place,
    )
    if profiler == "nsys":
        command = nsys.profile_command(command, (scratch / REPORT).absolute(), parameters.device)
    return command


def environment_of(parameters: JobParameters, profiler: str) -> dict[str, str]:
    """Environment of the ranks of one node."""
    # Ranks that are all on this machine talk inside it, unless the user chose otherwise.
    inside = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    environment = {} if parameters.nodes > 1 else dict.fromkeys(inside, LOOPBACK)
    environment |= job_environment() | {"OMP_NUM_THREADS": str(parameters.threads), "PYTHONUNBUFFERED": "1"}
    return environment | (nsys.PROFILE_ENVIRONMENT if profiler == "nsys" else {})


def _clear(folder: Path) -> None:
    """Remove what an earlier attempt left, run.json first: without it nothing else counts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RUN, STEPS, EPOCHS, LOG):
        (folder / name).unlink(missing_ok=True)
    for leftover in (folder / TRACE, folder / SAVED, *folder.glob(f"{SCRATCH}*")):
        shutil.rmtree(leftover, ignore_errors=True)


def _rank_records(scratch: Path, parameters: JobParameters) -> list[dict[str, Any]]:
    paths = [scratch / rank_file("rank.json", rank) for rank in range(parameters.ranks)]
    records = [read_json(path) for path in paths if path.exists()]
    assert all(record["outcome"] in OUTCOMES for record in records)
    return [record | {"node": record["rank"] // parameters.ranks_per_node} for record in records]


def _nodes(scratch: Path, parameters: JobParameters, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, host, hardware and ranks of every node; None for what a node did not live to say."""
    nodes = []
    for node in range(parameters.nodes):
        file, first = scratch / node_file(NODE, node), node * parameters.ranks_per_node
        said = next((record for record in ranks if record["node"] == node), {})
        nodes.append(
            {
                "name": read_json(file)["name"] if file.exists() else f"node {node}",
                "host": said.get("host"),
                "hardware": said.get("hardware"),
                "ranks": list(range(first, first + parameters.ranks_per_node)),
            }
        )
    return nodes


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


def _keep_trace(scratch: Path, target: Path, profiler: str, outcome: str, parameters: JobParameters) -> dict[str, Any]:
    """Move the trace into the run directory; its manifest says what is there, or why nothing is.

    Process ids have a meaning on one node only, so the manifest names the node of a report where there are several.
    """
    missing, files, nodes = None, [], {}
    if profiler == "none":
        missing = "no profiler was used"
    elif outcome != "completed":
        missing = f"the run ended as {outcome}"
    elif profiler == "nsys":
        files = [scratch / REPORT]
        if parameters.nodes > 1:
            nodes = {node_file(REPORT, node): {"node": node} for node in range(parameters.nodes)}
            files = [scratch / name for name in nodes]
        try:
            for file in files:
                nsys.check_report(file)
        except nsys.TraceError as error:
            missing, files = str(error), []
    else:
        files = [scratch / f"rank{rank}.json.gz" for rank in range(parameters.ranks)]
        absent = [file.name for file in files if not file.exists()]
        if absent:
            missing, files = f"the profiler left no {', '.join(absent)}", []
    target.mkdir()
    for file in files:
        file.replace(target / file.name)
    captured = {
        "profiler": profiler,
        "missing": missing,
        "files": [described(target / file.name) | nodes.get(file.name, {}) for file in files],
    }
    write_json(target / CAPTURED, captured)
    return captured


def _follow(line: str) -> None:
    if line.startswith(PROGRESS):
        _say(line)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
