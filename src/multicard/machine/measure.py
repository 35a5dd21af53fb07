"""Measure the limits of this machine, one part after another, each in processes of its own under a time limit."""

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
from multicard.machine.facts import Facts
from multicard.machine.processes import run_module
from multicard.trace.collectives import bus_bandwidth

# Time limit of a part beside the time that it measures: it starts, and finds out how fast the machine is.
LIMIT_S = 900.0
# A device job measures at most this many times the seconds that were asked for: 5 precisions, with 2 numbers of
# threads, each for up to four times as long, with a tenfold margin for finding the fastest edge.
DEVICE_JOB_TIMES = 400
MESSAGE_BYTES = {"cpu": [4**power for power in (5, 8, 10, 12, 13)], "cuda": [4**power for power in (5, 8, 10, 12, 14)]}
# On CPUs each device is a process that imports PyTorch.
MOST_PROCESSES = 8

Part = dict[str, Any]


def device_counts(device: str, machine: Machine) -> list[int]:
    """Return the numbers of devices between which all-reduces are measured: powers of two, and all of them.

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
    """Measure a kind of device of this machine, and return the record that docs/choosing.md describes.

    What goes wrong in a part is its `problem`, and the others go on.

    `counts`: numbers of devices for all-reduces, else those of `device_counts`; `seconds`: how long each value is
    measured; `say`: called with a line on what is measured next.

    Raises `UserError` if there are not as many devices.
    """
    here = Machine.here()
    most = here.gpus if device == "cuda" else here.cpus
    if not most:
        raise UserError(f"--device cuda: found no GPU{f': {here.hidden_gpus}' if here.hidden_gpus else ''}")
    if counts is None:
        counts = device_counts(device, here)
    for count in counts:
        if not 2 <= count <= most:
            raise UserError(f"--devices: found {count}, expected numbers from 2 to {most}, of {device}")
    started = datetime.now(UTC)
    say(f"{device}: matrix multiplication")
    machine, device_part = _device_part(device, seconds)
    parts = [device_part]
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
    """Measure a device alone; return what the job reported about the machine, and the part."""
    limit_s = LIMIT_S + DEVICE_JOB_TIMES * seconds
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        cpu_samples = Path(scratch, CPU_SAMPLES)
        gpu_samples = Path(scratch, GPU_SAMPLES)
        with sample_gpus(gpu_samples) if device == "cuda" else nullcontext(), sample_cpus(cpu_samples):
            job = run_module("multicard.machine.device_job", [device, seconds], limit_s)
        samples = GpuSamples.read(gpu_samples)
        host = host_record(cpu_samples)
    # Facts that are reported once; rows and problems are reported many times.
    facts: Facts = {}
    for fact in job.facts:
        facts |= fact
    problems = [fact["problem"] for fact in job.facts if "problem" in fact]
    if not facts.get("done"):
        problems.append(f"no end within {limit_s:g} s" if job.timed_out else job.ending)
    rank = facts.get("rank", {})
    uuids = [gpu["uuid"] for gpu in rank.get("gpus") or []]
    measures = samples.of_rank(uuids, rank.get("windows") or [])
    gpu_conditions = [gpu.conditions and gpu.conditions.model_dump() for gpu in measures]
    part = {
        "part": "device",
        "rows": [fact["row"] for fact in job.facts if "row" in fact],
        "problem": "; ".join(problems) or None,
        "conditions": [host.model_dump(exclude_unset=True)],
        "ranks": [{"rank": 0, "gpu_conditions": gpu_conditions}],
    }
    return facts.get("machine", {}), part


def _all_reduce_part(device: str, ranks: int, seconds: float) -> Part:
    """Measure all-reduces of several sizes between so many devices."""
    sizes = MESSAGE_BYTES[device]
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        cpu_samples = Path(scratch, CPU_SAMPLES)
        with sample_cpus(cpu_samples):
            # A block takes as long as a single all-reduce did at least, which on a slow link may be much.
            result = exchange(device, ranks, sizes, LIMIT_S + len(sizes) * seconds, seconds=seconds)
        host = host_record(cpu_samples)
    rows = [
        {
            "measure": "all_reduce",
            "devices": ranks,
            "message_bytes": size,
            # Bytes of a link for each message, so that bytes over time is the bus bandwidth.
            "bytes": bus_bandwidth("all_reduce", size, ranks, 1.0),
            "times_s": times_s,
        }
        for size, times_s in sorted(result.times_s.items())
    ]
    conditions = [host.model_dump(exclude_unset=True)]
    return {"part": "all_reduce", "devices": ranks, "rows": rows, "problem": result.problem, "conditions": conditions}
