"""Samples of how much CPU time other processes and other virtual machines take on a node while a job runs.

The launcher takes the samples. After the job, the samples at the times of the measured steps are selected. Launcher and
ranks use the same clock, `time.monotonic`, which all processes of a node share. Whether the run counts as disturbed is
decided later, by `multicard.results.conditions`.
"""

import csv
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from multicard.core.system import read_or_none
from multicard.core.values import Row
from multicard.launch.sampler import Samples, Windows, complete_lines, sampling
from multicard.runs.record import CpuUse, NodeConditions

PROC = Path("/proc")
# Seconds between samples, or more if sampling would else take more than this share of one CPU's time: on a node with
# thousands of processes a sample takes long.
PERIOD_S = 0.5
MOST_OF_A_CPU = 0.005
COLUMNS = ("time_s", "others_cpu_s", "stolen_cpu_s", "usable_cpus")
# A row of the samples, by `COLUMNS`.
Sample = Mapping[str, float]


class CpuTimes(NamedTuple):
    """CPU seconds since the machine was started, summed over the CPUs that this process may use."""

    # Seconds in which processes of this machine ran (user, nice and system time), without handling interrupts.
    busy_s: float
    # Seconds in which this machine was ready to run, but the hypervisor ran other virtual machines.
    stolen_s: float


def sample_cpus(file: Path) -> AbstractContextManager[None]:
    """Sample the CPUs while the block runs, and write the samples to a CSV file with `COLUMNS`."""
    return sampling(file, COLUMNS, take_samples())


def take_samples(
    read_cpus: Callable[[], CpuTimes] | None = None, read_job: Callable[[psutil.Process], float] | None = None
) -> Samples:
    """Yield samples without end: each has one row with `COLUMNS`, or no row if the CPU times cannot be read.

    `others_cpu_s` and `stolen_cpu_s` are totals since the machine was started, so only their differences have a
    meaning. `others_cpu_s` is without the CPU time of this process and its descendants.

    `read_cpus` and `read_job` replace `cpu_times` and `cpu_s_of_job`.
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
    """Return how much others used the CPUs of a node, during the whole run and during its measured steps.

    `others_cpu_s` is the CPU time, in seconds, that other processes took on the CPUs that the run may use:

        Δ(user + nice + system) of these CPUs in /proc/stat − Δ(user + system) of the run's processes

    The time of interrupts is left out, because the kernel also handles the run's own network and disks in interrupts.
    `stolen_cpu_s` is Δ steal, the time that the hypervisor gave to other virtual machines. Both are multiples of the
    kernel's clock tick, 10 ms per CPU. `wall_s` is the time from the first sample to the last.

    `measured_steps` has the same values, summed over the intervals between two samples that overlap a window; None if
    no interval does. All other fields are None if the file has fewer than two samples; `usable_cpus` needs one.

    `file`: written by `sample_cpus`. `windows`: start and end of each rank's measured windows, of all ranks of the
    node, by `time.monotonic`.
    """
    rows = csv.DictReader(complete_lines(file).splitlines())
    samples = [{name: float(row[name]) for name in COLUMNS} for row in rows]
    intervals = list(itertools.pairwise(samples))
    measured = [
        (before, after)
        for before, after in intervals
        if any(before["time_s"] < end and after["time_s"] > start for start, end in windows)
    ]
    return NodeConditions(
        **_spent(intervals),
        usable_cpus=int(samples[-1]["usable_cpus"]) if samples else None,
        measured_steps=CpuUse(**_spent(measured)) if measured else None,
    )


def _spent(intervals: Sequence[tuple[Sample, Sample]]) -> dict[str, float | None]:
    """Return the seconds between the two samples of each interval, summed; None for each if there are no intervals."""
    columns = {"others_cpu_s": "others_cpu_s", "stolen_cpu_s": "stolen_cpu_s", "wall_s": "time_s"}
    if not intervals:
        return dict.fromkeys(columns)
    # `others_cpu_s` is a difference of two numbers that are rounded to clock ticks, so it can be just below zero.
    return {
        name: max(0.0, sum(after[column] - before[column] for before, after in intervals))
        for name, column in columns.items()
    }


def cpu_times(proc: Path = PROC) -> CpuTimes:
    """Return the CPU times of the CPUs that this process may use; `proc`: the folder /proc."""
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
    """Return the CPU seconds that a process and its descendants have used so far.

    The kernel adds the time of a process that has ended to its parent's children times, once the parent has waited for
    it. These are summed, too, so that a process that ends between two samples stays in the sum.
    """
    total_s = 0.0
    for process in (launcher, *launcher.children(recursive=True)):
        with suppress(psutil.Error):  # the process has just ended
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
