"""The CPUs of a node while a job runs, and who else used them, which the launcher samples.

Samples are cut to the times of measured steps afterwards (`time.monotonic`, which all processes of a node share).
Whether a run counts as disturbed is judged later, by `multicard.analysis.runs.conditions`.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil

from multicard.core.system import read_or_none
from multicard.launch.sampler import Row, Samples, Windows, read_samples, sampling
from multicard.runs.record import CpuUse, NodeConditions

PROC = Path("/proc")
PERIOD_S = 0.5
# Sampling may take this share of a CPU: where a node has thousands of processes, a sample takes long.
MOST_OF_A_CPU = 0.005
SECONDS = ["others_cpu_s", "stolen_cpu_s"]
COLUMNS = ("time_s", *SECONDS, "usable_cpus")


class CpuTimes(NamedTuple):
    """Seconds that the usable CPUs have spent since the machine was started."""

    # Seconds in processes of this machine, without interrupts.
    busy_s: float
    # Seconds that the hypervisor gave to other virtual machines.
    stolen_s: float


def sample_cpus(file: Path) -> AbstractContextManager[None]:
    """Sample the CPUs while the block runs, to a CSV file with `COLUMNS`."""
    return sampling(file, COLUMNS, take_samples())


def take_samples(
    read_cpus: Callable[[], CpuTimes] | None = None, read_job: Callable[[psutil.Process], float] | None = None
) -> Samples:
    """Yield the CPU time that other processes than this one and its descendants have taken so far.

    A sample has one row, or none where the CPU times cannot be read. `read_cpus`, `read_job`: in place of `cpu_times`
    and `cpu_s_of_job`.
    """
    read_cpus = read_cpus or cpu_times
    read_job = read_job or cpu_s_of_job
    while True:
        start_s = time.thread_time()
        rows: list[Row] = []
        times = read_or_none(read_cpus)
        if times is not None:
            rows.append(
                {
                    "time_s": time.monotonic(),
                    "others_cpu_s": times.busy_s - read_job(psutil.Process()),
                    "stolen_cpu_s": times.stolen_s,
                    "usable_cpus": len(os.sched_getaffinity(0)),
                }
            )
        cost_s = time.thread_time() - start_s
        yield rows, max(PERIOD_S, cost_s / MOST_OF_A_CPU)


def host_record(file: Path, windows: Windows = ()) -> NodeConditions:
    """Return who else used the CPUs of a node during a run, and during its measured steps.

    `others_cpu_s` is the CPU time that other processes took of the CPUs that the run may use:

        Δ(user + nice + system) of these CPUs in /proc/stat − Δ(user + system) of the run's processes

    Interrupts are left out: the kernel also handles the run's own network and disks there. `stolen_cpu_s` is the time
    that the hypervisor gave to other virtual machines, Δ steal. Both have the granularity of the kernel's clock tick,
    10 ms per CPU. `measured_steps` is by the samples around the measured steps, from the last before to the first after
    them; None without such samples.

    `file`: written by `sample_cpus`; what it does not hold is None. `windows`: start and end of the measured steps of
    each rank of the node.
    """
    samples = read_samples(file, COLUMNS)
    # Each row covers the time from the sample before to its own.
    spent = samples[["time_s", *SECONDS]].diff().rename(columns={"time_s": "wall_s"}).iloc[1:]
    starts = samples["time_s"].iloc[:-1].to_numpy()
    ends = samples["time_s"].iloc[1:].to_numpy()
    is_measured = np.zeros(len(spent), dtype=bool)
    for start, end in windows:
        is_measured |= (starts < end) & (ends > start)
    measured = spent[is_measured]
    return NodeConditions(
        **_sums(spent),
        usable_cpus=None if samples.empty else int(samples["usable_cpus"].iloc[-1]),
        measured_steps=None if measured.empty else CpuUse(**_sums(measured)),
    )


def _sums(spent: pd.DataFrame) -> dict[str, float | None]:
    """Return the sum of each column of seconds; None for each where there are no rows."""
    names = (*SECONDS, "wall_s")
    if spent.empty:
        return dict.fromkeys(names)
    # Rounding to clock ticks can make the others' time negative.
    return {name: max(0.0, float(spent[name].sum())) for name in names}


def cpu_times(proc: Path = PROC) -> CpuTimes:
    """Return how the CPUs that this process may use have spent their time; `proc`: the folder /proc."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy_ticks = 0
    stolen_ticks = 0
    for line in (proc / "stat").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if name in usable:
            # The columns of proc_stat(5).
            user, nice, system, _idle, _iowait, _irq, _softirq, steal, *_ = map(int, values)
            busy_ticks += user + nice + system
            stolen_ticks += steal
    return CpuTimes(busy_ticks / ticks_per_s, stolen_ticks / ticks_per_s)


def cpu_s_of_job(launcher: psutil.Process) -> float:
    """Return the CPU seconds of a process and its descendants so far, with those of children that they waited for.

    So a process that ends between two samples stays in the sum.
    """
    total_s = 0.0
    for process in (launcher, *launcher.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
