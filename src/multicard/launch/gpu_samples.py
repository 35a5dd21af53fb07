"""The GPUs of a node while a job runs: energy, power, clocks, heat, throttling and memory, which the launcher samples.

Ranks call nothing of NVML's: they leave the times of their measured steps, by the clock that all processes of a node
share (`time.monotonic`), and samples are cut to these afterwards. What cannot be read is None: a missing number must
not end a job. Whether a run counts as disturbed is judged later, by `multicard.analysis.runs.conditions`.
"""

import itertools
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from multicard.core.system import read_or_none
from multicard.launch.sampler import Samples, Windows, read_samples, sampling

PERIOD_S = 0.1  # drivers renew power and energy every 20 to 100 ms
SLOW_EVERY = 10  # samples: limits of power, which take longer to read

# Bits of NVML's clocks event reasons (nvml.h).
CLOCK_REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
IDLE = 0x1

STATE = (
    "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "power_limit_w", "default_power_limit_w",
    "clock_reasons",
)  # fmt: skip
COLUMNS = ("time_s", "gpu", *STATE, "energy_j", "memory_used_bytes", "problem")


class Gpu:
    """A GPU, as NVML (the module pynvml) tells of it by a handle."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml, self._handle = nvml, handle

    def fast(self) -> dict[str, Any]:
        """What is read in every sample."""
        # Drivers before 535 know the reasons by their former name only.
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return {
            "energy_j": self._thousandth("nvmlDeviceGetTotalEnergyConsumption"),
            "time_s": time.monotonic(),  # of the energy: to read the rest may take milliseconds
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", 2),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", 0),
            "power_w": self._thousandth("nvmlDeviceGetPowerUsage"),
            "clock_reasons": self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits,
            # The second version leaves out what the driver reserves for itself, as nvidia-smi does.
            "memory_used_bytes": read_or_none(
                lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2).used
            ),
        }

    def limits(self) -> dict[str, float | None]:
        """Power limits, in watts."""
        return {
            "power_limit_w": self._thousandth("nvmlDeviceGetEnforcedPowerLimit"),
            "default_power_limit_w": self._thousandth("nvmlDeviceGetPowerManagementDefaultLimit"),
        }

    def is_partitioned(self) -> bool:
        """Whether it is partitioned (MIG), so that its counters are those of all its instances together."""
        return (self._ask("nvmlDeviceGetMigMode") or [0])[0] == 1

    def _ask(self, function: str, *arguments: Any) -> Any:
        return read_or_none(lambda: getattr(self._nvml, function)(self._handle, *arguments))

    def _thousandth(self, function: str) -> float | None:
        found = self._ask(function)
        return None if found is None else found / 1000


def reason_names(bits: int | None) -> list[str] | None:
    """Names of NVML's clocks event reasons; a bit that is not known is named by its value.

    >>> reason_names(0x44), reason_names(0), reason_names(0x10000)
    (['sw_power_cap', 'hw_thermal_slowdown'], [], ['0x10000'])
    """
    if bits is None:
        return None
    set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return [CLOCK_REASONS.get(bit, hex(bit)) for bit in set_bits]


def sample_gpus(file: Path, nvml: Any = None) -> AbstractContextManager[None]:
    """Sample the GPUs while the block runs; `nvml`: the module pynvml, if not the one that is installed."""
    return sampling(file, COLUMNS, _take_samples(nvml))


def _take_samples(nvml: Any) -> Samples:
    """The state of all GPUs that NVML shows, a row for each; first why there is none of a GPU, or of any ("")."""
    gpus: dict[str, Gpu] = {}
    rows: list[dict[str, Any]] = []
    try:
        if nvml is None:
            import pynvml as nvml
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:  # whatever a driver may raise
        yield [{"gpu": "", "problem": f"NVML cannot be used: {error}"}], PERIOD_S
        return
    for index in range(count):
        # It counts GPUs that a cgroup hides, as Slurm does those of other jobs, but opens none of them.
        handle = read_or_none(lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index))
        uuid = handle is not None and read_or_none(lambda handle=handle: nvml.nvmlDeviceGetUUID(handle))
        if uuid and (gpu := Gpu(nvml, handle)).is_partitioned():
            rows.append({"gpu": uuid, "problem": "the GPU is partitioned (MIG)"})
        elif uuid:
            gpus[uuid] = gpu
    for number in itertools.count():
        for uuid, gpu in gpus.items():
            limits = gpu.limits() if number % SLOW_EVERY == 0 else {}
            rows.append({"gpu": uuid, **gpu.fast(), **limits})
        yield rows, PERIOD_S
        rows = []


@dataclass
class GpuSamples:
    """Samples of the GPUs of a node, by UUID, with NaN where nothing was read; and problems."""

    gpus: dict[str, pd.DataFrame] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "GpuSamples":
        """Read what `sample_gpus` wrote; nothing where there is no such file."""
        rows = read_samples(file, COLUMNS).fillna({"gpu": ""})
        problems = rows.dropna(subset="problem").set_index("gpu")["problem"]
        return cls(dict(iter(rows[rows["problem"].isna()].groupby("gpu"))), dict(problems))

    def of_rank(self, rank: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Energy, conditions and memory of each GPU of a rank in its measured steps, for run.json; see `of_gpu`."""
        windows = [(start, end) for start, end in rank.get("windows") or []]
        uuids = [gpu["uuid"] for gpu in rank.get("gpus") or []]
        if not uuids:
            none = {"energy_j": None, "duration_s": None, "reason": "no meter for a CPU"}
            return {"energy": [none], "gpu_conditions": [None], "device_memory_used_bytes": [None]}
        found = [self.of_gpu(uuid, windows) for uuid in uuids]
        return {name: [each[name] for each in found] for name in found[0]}

    def of_gpu(self, uuid: str, windows: Windows) -> dict[str, Any]:
        """What a GPU took in some windows of time.

        `energy`: joules for everything that ran on it, by its counter; the seconds of the windows; and the reason where
        there are no joules. `gpu_conditions`: the state at the first sample and at the last one
        in the windows, and all `clock_reasons` that a sample in them found on a GPU that was not idle.
        `device_memory_used_bytes`: the most that all processes together used in the first window, with CUDA contexts.
        """
        samples = self.gpus.get(uuid)
        if samples is None:
            why = self.problems.get(uuid) or next(iter(self.problems.values()), "NVML does not know the GPU")
            energy = {"energy_j": None, "duration_s": None, "reason": why}
            return {"energy": energy, "gpu_conditions": None, "device_memory_used_bytes": None}
        inside = _inside(samples, windows)
        reasons = inside["clock_reasons"].dropna().astype(int)
        names = sorted({name for bits in reasons if not bits & IDLE for name in reason_names(bits)})
        # Of the first window, since PyTorch keeps what a test after it takes; a short one may lie between two samples.
        first = _inside(samples, [(start - 2 * PERIOD_S, end) for start, end in windows[:1]])
        memory = first["memory_used_bytes"].max()
        return {
            "energy": _energy(samples, windows),
            "gpu_conditions": {
                "before": _state(samples.iloc[:1]),
                "after": None if inside.empty else _state(samples.loc[: inside.index[-1]]),
                "clock_reasons": None if reasons.empty else names,
            },
            "device_memory_used_bytes": None if pd.isna(memory) else int(memory),
        }


