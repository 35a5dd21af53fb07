"""The limits of this machine, one part after another, each in processes of its own and under a time limit."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES
from multicard.experiment.machine import Machine
from multicard.launch.cpu_samples import host_record, sample_cpus
from multicard.launch.gpu_samples import GpuSamples, sample_gpus
from multicard.launch.variables import settings
from multicard.machine.all_reduce import exchange
from multicard.machine.processes import run_module
from multicard.trace.collectives import bus_bandwidth

LIMIT_S = 900.0  # of a part beside the time that it is to measure: it starts, and finds out how fast the machine is
MESSAGE_BYTES = {"cpu": [4**power for power in (5, 8, 10, 12, 13)], "cuda": [4**power for power in (5, 8, 10, 12, 14)]}
MOST_PROCESSES = 8  # on CPUs, where each is a process that imports PyTorch

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
    seconds: float = 1.0,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Measure a kind of device of this machine; what goes wrong in a part is its `problem`, and the others go on.

    Gives the record that docs/choosing.md describes.

    `counts`: numbers of devices for all-reduces, else those of `device_counts`; `seconds`: that each number is measured
    for; `say` is told what is measured next.

    Raises `UserError` if there are not as many devices.
    """
    here = Machine.here()
    most = here.gpus if device == "cuda" else here.cpus
    if not most:
        raise UserError(f"--device cuda: found no GPU{f': {here.hidden_gpus}' if here.hidden_gpus else ''}")
    counts = device_counts(device, here) if counts is None else counts
    if wrong := [count for count in counts if not 2 <= count <= most]:
        raise UserError(f"--devices: found {wrong[0]}, expected numbers from 2 to {most}, of {device}")
    started = datetime.now(UTC)
    say(f"{device}: matrix multiplication")
    machine, first = _device_part(device, seconds)
    parts = [first]
    for ranks in counts:
        say(f"{device}: all-reduce between {ranks}")
        parts.append(_all_reduce_part(device, ranks, seconds))
    return {
        "device": device,
        **{name: machine.get(name) for name in ("host", "hardware", "versions")},
        "variables": settings(),
        "seconds": seconds,
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "parts": parts,
    }


def _device_part(device: str, seconds: float) -> tuple[dict[str, Any], Part]:
    limit_s = LIMIT_S + 400 * seconds
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        cpus, gpus = Path(scratch, CPU_SAMPLES), Path(scratch, GPU_SAMPLES)
        with sample_gpus(gpus) if device == "cuda" else nullcontext(), sample_cpus(cpus):
            job = run_module("multicard.machine.device_job", [device, seconds], limit_s)
        samples, host = GpuSamples.read(gpus), host_record(cpus)
    told = {name: value for fact in job.facts for name, value in fact.items()}
    problems = [fact["problem"] for fact in job.facts if "problem" in fact]
    if not told.get("done"):
        problems.append(f"no end within {limit_s:g} s" if job.timed_out else job.ending)
    conditions = samples.of_rank(told.get("rank", {}))["gpu_conditions"]
    return told.get("machine", {}), {
        "part": "device",
        "rows": [fact["row"] for fact in job.facts if "row" in fact],
        "problem": "; ".join(problems) or None,
        "conditions": [host],
        "ranks": [{"rank": 0, "gpu_conditions": conditions}],
    }


def _all_reduce_part(device: str, ranks: int, seconds: float) -> Part:
    sizes = MESSAGE_BYTES[device]
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        with sample_cpus(Path(scratch, CPU_SAMPLES)):
            # A block takes as long as a single all-reduce did at least, which on a slow link may be much.
            ended = exchange(device, ranks, sizes, LIMIT_S + len(sizes) * seconds, seconds=seconds)
        host = host_record(Path(scratch, CPU_SAMPLES))
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
    return {"part": "all_reduce", "devices": ranks, "rows": rows, "problem": ended.problem, "conditions": [host]}
