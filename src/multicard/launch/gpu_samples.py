"""The GPUs of a node while a job runs: energy, power, clocks, heat, throttling and memory, which the launcher samples.

Ranks call nothing of NVML's: they leave the times of their measured steps, by the clock that all processes of a node
share (`time.monotonic`), and samples are cut to these afterwards. What cannot be read is None: a missing number must
not end a job. Whether a run counts as disturbed is judged later, by `multicard.analysis.runs.conditions`.
"""

import csv
import math
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.layout import GPU_SAMPLES, node_file
from multicard.core.system import read_or_none

PERIOD_S = 0.1  # drivers renew power and energy every 20 to 100 ms
SLOW_EVERY = 10  # samples: limits and counters of throttling, which take longer to read
LAST_S = 5.0  # that the last sample may take

# Bits of NVML's clocks event reasons (nvml.h), and policies whose violations it counts (nvmlPerfPolicyType_t).
CLOCK_REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
POLICIES = {0: "power", 1: "thermal", 2: "sync_boost", 3: "board_limit", 4: "low_utilization", 5: "reliability"}
IDLE = 0x1

STATE = (
    "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "power_limit_w", "default_power_limit_w",
    "clock_reasons",
)  # fmt: skip
HELD = {name: f"held_back_{name}_s" for name in POLICIES.values()}
COLUMNS = ("time_s", "gpu", *STATE, "energy_j", "memory_used_bytes", *HELD.values(), "problem")

Windows = Sequence[tuple[float, float]]


class Gpu:
    """A GPU, as NVML (the module pynvml) tells of it by a handle."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml, self._handle = nvml, handle

    def state(self) -> dict[str, Any]:
        """What changes from moment to moment; `clock_reasons` as names."""
        found = self.fast() | self.limits()
        return {name: found[name] for name in STATE} | {"clock_reasons": reason_names(found["clock_reasons"])}

    def fast(self) -> dict[str, Any]:
        """What is read in every sample."""
        # Drivers before 535 know the reasons by their former name only.
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", 2),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", 0),
            "power_w": self._thousandth("nvmlDeviceGetPowerUsage"),
            "clock_reasons": self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits,
            "energy_j": self._thousandth("nvmlDeviceGetTotalEnergyConsumption"),
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

    def held_back(self) -> dict[str, float | None]:
        """Seconds that each policy has held back the clocks since the driver was loaded."""
        counts = {
            HELD[name]: read_or_none(
                lambda policy=policy: self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy).violationTime
            )
            for policy, name in POLICIES.items()
        }
        return {name: None if count is None else count / 1e9 for name, count in counts.items()}

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


class GpuSampler:
    """Writes samples of all GPUs that NVML shows to a CSV file while its block runs, in a thread.

    Parameters
    ----------
    file
        With a row for each GPU and sample, in `COLUMNS`; or with why there are none of a GPU, or of any.
    nvml
        The module pynvml, if not the one that is installed.
    """

    def __init__(self, file: Path, nvml: Any = None):
        self._file, self._nvml, self._ended = file, nvml, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "GpuSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(LAST_S)  # a driver may hang

    def _sample(self) -> None:
        with self._file.open("w", newline="", encoding="utf-8") as sink:
            rows = csv.DictWriter(sink, COLUMNS)
            rows.writeheader()
            gpus, problems = self._find()
            rows.writerows({"gpu": uuid, "problem": problem} for uuid, problem in problems.items())
            number, is_last = 0, not gpus
            while not is_last:
                is_last = self._ended.wait(PERIOD_S if number else 0)  # the last sample is taken after the job
                for uuid, gpu in gpus.items():
                    row = gpu.fast()
                    if is_last or number % SLOW_EVERY == 0:
                        row |= gpu.limits() | gpu.held_back()
                    rows.writerow({"time_s": time.monotonic(), "gpu": uuid, **row})
                number += 1

    def _find(self) -> tuple[dict[str, Gpu], dict[str, str]]:
        """The GPUs by their UUIDs, and why there are none of the others; "" stands for all."""
        gpus, problems = {}, {}
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except Exception as error:  # whatever a driver may raise
            return {}, {"": f"NVML cannot be used: {error}"}
        for index in range(count):
            # It counts GPUs that a cgroup hides, as Slurm does those of other jobs, but opens none of them.
            handle = read_or_none(lambda index=index: self._nvml.nvmlDeviceGetHandleByIndex(index))
            uuid = handle is not None and read_or_none(lambda handle=handle: self._nvml.nvmlDeviceGetUUID(handle))
            if uuid:
                gpu = Gpu(self._nvml, handle)
                if gpu.is_partitioned():
                    problems[uuid] = "the GPU is partitioned (MIG)"
                else:
                    gpus[uuid] = gpu
        return gpus, problems


@dataclass
class Samples:
    """Samples of the GPUs of a node, by UUID: columns by name, with NaN where nothing was read; and problems."""

    gpus: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Samples":
        """Read what a sampler wrote; nothing where there is no such file."""
        rows: dict[str, list[list[float]]] = {}
        found = cls()
        names = [name for name in COLUMNS if name not in ("gpu", "problem")]
        if file.exists():
            with file.open(newline="", encoding="utf-8") as source:
                for row in csv.DictReader(source):
                    if row["problem"]:
                        found.problems[row["gpu"]] = row["problem"]
                    elif row["problem"] is not None:  # else the line was cut
                        rows.setdefault(row["gpu"], []).append([float(row[name] or "nan") for name in names])
        for uuid, values in rows.items():
            found.gpus[uuid] = dict(zip(names, np.array(values).T, strict=True))
        return found

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

        `energy`: joules for everything that ran on it, by its counter, else by its power; the seconds of the windows;
        and the reason where there are no joules. `gpu_conditions`: the state at the first sample and at the last one
        in the windows, all `clock_reasons` that a sample in them found on a GPU that was not idle, and the seconds in
        which each policy held the clocks below those asked for, `held_back_s`, out of `watched_s`.
        `device_memory_used_bytes`: the most that all processes together used in the first window, with CUDA contexts.
        """
        columns = self.gpus.get(uuid)
        if columns is None:
            why = self.problems.get(uuid) or next(iter(self.problems.values()), "NVML does not know the GPU")
            energy = {"energy_j": None, "duration_s": None, "reason": why}
            return {"energy": energy, "gpu_conditions": None, "device_memory_used_bytes": None}
        times = columns["time_s"]
        inside = _inside(times, windows)
        reasons = columns["clock_reasons"][inside]
        loaded = [int(bits) for bits in reasons[~np.isnan(reasons)] if not int(bits) & IDLE]
        names = sorted({name for bits in loaded for name in reason_names(bits)})
        held = {
            name: spent
            for name, column in HELD.items()
            if windows and (spent := _counted(times, columns[column], windows)) is not None
        }
        # Of the first window, since PyTorch keeps what a test after it takes; a short one may lie between two samples.
        memory = columns["memory_used_bytes"][
            _inside(times, [(start - 2 * PERIOD_S, end) for start, end in windows[:1]])
        ]
        return {
            "energy": _energy(columns, windows),
            "gpu_conditions": {
                "before": _state(columns, 0),
                "after": _state(columns, int(np.flatnonzero(inside)[-1])) if inside.any() else None,
                "clock_reasons": None if np.isnan(reasons).all() else names,
                "held_back_s": held or None,
                "watched_s": _seconds(windows),
            },
            "device_memory_used_bytes": None if np.isnan(memory).all() else int(np.nanmax(memory)),
        }


