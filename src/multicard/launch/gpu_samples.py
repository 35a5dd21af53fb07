"""Samples of a node's GPUs while a job runs: energy, power, clocks, temperature, throttling and memory.

The launcher takes the samples through NVML; ranks do not call NVML. A rank reports the times of its measured windows,
and after the job the samples at these times are selected. Launcher and ranks use the same clock, `time.monotonic`,
which all processes of a node share. A value that cannot be read is None, because a missing number must not end a job.
Whether the run counts as disturbed is decided later, by `multicard.results.conditions`.
"""

import io
import itertools
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.core.system import read_or_none
from multicard.core.values import Row
from multicard.launch.sampler import Samples, Windows, complete_lines, sampling
from multicard.runs.record import CLOCK_REASONS, Energy, GpuConditions, GpuState

# NumPy and pandas are imported where samples of GPUs are read: a launcher starts half a second sooner without them.
if TYPE_CHECKING:
    import pandas as pd

PERIOD_S = 0.1  # seconds between samples; drivers update power and energy every 20 to 100 ms
SLOW_EVERY = 10  # every tenth sample has the power limits, because reading them takes longer

# The bit of NVML's clocks event reasons that says that the GPU is idle.
IDLE = 0x1
# Arguments and a result of NVML's functions (nvml.h).
SM_CLOCK = 1
MEMORY_CLOCK = 2
GPU_SENSOR = 0
MIG_ENABLED = 1

LIMITS = ["power_limit_w", "default_power_limit_w"]
STATE = ["sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", *LIMITS, "clock_reasons"]
COLUMNS = ("time_s", "gpu", *STATE, "energy_j", "memory_used_bytes", "problem")


