"""Energy and memory of a GPU, as its driver counts them (NVML)."""

import functools
import time
from typing import Any

import torch

from multicard.record.conditions import GpuConditions
from multicard.record.visible import uuid_of


class EnergyMeter:
    """Energy that a GPU takes between `start` and `stop`, for everything that runs on it.

    NVML counts in millijoules and updates its counter a few times per second or more often, depending on the GPU,
    so an interval should last seconds. Finding the GPU takes NVML some 10 ms, once per process and when the meter
    is made; `start` and `stop` read one counter and do not wait for the GPU, so what is queued then counts for what
    comes after. Several intervals add up.

    >>> meter = EnergyMeter(torch.device("cpu"))
    >>> meter.start(), meter.stop(), meter.energy_j, meter.reason
    (None, None, None, 'no meter for a CPU')

    Attributes
    ----------
    energy_j
        Joules of all intervals so far; None without an interval or where a reading failed.
    duration_s
        Their seconds; None likewise.
    intervals
        Millijoules and seconds of each.
    reason
        Why there are no joules; None where there are.
    conditions
        Clocks and temperature of the GPU when the meter was made and at the end of each interval, and its throttling
        in the intervals.
    """

    def __init__(self, device: torch.device):
        self._nvml, self._handle, self._problem = _find_gpu(device)
        self.conditions = GpuConditions(self._nvml, self._handle)
        self._began: tuple[int, float] | None = None
        self.intervals: list[tuple[int, float]] = []
        if self._problem is None:
            self._read()  # a GPU without a counter is found out at once

    def start(self) -> None:
        """Begin an interval."""
        self.conditions.start()
        self._began = self._read()

    def stop(self) -> None:
        """End the interval."""
        began, now, self._began = self._began, self._read(), None
        if began and now:
            self.intervals.append((now[0] - began[0], now[1] - began[1]))
        self.conditions.stop()

    @property
    def energy_j(self) -> float | None:
        """Joules of all intervals."""
        return None if self.reason else sum(interval[0] for interval in self.intervals) / 1000

    @property
    def duration_s(self) -> float | None:
        """Seconds of all intervals."""
        return None if self.reason else sum(interval[1] for interval in self.intervals)

    @property
    def reason(self) -> str | None:
        """Why there are no joules."""
        return self._problem or (None if self.intervals else "no interval was measured")

    def record(self) -> dict[str, float | str | None]:
        """For run.json."""
        return {"energy_j": self.energy_j, "duration_s": self.duration_s, "reason": self.reason}

    def _read(self) -> tuple[int, float] | None:
        """Millijoules and the time; None once anything went wrong: a sum with a gap is no sum."""
        if self._problem is not None:
            return None
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle), time.perf_counter()
        except Exception as error:  # whatever a driver may raise: a missing meter must not end a job
            self._problem = f"no energy counter: {error}"
            return None


def device_memory_used_bytes(device: torch.device) -> int | None:
    """Memory of the GPU in use by all processes, the CUDA context included, as nvidia-smi shows it.

    None on a CPU and where NVML does not report it. Does not wait for the GPU.
    """
    nvml, handle, problem = _find_gpu(device)
    if problem is not None:
        return None
    try:
        # The second version leaves out what the driver reserves for itself, as nvidia-smi does.
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
    except Exception:  # as above
        return None


@functools.cache
def _find_gpu(device: torch.device) -> tuple[Any, Any, str | None]:
    """NVML and its handle of the GPU, or why there is none.

    By UUID, since the CUDA index follows CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER and NVML's does not. A GPU
    partitioned by MIG has no meter: its counters are those of all its instances together.
    """
    if device.type != "cuda":
        return None, None, f"no meter for a {device.type.upper()}"
    try:
        import pynvml
    except ImportError:
        return None, None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid_of(device))
    except Exception as error:  # as above
        return None, None, f"NVML does not know the GPU: {error}"
    if _is_partitioned(pynvml, handle):
        return None, None, "the GPU is partitioned (MIG)"
    return pynvml, handle, None


def _is_partitioned(nvml: Any, handle: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except Exception:  # a GPU without MIG answers with an error
        return False
