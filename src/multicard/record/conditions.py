"""Clocks, temperature, power and throttling of a GPU, as NVML tells them.

They are read outside of steps, and what cannot be read is None: a missing number must not end a job. Whether a run
counts as disturbed is judged later, from these numbers, by `multicard.analysis.conditions`.
"""

import time
from typing import Any

from multicard.core.system import read_or_none

# Bits of NVML's clocks event reasons (nvml.h), and policies whose violations it counts (nvmlPerfPolicyType_t).
CLOCK_REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
POLICIES = {0: "power", 1: "thermal", 2: "sync_boost", 3: "board_limit", 4: "low_utilization", 5: "reliability"}


class GpuConditions:
    """State of a GPU when this is made and whenever measuring pauses, and how long its clocks were held back meanwhile.

    Parameters
    ----------
    nvml
        The module pynvml, None without NVML.
    gpu
        NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, gpu: Any):
        self._nvml, self._gpu = nvml, gpu
        self._began: tuple[float, dict[str, int]] | None = None
        self.before, self.after = self._state(), None
        self.reasons: set[str] | None = None  # of all pauses
        self.held_back_s: dict[str, float] = {}
        self.watched_s = 0.0

    def start(self) -> None:
        """Measured steps begin."""
        self._began = time.perf_counter(), self._violations()

    def stop(self) -> None:
        """Measured steps pause, and the GPU has just finished them; nothing of an epoch that had none."""
        if self._began is None:
            return
        violations, self.after = self._violations(), self._state()
        if self.after and self.after["clock_reasons"] is not None:
            self.reasons = (self.reasons or set()) | set(self.after["clock_reasons"])
        start, counted = self._began
        self.watched_s += time.perf_counter() - start
        for policy, count in violations.items():
            if policy in counted:
                spent = (count - counted[policy]) / 1e9
                self.held_back_s[policy] = self.held_back_s.get(policy, 0.0) + spent
        self._began = None

    def record(self) -> dict[str, Any] | None:
        """For run.json; None without NVML.

        `before` and `after`: the state at the start of the rank and at the last pause. `clock_reasons`: all that were
        found at a pause. `held_back_s`: seconds in which each policy held the clocks below those asked for, by the
        driver's counters, out of `watched_s`, in which measured steps ran.
        """
        if self.before is None:
            return None
        return {
            "before": self.before,
            "after": self.after,
            "clock_reasons": None if self.reasons is None else sorted(self.reasons),
            "held_back_s": self.held_back_s or None,
            "watched_s": self.watched_s,
        }

    def _state(self) -> dict[str, Any] | None:
        nvml, gpu = self._nvml, self._gpu
        if nvml is None:
            return None

        def asked(function: str, *arguments: Any) -> Any:
            return read_or_none(lambda: getattr(nvml, function)(gpu, *arguments))

        milliwatts = {
            "power_w": asked("nvmlDeviceGetPowerUsage"),
            "power_limit_w": asked("nvmlDeviceGetEnforcedPowerLimit"),
            "default_power_limit_w": asked("nvmlDeviceGetPowerManagementDefaultLimit"),
        }
        # Drivers before 535 know the reasons by their former name only.
        bits = asked("nvmlDeviceGetCurrentClocksEventReasons")
        bits = asked("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits
        return {
            "sm_clock_mhz": asked("nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": asked("nvmlDeviceGetClockInfo", 2),
            "temperature_c": asked("nvmlDeviceGetTemperature", 0),
            **{name: None if power is None else power / 1000 for name, power in milliwatts.items()},
            "clock_reasons": None if bits is None else clock_reasons(bits),
        }

    def _violations(self) -> dict[str, int]:
        """Nanoseconds that each policy has held back the clocks since the driver was loaded; without those unknown."""
        if self._nvml is None:
            return {}
        counts = {
            name: read_or_none(
                lambda policy=policy: self._nvml.nvmlDeviceGetViolationStatus(self._gpu, policy).violationTime
            )
            for policy, name in POLICIES.items()
        }
        return {name: count for name, count in counts.items() if count is not None}


def clock_reasons(bits: int) -> list[str]:
    """Names of NVML's clocks event reasons; a bit that is not known is named by its value.

    >>> clock_reasons(0x44), clock_reasons(0), clock_reasons(0x10000)
    (['sw_power_cap', 'hw_thermal_slowdown'], [], ['0x10000'])
    """
    set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return [CLOCK_REASONS.get(bit, hex(bit)) for bit in set_bits]
