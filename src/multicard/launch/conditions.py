"""The CPUs of a machine around a run, and who else used them meanwhile.

What cannot be read is None: a missing number must not end a job. Whether a run counts as disturbed is judged later
from these numbers, by `multicard.analysis.runs.conditions`.
"""

import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.core.cpu_time import PROC, busy_and_stolen
from multicard.core.system import read_or_none


@dataclass(frozen=True)
class _CpuTimes:
    """Seconds since the machine started, of the CPUs that this process may use; None where Linux does not tell.

    `own_s`: of this process and of its children that it has waited for.
    """

    wall_s: float
    busy_s: float | None
    stolen_s: float | None
    own_s: float


class HostConditions:
    """CPUs before and after a run, and who else used them meanwhile.

    Make it before the run starts, and call `record` when all its processes have been waited for.

    Parameters
    ----------
    proc
        Where Linux shows its state.
    """

    def __init__(self, proc: Path = PROC):
        self._proc = proc
        self.before, self._times = self._state(), _cpu_times(proc)

    def record(self) -> dict[str, Any]:
        """For run.json.

        `others_cpu_s` is the CPU time that other processes took of the CPUs that the run may use:

            Δ(user + nice + system) of these CPUs in /proc/stat − Δ(user + system) of the run's processes

        Interrupts are left out: the kernel also handles the run's own network and disks there. `stolen_cpu_s` is what
        the hypervisor gave to other virtual machines, Δ steal. Both have the granularity of the kernel's clock tick,
        10 ms per CPU; `wall_s` is the time that they cover. `usable_cpus` counts these CPUs.
        """
        began, now = self._times, _cpu_times(self._proc)
        others = stolen = None
        if began.busy_s is not None and now.busy_s is not None:
            others = max(0.0, now.busy_s - began.busy_s - (now.own_s - began.own_s))
            stolen = max(0.0, now.stolen_s - began.stolen_s)
        return {
            "before": self.before,
            "after": self._state(),
            "others_cpu_s": others,
            "stolen_cpu_s": stolen,
            "usable_cpus": read_or_none(lambda: len(os.sched_getaffinity(0))),
            "wall_s": now.wall_s - began.wall_s,
        }

    def _state(self) -> dict[str, float | None]:
        return {
            "cpu_frequency_mhz": _cpu_frequency(self._proc),
            "load_average": read_or_none(lambda: os.getloadavg()[0]),
        }


def _cpu_times(proc: Path) -> _CpuTimes:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(each.ru_utime + each.ru_stime for each in usage)
    busy, stolen = read_or_none(lambda: busy_and_stolen(proc)) or (None, None)
    return _CpuTimes(time.monotonic(), busy, stolen, own)


def _cpu_frequency(proc: Path) -> float | None:
    """Mean over the CPUs in MHz; None where Linux does not tell, as on Arm."""
    text = read_or_none(lambda: (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")) or ""
    found = [float(value) for value in re.findall(r"^cpu MHz\s*: ([\d.]+)$", text, re.M)]
    return sum(found) / len(found) if found else None
