"""The limits of this machine, one part after another, each in processes of its own and under a time limit."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.layout import GPU_SAMPLES
from multicard.core.prepared import PROVENANCE
from multicard.core.system import ask
from multicard.core.text import printable
from multicard.experiment.machine import Machine
from multicard.launch.conditions import HostConditions
from multicard.launch.environment import settings
from multicard.launch.gpu_samples import Samples, sampled
from multicard.machine.all_reduce import exchange
from multicard.machine.jobs import Job
from multicard.machine.processes import run_module
from multicard.trace.collectives import bus_bandwidth

LIMIT_S = 900.0  # of a part beside the time that it is to measure: it starts, and finds out how fast the machine is
MESSAGE_BYTES = {"cpu": [4**power for power in range(5, 14)], "cuda": [4**power for power in range(5, 15)]}
MOST_PROCESSES = 8  # on CPUs, where each is a process that imports PyTorch
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # by which nvidia-smi underlines headings

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
    seconds: float = 1.0,
    loader_seconds: float = 10.0,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Measure a kind of device of this machine; what goes wrong in a part is its `problem`, and the others go on.

    Parameters
    ----------
    device
        "cpu" or "cuda".
    counts
        Numbers of devices for all-reduces; None for those of `device_counts`.
    loaders
        As `multicard.machine.jobs` gives them.
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
    machine, first = _device_part(device, seconds)
    parts = [first]
    for ranks in counts:
        say(f"{device}: all-reduce between {ranks}")
        parts.append(_all_reduce_part(device, ranks, seconds))
    for number, job in enumerate(loaders, start=1):
        say(f"{device}: loader {number} of {len(loaders)}")
        parts.append(_loader_part(job, workers_of(job, counts, here.cpus), loader_seconds))
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
            told, part = _measured("multicard.machine.device_job", [device, seconds], 100 * seconds)
        samples = Samples.read(Path(scratch, GPU_SAMPLES))
    conditions = samples.of_rank(told.get("rank", {}))["gpu_conditions"]
    ranks = [{"rank": 0, "gpu_conditions": conditions}]
    return told.get("machine", {}), {"part": "device", **part, "ranks": ranks}


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
    arguments = [json.dumps(job["parameters"]), Path(job["data"]).absolute(), ",".join(map(str, workers)), seconds]
    _, part = _measured("multicard.machine.loader_job", arguments, len(workers) * seconds)
    return {"part": "loader", "parameters": job["parameters"], **part}


def _measured(module: str, arguments: list[object], expected_s: float) -> tuple[dict[str, Any], Part]:
    """Run a module in a process of its own; the facts that it tells, and what is kept of every part."""
    host, limit_s = HostConditions(), LIMIT_S + 4 * expected_s
    job = run_module(module, arguments, limit_s)
    told = {name: value for fact in job.facts for name, value in fact.items()}
    problems = [fact["problem"] for fact in job.facts if "problem" in fact]
    if not told.get("done"):
        problems.append(f"no end within {limit_s:g} s" if job.timed_out else job.ending)
    rows = [fact["row"] for fact in job.facts if "row" in fact]
    return told, {"rows": rows, "problem": "; ".join(problems) or None, "conditions": [host.record()]}


def _links() -> dict[str, Any]:
    """How GPUs are connected, in the words of nvidia-smi; why that is not known, where it is not."""
    answer = ask(["nvidia-smi", "topo", "-m"])
    lines = [printable(ESCAPES.sub("", line).replace("\t", "  ")).rstrip() for line in answer.output.splitlines()]
    return {"nvidia_smi": None if answer.problem else lines, "problem": answer.problem}