def sampled(scratch: Path, device: str) -> AbstractContextManager[object]:
    """Sample into the scratch folder of a job on `device` (cpu, cuda) while the block runs, if that has GPUs."""
    return GpuSampler(scratch / GPU_SAMPLES) if device == "cuda" else nullcontext()


def keep_samples(scratch: Path, folder: Path, nodes: int) -> list[Samples]:
    """Move the samples of every node of a job into its run directory, and read them."""
    names = [GPU_SAMPLES] if nodes == 1 else [node_file(GPU_SAMPLES, node) for node in range(nodes)]
    for name in names:
        if (scratch / name).exists():
            shutil.move(scratch / name, folder / name)
    return [Samples.read(folder / name) for name in names]


def _energy(columns: Mapping[str, np.ndarray], windows: Windows) -> dict[str, float | str | None]:
    times, joules, why = columns["time_s"], None, None
    if not windows:
        why = "no step was measured"
    elif windows[0][0] < times[0] - PERIOD_S or windows[-1][1] > times[-1] + PERIOD_S:
        why = "the GPU was not sampled throughout"
    else:
        joules = _counted(times, columns["energy_j"], windows)
        joules = _integrated(times, columns["power_w"], windows) if joules is None else joules
        why = "the driver tells neither energy nor power" if joules is None else None
    return {"energy_j": joules, "duration_s": None if why else _seconds(windows), "reason": why}


def _counted(times: np.ndarray, counter: np.ndarray, windows: Windows) -> float | None:
    """Increase of a counter in some windows, between samples by a straight line; None where it was never read."""
    known = ~np.isnan(counter)
    if not known.any():
        return None
    at = np.interp(np.ravel(windows), times[known], counter[known]).reshape(-1, 2)
    return float((at[:, 1] - at[:, 0]).sum())


def _integrated(times: np.ndarray, rate: np.ndarray, windows: Windows) -> float | None:
    """Integral of a rate over some windows, between samples by a straight line; None where it was never read."""
    known = ~np.isnan(rate)
    if not known.any():
        return None
    total = 0.0
    for window in windows:
        at = np.unique([*window, *times[known & _inside(times, [window])]])
        total += float(np.trapezoid(np.interp(at, times[known], rate[known]), at))
    return total


def _inside(times: np.ndarray, windows: Windows) -> np.ndarray:
    """Which moments lie in one of some windows."""
    found = np.zeros(len(times), bool)
    for start, end in windows:
        found |= (times >= start) & (times <= end)
    return found


def _seconds(windows: Windows) -> float:
    return float(sum(end - start for start, end in windows))


def _state(columns: Mapping[str, np.ndarray], place: int) -> dict[str, Any]:
    """The state at a sample; limits are those of the last sample up to it that has them."""
    state = {}
    for name in STATE:
        known = columns[name][: place + 1]
        known = known[~np.isnan(known)] if name.endswith("limit_w") else known
        value = known[-1] if len(known) else math.nan
        state[name] = None if math.isnan(value) else float(value)
    bits = state["clock_reasons"]
    return state | {"clock_reasons": reason_names(None if bits is None else int(bits))}
