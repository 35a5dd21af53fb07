"""The limits of this machine, one part after another, each in processes of its own and under a time limit."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.core.errors import UserError
from multicard.core.facts import told
from multicard.core.layout import GPU_SAMPLES, STEPS
from multicard.core.pipeline import pipeline_folder
from multicard.core.prepared import PROVENANCE
from multicard.core.reasons import describe_reason
from multicard.core.system import ask, ending
from multicard.core.text import printable
from multicard.experiment.machine import Machine
from multicard.experiment.workload import WORKLOADS
from multicard.launch.commands import training_command
from multicard.launch.conditions import HostConditions
from multicard.launch.environment import inside_one_machine, job_environment, settings
from multicard.launch.gpu_samples import Samples, sampled
from multicard.launch.job import run_job
from multicard.launch.process import run
from multicard.limits.all_reduce import exchange
from multicard.limits.jobs import Job
from multicard.trace.collectives import bus_bandwidth

LIMIT_S = 900.0  # of a part beside the time that it is to measure: it starts, and finds out how fast the machine is
MESSAGE_BYTES = {"cpu": [4**power for power in range(5, 14)], "cuda": [4**power for power in range(5, 15)]}
MOST_PROCESSES = 8  # on CPUs, where each is a process that imports PyTorch
WARMUP_STEPS, MEASURED_STEPS = 10, 20
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # by which nvidia-smi underlines headings

Say = Callable[[str], None]
Part = dict[str, Any]


def device_counts(device: str, machine: Machine) -> list[int]:
    """Numbers of devices between which all-reduces are measured: powers of two, and all of them.

    >>> [device_counts("cuda", Machine(cpus=64, gpus=gpus)) for gpus in (6, 1)]
    [[2, 4, 6], []]
    >>> device_counts("cpu", Machine(cpus=64, gpus=0))
    [2, 4, 8]
    """
    most = machine.gpus if device == "cuda" else min(machine.cpus, MOST_PROCESSES)
    return sorted({2**power for power in range(1, most.bit_length())} | ({most} - {0, 1}))


def measure_machine(
    device: str,
    counts: Sequence[int] | None = None,
    loaders: Sequence[Job] = (),
    steps: Sequence[Job] = (),
    seconds: float = 1.0,
    loader_seconds: float = 10.0,
    say: Say = lambda _line: None,
) -> dict[str, Any]:
    """Measure a kind of device of this machine; what goes wrong in a part is its `problem`, and the others go on.

    Parameters
    ----------
    device
        "cpu" or "cuda".
    counts
        Numbers of devices for all-reduces; None for those of `device_counts`.
    loaders, steps
        As `multicard.limits.jobs` gives them.
    seconds, loader_seconds
        How long each number is measured, and each number of workers of a loader.
    say
        Is told what is measured next.

    Returns
    -------
    dict
        What docs/machine.md describes.

    Raises
    ------
    UserError
        If there are not as many devices, or a data set that a loader needs is not prepared.
    """
    here = Machine.here()
    most = here.gpus if device == "cuda" else here.cpus
    if not most:
        raise UserError(f"--device cuda: found no GPU{f': {here.hidden_gpus}' if here.hidden_gpus else ''}")
    counts = device_counts(device, here) if counts is None else counts
    if wrong := [count for count in counts if not 2 <= count <= most]:
        raise UserError(f"--devices: found {wrong[0]}, expected numbers from 2 to {most}, of {device}")
    for job in loaders:
        if not Path(job["data"], PROVENANCE).is_file():
            raise UserError(f"{job['data']}: found no {PROVENANCE}, expected a prepared data set")
    started = datetime.now(UTC)
    say(f"{device}: matrix multiplication and memory")
    machine, parts = _device_part(device, seconds)
    parts = [parts]
    for ranks in counts:
        say(f"{device}: all-reduce between {ranks}")
        parts.append(_all_reduce_part(device, ranks, seconds))
    for number, job in enumerate(loaders, start=1):
        say(f"{device}: loader {number} of {len(loaders)}")
        parts.append(_loader_part(job, workers_of(job, counts, here.cpus), loader_seconds))
    for number, parameters in enumerate(steps, start=1):
        say(f"{device}: step without a loader, {number} of {len(steps)}")
        parts.append(_step_part(parameters))
    return {
        "device": device,
        **{name: machine.get(name) for name in ("host", "hardware", "versions", "numa")},
        "links": _links() if device == "cuda" else None,
        "variables": settings(),
        "seconds": seconds,
        "loader_seconds": loader_seconds,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "parts": parts,
    }


def _device_part(device: str, seconds: float) -> tuple[dict[str, Any], Part]:
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        with sampled(Path(scratch), device):
            facts, part = _told("multicard.limits.device_job", [device, str(seconds)], 100 * seconds)
        samples = Samples.read(Path(scratch, GPU_SAMPLES))
    machine = next((fact["machine"] for fact in facts if "machine" in fact), {})
    rank = next((fact["rank"] for fact in facts if "rank" in fact), {})
    conditions = samples.of_rank(rank)["gpu_conditions"]
    return machine, {"part": "device", **part, "ranks": [{"rank": 0, "gpu_conditions": conditions}]}


def _all_reduce_part(device: str, ranks: int, seconds: float) -> Part:
    sizes, host = MESSAGE_BYTES[device], HostConditions()
    # A block takes as long as a single all-reduce did at least, which on a slow link may be much.
    ended = exchange(device, ranks, sizes, LIMIT_S + len(sizes) * seconds, seconds=seconds)
    rows = [
        {
            "measure": "all_reduce",
            "devices": ranks,
            "message_bytes": size,
            "bytes": bus_bandwidth("all_reduce", size, ranks, 1.0),
            "times_s": times,
        }
        for size, times in sorted(ended.sizes.items())
    ]
    conditions = [host.record()]
    return {"part": "all_reduce", "devices": ranks, "rows": rows, "problem": ended.problem, "conditions": conditions}


def workers_of(job: Job, counts: Sequence[int], cpus: int) -> list[int]:
    """Numbers of workers with which a loader is measured: a rank's, and where only CPUs are shared those of more ranks.

    Of as many ranks as there are devices, by `counts`, and not more than there are CPUs.

    >>> workers_of({"workers": [0, 1, 4], "on_cpus": True}, [2, 4], cpus=6)
    [0, 1, 2, 4, 6]
    """
    own = set(job["workers"])
    more = {min(each * count, cpus) for each in own for count in counts if 0 < each < cpus} if job["on_cpus"] else set()
    return sorted(own | more)


def _loader_part(job: Job, workers: Sequence[int], seconds: float) -> Part:
    data = str(Path(job["data"]).absolute())
    arguments = [json.dumps(job["parameters"]), data, ",".join(map(str, workers)), str(seconds)]
    _, part = _told("multicard.limits.loader_job", arguments, len(workers) * seconds)
    return {"part": "loader", "parameters": job["parameters"], **part}


def _step_part(parameters: Job) -> Part:
    """A run on a batch that lies on the device: the steps of training, with nothing to load."""
    work = WORKLOADS[parameters["workload"]]
    p, definition = work.without_loader(parameters, WARMUP_STEPS, MEASURED_STEPS)
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        data, folder = Path(scratch, "data"), Path(scratch, "run")
        work.prepare(definition.source, definition, data, pipeline_folder() / "resources")
        record = run_job(p, data, folder, LIMIT_S)
        steps = pd.read_csv(folder / STEPS) if record["outcome"] == "completed" else None
    rows = []
    if steps is not None:
        measured = steps[steps["window"] == "measured"]
        operations, times = work.operations(record, measured), measured["duration_s"].tolist()
        known = {"model_operations": operations.model} if operations else {}
        rows.append({"measure": "step", "samples": p.batch_of_device, **known, "times_s": times})
    return {
        "part": "step",
        "parameters": parameters,
        "rows": rows,
        "problem": None if rows else _why(record),
        "conditions": record["conditions"],
        "ranks": record["ranks"],
    }


def _why(record: dict[str, Any]) -> str:
    """Why a run did not complete."""
    reason = ", " + describe_reason(record["reason"]) if record["reason"] else ""
    return record["outcome"] + reason


def _told(module: str, arguments: list[str], expected_s: float) -> tuple[list[dict[str, Any]], Part]:
    """Run a module in a process of its own; the facts that it tells, and what is kept of every part."""
    facts, said = [], []

    def follow(line: str) -> None:
        first, found = told(line)
        said.append(first)
        facts.extend(found)

    host, limit_s = HostConditions(), LIMIT_S + 4 * expected_s
    with tempfile.TemporaryDirectory(prefix="multicard-machine-", ignore_cleanup_errors=True) as scratch:
        environment = inside_one_machine(job_environment(os.environ)) | {"PYTHONSAFEPATH": "1"}
        command = training_command(module, arguments, 1, distributed=False)
        ended = run(command, environment, Path(scratch, "log.txt"), limit_s, follow)
    problems = [fact["problem"] for fact in facts if "problem" in fact]
    if ended.timed_out:
        problems.append(f"no end within {limit_s:g} s")
    elif not any("done" in fact for fact in facts):
        problems.append(ending(ended.exit_code, said))
    rows = [fact["row"] for fact in facts if "row" in fact]
    return facts, {"rows": rows, "problem": "; ".join(problems) or None, "conditions": [host.record()]}


def _links() -> dict[str, Any]:
    """How GPUs are connected, in the words of nvidia-smi; why that is not known, where it is not."""
    answer = ask(["nvidia-smi", "topo", "-m"])
    lines = [printable(ESCAPES.sub("", line).replace("\t", "  ")).rstrip() for line in answer.output.splitlines()]
    return {"nvidia_smi": None if answer.problem else lines, "problem": answer.problem}
