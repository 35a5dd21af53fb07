"""The CPUs of a node while a job runs, and who else used them, which the launcher samples.

Samples are cut to the times of measured steps afterwards (`time.monotonic`, which all processes of a node share).
Whether a run counts as disturbed is judged later, by `multicard.analysis.runs.conditions`.
"""

import os
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from multicard.core.system import read_or_none
from multicard.launch.sampler import Samples, Windows, read_samples, sampling

PROC = Path("/proc")
PERIOD_S = 0.5
MOST_OF_A_CPU = 0.005  # for sampling: where a node has thousands of processes, a sample takes long
COLUMNS = ("time_s", "others_cpu_s", "stolen_cpu_s", "usable_cpus")
SECONDS = ["others_cpu_s", "stolen_cpu_s"]


def sample_cpus(file: Path) -> AbstractContextManager[None]:
    """Sample the CPUs while the block runs."""
    return sampling(file, COLUMNS, take_samples())


def take_samples() -> Samples:
    """What processes that are neither this one nor its descendants have taken of the usable CPUs so far."""
    while True:
        began, rows = time.thread_time(), []
        if counted := read_or_none(busy_and_stolen):
            busy, stolen = counted
            others = busy - cpu_s_of_job(psutil.Process())
            rows.append(
                dict(zip(COLUMNS, (time.monotonic(), others, stolen, len(os.sched_getaffinity(0))), strict=True))
            )
        yield rows, max(PERIOD_S, (time.thread_time() - began) / MOST_OF_A_CPU)


def host_record(file: Path, windows: Windows = ()) -> dict[str, Any]:
    """For run.json: who else used the CPUs of a node during a run, and during its measured steps.

    `others_cpu_s` is the CPU time that other processes took of the CPUs that the run may use:

        Δ(user + nice + system) of these CPUs in /proc/stat − Δ(user + system) of the run's processes

    Interrupts are left out: the kernel also handles the run's own network and disks there. `stolen_cpu_s` is what the
    hypervisor gave to other virtual machines, Δ steal. Both have the granularity of the kernel's clock tick, 10 ms per
    CPU; `wall_s` is the time that they cover. `usable_cpus` counts these CPUs. `measured_steps` holds the three of the
    samples around the measured steps, from the last before to the first after them; None where there are none.

    `file` is of `sample_cpus`; what it could not read is None. `windows` are those of all ranks of the node.
    """
    samples = read_samples(file, COLUMNS)
    spent = samples[["time_s", *SECONDS]].diff().rename(columns={"time_s": "wall_s"}).iloc[1:]
    begins, ends = samples["time_s"].iloc[:-1].to_numpy(), samples["time_s"].iloc[1:].to_numpy()
    measured = spent[[any(b < end and e > start for start, end in windows) for b, e in zip(begins, ends, strict=True)]]
    cpus = None if samples.empty else int(samples["usable_cpus"].iloc[-1])
    return {**_sums(spent), "usable_cpus": cpus, "measured_steps": None if measured.empty else _sums(measured)}


def _sums(spent: pd.DataFrame) -> dict[str, float | None]:
    if spent.empty:
        return dict.fromkeys((*SECONDS, "wall_s"))
    return {name: max(0.0, float(spent[name].sum())) for name in (*SECONDS, "wall_s")}


def busy_and_stolen(proc: Path = PROC) -> tuple[float, float]:
    """Seconds of the usable CPUs in processes, and taken by the hypervisor, from the start of the machine.

    Interrupts are left out.
    """
    usable, per_second = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    lines = [line.split() for line in (proc / "stat").read_text(encoding="ascii").splitlines()]
    ticks = [[int(each) for each in values] for name, *values in lines if name in {f"cpu{number}" for number in usable}]
    # user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5))
    return sum(sum(cpu[:3]) for cpu in ticks) / per_second, sum(cpu[7] for cpu in ticks) / per_second


def cpu_s_of_job(launcher: psutil.Process) -> float:
    """Seconds of a process and its descendants so far, those included that they have waited for.

    A process that ends between two samples stays in the sum of who has waited for it.
    """
    total = 0.0
    for process in (launcher, *launcher.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
