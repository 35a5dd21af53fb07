"""Measure the limits of this machine in parts, one after another. Each part has its own processes and time limit."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from multicard.core.errors import UserError
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES
from multicard.core.values import JsonObject
from multicard.launch.cpu_samples import host_record, sample_cpus
from multicard.launch.gpu_samples import GpuSamples, sample_gpus
from multicard.launch.sampler import Windows
from multicard.launch.variables import settings
from multicard.machine.all_reduce import exchange
from multicard.machine.facts import Facts
from multicard.machine.processes import run_module
from multicard.programs.machine import Machine
from multicard.trace.collectives import bus_bandwidth

# Seconds that a part may take in addition to the time that it measures. In this time it starts, and finds out how fast
# the machine is.
LIMIT_S = 900.0
# A device job may take this many times the seconds that were asked for. It measures 5 precisions with up to 2 numbers
# of threads, each for up to 4 times as long. The factor of 10 is a margin for finding the fastest edge.
DEVICE_JOB_TIMES = 400
MESSAGE_BYTES = {"cpu": [4**power for power in (5, 8, 10, 12, 13)], "cuda": [4**power for power in (5, 8, 10, 12, 14)]}
# The most devices for all-reduces on CPUs by default: each of them is a process that imports PyTorch.
MOST_PROCESSES = 8


@dataclass(frozen=True)
class DeviceReport:
    """What `multicard.machine.device_job` has reported."""

    machine: JsonObject  # `host`, `hardware` and `versions` of the record
    rows: Sequence[JsonObject]  # of the record's part
    problems: Sequence[str]
    gpus: Sequence[str]  # UUIDs; empty on a CPU
    windows: Windows
    is_done: bool  # True if the job got to its end

    @classmethod
    def read(cls, facts: Sequence[Facts]) -> "DeviceReport":
        """Collect what was reported. Of facts other than rows and problems, the last of each name counts."""
        latest: Facts = {}
        for fact in facts:
            latest |= fact
        rank = latest.get("rank", {})
        return cls(
            machine=latest.get("machine", {}),
            rows=[fact["row"] for fact in facts if "row" in fact],
            problems=[fact["problem"] for fact in facts if "problem" in fact],
            gpus=[gpu["uuid"] for gpu in rank.get("gpus") or []],
            windows=rank.get("windows") or [],
            is_done=bool(latest.get("done")),
        )


class DevicePart(NamedTuple):
    """A measured device: the machine that it is in, and its part of the record."""

    machine: JsonObject
    part: JsonObject


def device_counts(device: str, machine: Machine) -> list[int]:
    """Return the numbers of devices between which all-reduces are measured: powers of two, and all devices.

    With "cpu" a device is a process. There are as many as usable CPUs, but at most `MOST_PROCESSES`.

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
) -> JsonObject:
    """Measure this machine's devices of one kind ("cpu", "cuda"); return the record that docs/choosing.md describes.

    If something goes wrong in a part, the part has a `problem`, and the next part is measured.

    `counts`: numbers of devices for all-reduces; None for those of `device_counts`. `seconds`: time for which each
    value is measured. `say`: called with a line that names what is measured next.

    Raises `UserError` if there is no GPU for "cuda", or if one of `counts` is below 2 or above the number of devices.
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


def _device_part(device: str, seconds: float) -> DevicePart:
    """Measure one device alone."""
    limit_s = LIMIT_S + DEVICE_JOB_TIMES * seconds
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        cpu_samples = Path(scratch, CPU_SAMPLES)
        gpu_samples = Path(scratch, GPU_SAMPLES)
        with sample_gpus(gpu_samples) if device == "cuda" else nullcontext(), sample_cpus(cpu_samples):
            job = run_module("multicard.machine.device_job", [device, seconds], limit_s)
        samples = GpuSamples.read(gpu_samples)
        host = host_record(cpu_samples)
    report = DeviceReport.read(job.facts)
    problems = list(report.problems)
    if not report.is_done:
        problems.append(f"no end within {limit_s:g} s" if job.timed_out else job.ending)
    measures = samples.of_rank(report.gpus, report.windows)
    gpu_conditions = [None if gpu.conditions is None else gpu.conditions.model_dump() for gpu in measures]
    part: JsonObject = {
        "part": "device",
        "rows": report.rows,
        "problem": "; ".join(problems) or None,
        "conditions": [host.model_dump(exclude_unset=True)],
        "ranks": [{"rank": 0, "gpu_conditions": gpu_conditions}],
    }
    return DevicePart(report.machine, part)


def _all_reduce_part(device: str, ranks: int, seconds: float) -> JsonObject:
    """Measure all-reduces of several sizes between `ranks` devices; return the part of the record."""
    sizes = MESSAGE_BYTES[device]
    with tempfile.TemporaryDirectory(prefix="multicard-machine-") as scratch:
        cpu_samples = Path(scratch, CPU_SAMPLES)
        with sample_cpus(cpu_samples):
            # `seconds` per size may not be enough on a slow link, where one all-reduce takes longer than its share. The
            # rest is left to `LIMIT_S`.
            result = exchange(device, ranks, sizes, LIMIT_S + len(sizes) * seconds, seconds=seconds)
        host = host_record(cpu_samples)
    rows = [
        {
            "measure": "all_reduce",
            "devices": ranks,
            "message_bytes": size,
            # Bytes that each rank's link carries for one message: divided by the time, they are the bus bandwidth.
            "bytes": bus_bandwidth("all_reduce", size, ranks, 1.0),
            "times_s": times_s,
        }
        for size, times_s in sorted(result.times_s.items())
    ]
    conditions = [host.model_dump(exclude_unset=True)]
    return {"part": "all_reduce", "devices": ranks, "rows": rows, "problem": result.problem, "conditions": conditions}