class Gpu:
    """A GPU, read by NVML (the module pynvml) through its handle. A value that the driver cannot read is None."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml = nvml
        self._handle = handle

    def fast(self) -> Row:
        """Return the columns that are read in every sample."""
        reasons = self._read("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # drivers before 535 have the function under its former name only
            reasons = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {
            "energy_j": self._read_thousandths("nvmlDeviceGetTotalEnergyConsumption"),
            # The time is taken right after the energy is read, because reading the rest may take milliseconds.
            "time_s": time.monotonic(),
            "sm_clock_mhz": self._read("nvmlDeviceGetClockInfo", SM_CLOCK),
            "memory_clock_mhz": self._read("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            "temperature_c": self._read("nvmlDeviceGetTemperature", GPU_SENSOR),
            "power_w": self._read_thousandths("nvmlDeviceGetPowerUsage"),
            "clock_reasons": reasons,
            "memory_used_bytes": read_or_none(self._memory_used_bytes),
        }

    def limits(self) -> Row:
        """Return the columns that only every tenth sample has: power limits, in watts."""
        return {
            "power_limit_w": self._read_thousandths("nvmlDeviceGetEnforcedPowerLimit"),
            "default_power_limit_w": self._read_thousandths("nvmlDeviceGetPowerManagementDefaultLimit"),
        }

    def is_partitioned(self) -> bool:
        """True if the GPU is partitioned (MIG). Then its counters are sums over all of its instances."""
        modes = self._read("nvmlDeviceGetMigMode")  # the current and the pending mode; None on a GPU without MIG
        return bool(modes) and modes[0] == MIG_ENABLED

    def _memory_used_bytes(self) -> int:
        # Version 2 does not count the memory that the driver reserves for itself. nvidia-smi shows the same number.
        return self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2).used

    def _read(self, function: str, *arguments: Any) -> Any:
        return read_or_none(lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def _read_thousandths(self, function: str) -> float | None:
        """Return a value in watts or joules that NVML returns in milliwatts or millijoules."""
        value = self._read(function)
        return None if value is None else value / 1000


def reason_names(bits: int) -> list[str]:
    """Return the name of each of NVML's clocks event reasons that is set in `bits`; an unknown bit in hexadecimal.

    >>> reason_names(0x44), reason_names(0), reason_names(0x10000)
    (['sw_power_cap', 'hw_thermal_slowdown'], [], ['0x10000'])
    """
    set_bits = [1 << position for position in range(bits.bit_length()) if bits >> position & 1]
    return [CLOCK_REASONS.get(bit, hex(bit)) for bit in set_bits]


def sample_gpus(file: Path, nvml: Any = None) -> AbstractContextManager[None]:
    """Sample the GPUs while the block runs, and write the samples to a CSV file with `COLUMNS`.

    `nvml`: replaces the installed module pynvml.
    """
    return sampling(file, COLUMNS, _take_samples(nvml))


def _take_samples(nvml: Any) -> Samples:
    """Yield samples of all GPUs that NVML opens; a sample has one row per GPU.

    The first sample also has a row for each partitioned GPU, which is not sampled: only `gpu` and `problem` are set. If
    NVML itself cannot be used, the only sample is one such row, whose `gpu` is "".
    """
    gpus: dict[str, Gpu] = {}
    problems: list[Row] = []
    try:
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:  # whatever a driver may raise
        yield [{"gpu": "", "problem": f"NVML cannot be used: {error}"}], PERIOD_S
        return
    for index in range(count):
        # NVML also counts GPUs that a cgroup hides, such as those of other Slurm jobs, but it cannot open them.
        handle = read_or_none(partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = None if handle is None else read_or_none(partial(nvml.nvmlDeviceGetUUID, handle))
        if not uuid:
            continue
        gpu = Gpu(nvml, handle)
        if gpu.is_partitioned():
            problems.append({"gpu": uuid, "problem": "the GPU is partitioned (MIG)"})
        else:
            gpus[uuid] = gpu
    for number in itertools.count():
        has_limits = number % SLOW_EVERY == 0
        rows = []
        for uuid, gpu in gpus.items():
            limits = gpu.limits() if has_limits else {}
            rows.append({"gpu": uuid, **gpu.fast(), **limits})
        yield problems + rows, PERIOD_S
        problems = []


@dataclass
class GpuSamples:
    """Samples of the GPUs of a node, and the problems of GPUs that were not sampled; both by UUID.

    A value that was not read is NaN. A problem of NVML itself, which concerns all GPUs, has the UUID "".
    """

    gpus: "dict[str, pd.DataFrame]" = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "GpuSamples":
        """Read the file that `sample_gpus` wrote. Without the file there are neither samples nor problems."""
        lines = complete_lines(file)
        if not lines:
            return cls()
        from multicard.core.tables import parse_csv

        rows = parse_csv(io.StringIO(lines), dtype={"gpu": str, "problem": str}).fillna({"gpu": ""})
        problems = rows.dropna(subset="problem").set_index("gpu")["problem"]
        samples = rows[rows["problem"].isna()]
        return cls(dict(iter(samples.groupby("gpu"))), dict(problems))

    def of_rank(self, gpus: Sequence[str], windows: Windows) -> "list[GpuMeasures]":
        """Return the measures of each GPU of a rank in the rank's measured windows, in the order of `gpus`.

        `gpus`: UUIDs; empty for a rank on a CPU, which gets one entry that holds only the reason why it has no energy.
        """
        if not gpus:
            return [GpuMeasures(Energy(reason="no meter for a CPU"), None, None)]
        return [self.of_gpu(uuid, windows) for uuid in gpus]

    def of_gpu(self, uuid: str, windows: Windows) -> "GpuMeasures":
        """Return the measures of a GPU in windows of time, which are in rising order.

        For a GPU without samples, the energy holds the reason why, and the rest is None.
        """
        samples = self.gpus.get(uuid)
        if samples is None:
            any_problem = next(iter(self.problems.values()), "NVML does not know the GPU")
            return GpuMeasures(Energy(reason=self.problems.get(uuid) or any_problem), None, None)
        memory = _most_memory(samples, windows[:1])
        return GpuMeasures(_energy(samples, windows), _conditions(samples, windows), memory)


@dataclass(frozen=True)
class GpuMeasures:
    """Measures of a GPU in some windows of time, from its samples."""

    energy: Energy
    conditions: GpuConditions | None  # None if the GPU was not sampled
    # The most that all processes together used in the first window; None if that was not sampled.
    memory_used_bytes: int | None


def _energy(samples: "pd.DataFrame", windows: Windows) -> Energy:
    """Return the energy in some windows: the increase of the energy counter from start to end of each, summed.

    The counter at a start or end is interpolated linearly between the samples before and after it. If the energy is not
    known, the result has the reason instead.
    """
    if not windows:
        return Energy(reason="no step was measured")
    if not _cover(samples, windows):
        return Energy(reason="the GPU was not sampled throughout")
    readings = samples.dropna(subset="energy_j")
    if readings.empty:
        return Energy(reason="the driver does not tell the energy")
    # Beyond the readings `np.interp` would take the counter to stand still.
    if not _cover(readings, windows):
        return Energy(reason="the driver does not tell the energy throughout")
    import numpy as np

    starts, ends = np.transpose(windows)
    joules_at_starts = np.interp(starts, readings["time_s"], readings["energy_j"])
    joules_at_ends = np.interp(ends, readings["time_s"], readings["energy_j"])
    joules = float((joules_at_ends - joules_at_starts).sum())
    return Energy(energy_j=joules, duration_s=float((ends - starts).sum()), reason=None)


def _cover(samples: "pd.DataFrame", windows: Windows) -> bool:
    """Return True if the samples begin before the first window, and end after the last, or a period short of that."""
    times = samples["time_s"]
    (first_start, _), (_, last_end) = windows[0], windows[-1]
    return first_start >= times.iloc[0] - PERIOD_S and last_end <= times.iloc[-1] + PERIOD_S


def _conditions(samples: "pd.DataFrame", windows: Windows) -> GpuConditions:
    """Return the state of a GPU before and after its measured windows, and why its clocks were low in them.

    `after` is None if no sample lies in a window. `clock_reasons` is None if no sample in a window has reasons, and
    empty if they were read and none was set.
    """
    inside = _inside(samples, windows)
    reasons = inside["clock_reasons"].dropna().astype(int)
    # Samples of an idle GPU are left out: an idle GPU lowers its clocks, but that slows no step down.
    names = {name for bits in reasons if not bits & IDLE for name in reason_names(bits)}
    return GpuConditions(
        before=_last_state(samples.iloc[:1]),
        after=None if inside.empty else _last_state(samples.loc[: inside.index[-1]]),
        clock_reasons=None if reasons.empty else tuple(sorted(names)),
    )


def _most_memory(samples: "pd.DataFrame", windows: Windows) -> int | None:
    """Return the most memory in use in some windows, in bytes; None if it was not sampled.

    Callers pass the first window only. The evaluation after it takes memory, too, and PyTorch keeps that memory, so
    that it would count as used in all later windows.
    """
    # A short window may lie between two samples, so each window is extended to two periods before its start.
    extended = [(start - 2 * PERIOD_S, end) for start, end in windows]
    most = _inside(samples, extended)["memory_used_bytes"].max()
    return None if math.isnan(most) else int(most)


def _inside(samples: "pd.DataFrame", windows: Windows) -> "pd.DataFrame":
    """Return the samples whose times are in any of the windows."""
    import numpy as np

    is_inside = np.zeros(len(samples), dtype=bool)
    for start, end in windows:
        is_inside |= samples["time_s"].between(start, end).to_numpy()
    return samples[is_inside]


def _last_state(samples: "pd.DataFrame") -> GpuState:
    """Return the state at the last of some samples, with the power limits of the last of them that has limits."""
    last = samples[STATE].iloc[-1]
    last = last.fillna(samples[LIMITS].ffill().iloc[-1])
    readings = {name: None if math.isnan(value) else float(value) for name, value in last.items()}
    bits = readings.pop("clock_reasons")
    return GpuState(**readings, clock_reasons=None if bits is None else tuple(reason_names(int(bits))))