def _energy(samples: pd.DataFrame, windows: Windows) -> dict[str, float | str | None]:
    """Increase of the counter in some windows, between samples by a straight line."""
    times, known = samples["time_s"], samples.dropna(subset="energy_j")
    if not windows:
        why = "no step was measured"
    elif windows[0][0] < times.iloc[0] - PERIOD_S or windows[-1][1] > times.iloc[-1] + PERIOD_S:
        why = "the GPU was not sampled throughout"
    elif known.empty:
        why = "the driver does not tell the energy"
    else:
        starts, ends = np.transpose(windows)
        at = (np.interp(moments, known["time_s"], known["energy_j"]) for moments in (ends, starts))
        joules = float(np.subtract(*at).sum())
        return {"energy_j": joules, "duration_s": float((ends - starts).sum()), "reason": None}
    return {"energy_j": None, "duration_s": None, "reason": why}


def _inside(samples: pd.DataFrame, windows: Windows) -> pd.DataFrame:
    """Samples in one of some windows."""
    found = [samples["time_s"].between(start, end) for start, end in windows]
    return samples[np.any(found, axis=0)] if found else samples.iloc[:0]


def _state(samples: pd.DataFrame) -> dict[str, Any]:
    """The state at the last of some samples; limits are those of the last sample that has them."""
    last = samples[list(STATE)].iloc[-1]
    last = last.fillna(samples[["power_limit_w", "default_power_limit_w"]].ffill().iloc[-1])
    state = {name: None if pd.isna(value) else float(value) for name, value in last.items()}
    bits = state["clock_reasons"]
    return state | {"clock_reasons": reason_names(None if bits is None else int(bits))}
