"""CPU time as Linux counts it: of all processes on the CPUs that may be used, and of a process with its descendants."""

import os
import re
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")
TICK_S = 0.01  # of the kernel's clock, by which it samples what a CPU is doing


def busy_and_stolen(proc: Path = PROC) -> tuple[float, float] | None:
    """Seconds of the usable CPUs in processes, and taken by the hypervisor; None where none of them is listed.

    They count from the start of the machine. Interrupts are left out.
    """
    usable = os.sched_getaffinity(0)
    ticks = []
    for line in (proc / "stat").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if (number := re.fullmatch(r"cpu(\d+)", name)) and int(number[1]) in usable:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal, *_ = map(int, values)
            ticks.append((user + nice + system, steal))
    per_second = os.sysconf("SC_CLK_TCK")
    return tuple(sum(column) / per_second for column in zip(*ticks, strict=True)) if ticks else None


def with_descendants(root: int, proc: Path = PROC) -> float | None:
    """Seconds of a process and its descendants so far, those included that they have waited for; None without it.

    A process that ends between two readings stays in the sum of who has waited for it.
    """
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    per_second = os.sysconf("SC_CLK_TCK")
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # After the name of the program, which may hold anything: state, parent, …, and from the twelfth on the
            # ticks in user and kernel mode, of the process and of the children that it has waited for (proc(5)).
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            own, parent = sum(map(int, fields[11:15])) / per_second, int(fields[1])
        except (OSError, ValueError, IndexError):  # it has just ended
            continue
        seconds[int(folder.name)] = own
        children[parent].append(int(folder.name))
    if root not in seconds:
        return None
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += seconds[process]
        waiting += children[process]
    return total
