"""Makes job.json for tests of what runs inside a job, without the launcher that writes it."""

from pathlib import Path
from typing import Any

from multicard.core.job_file import JobFile, ObservedJob


def make_job_file(scratch: Path, profiler: str = "none", time_limit_s: float = 3600.0, **observed: Any) -> JobFile:
    """The job of a user's script.py on one CPU, measured for three steps; `observed`: other fields of `ObservedJob`.

    There is a rank for each device, all of them on this node.
    """
    devices = observed.get("devices", 1)
    values = {
        "device": "cpu", "devices": devices, "devices_per_node": devices, "ranks": devices, "ranks_per_node": devices,
        "warmup_steps": 1, "measured_steps": 3, "profiled_steps": 2, "program": ("script.py",),
    }  # fmt: skip
    parameters = {"workload": "script", "command": ["script.py"]}
    observe = ObservedJob(**values | observed)
    return JobFile(scratch.absolute(), profiler, observe, time_limit_s, port=0, parameters=parameters)
