"""Clocks, heat and throttling are those of a simulated NVML, and what it does not support is empty."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.record.conditions import GpuConditions


class _Nvml:
    """A GPU whose answers a test sets, by function and arguments; the driver does not support what is missing."""

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {
            ("nvmlDeviceGetClockInfo", 1): 1755,
            ("nvmlDeviceGetClockInfo", 2): 2619,
            ("nvmlDeviceGetTemperature", 0): 40,
            ("nvmlDeviceGetPowerUsage",): 350_500,
            ("nvmlDeviceGetEnforcedPowerLimit",): 600_000,
            ("nvmlDeviceGetPowerManagementDefaultLimit",): 700_000,
            ("nvmlDeviceGetCurrentClocksEventReasons",): 0x1,
        }
        self.nanoseconds = {0: 5_000_000_000, 1: 0}  # of power and heat, since the driver was loaded

    def __getattr__(self, name: str) -> Any:
        def function(gpu: str, *arguments: Any) -> Any:
            assert gpu == "gpu"
            if name == "nvmlDeviceGetViolationStatus":
                return SimpleNamespace(referenceTime=0, violationTime=self.nanoseconds[arguments[0]])
            if (name, *arguments) not in self.answers:
                raise RuntimeError("Not Supported")
            return self.answers[name, *arguments]

        return function


def test_a_gpu_is_read_before_the_run_and_whenever_measuring_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, now = _Nvml(), [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    conditions = GpuConditions(nvml, "gpu")
    for degrees, reasons, heat in ((70, 0x4, 0.5), (85, 0x60, 1.5)):
        conditions.start()
        now[0] += 10
        nvml.nanoseconds[0] += 2_000_000_000
        nvml.nanoseconds[1] += int(heat * 1e9)
        nvml.answers["nvmlDeviceGetTemperature", 0] = degrees
        nvml.answers["nvmlDeviceGetCurrentClocksEventReasons",] = reasons
        conditions.stop()
        now[0] += 1000  # of a test, say
        nvml.nanoseconds[1] += 9_000_000_000
    before = {
        "sm_clock_mhz": 1755, "memory_clock_mhz": 2619, "temperature_c": 40, "power_w": 350.5, "power_limit_w": 600.0,
        "default_power_limit_w": 700.0, "clock_reasons": ["gpu_idle"],
    }  # fmt: skip
    assert conditions.record() == {
        "before": before,
        "after": before | {"temperature_c": 85, "clock_reasons": ["sw_thermal_slowdown", "hw_thermal_slowdown"]},
        "clock_reasons": ["hw_thermal_slowdown", "sw_power_cap", "sw_thermal_slowdown"],
        "held_back_s": {"power": 4.0, "thermal": 2.0},
        "watched_s": 20.0,
    }


def test_an_epoch_of_warm_up_alone_tells_nothing() -> None:
    nvml = _Nvml()
    conditions = GpuConditions(nvml, "gpu")
    nvml.answers["nvmlDeviceGetCurrentClocksEventReasons",] = 0x40
    conditions.stop()
    found = conditions.record()
    assert (found["after"], found["clock_reasons"], found["watched_s"]) == (None, None, 0.0)

    nvml.answers["nvmlDeviceGetCurrentClocksEventReasons",] = 0x4
    conditions.start()
    conditions.stop()
    nvml.answers["nvmlDeviceGetCurrentClocksEventReasons",] = 0x40
    conditions.stop()
    assert conditions.record()["clock_reasons"] == ["sw_power_cap"]


def test_an_older_driver_is_asked_by_the_former_name() -> None:
    nvml = _Nvml()
    reasons = nvml.answers.pop(("nvmlDeviceGetCurrentClocksEventReasons",))
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons",] = reasons
    assert GpuConditions(nvml, "gpu").record()["before"]["clock_reasons"] == ["gpu_idle"]


def test_what_a_driver_does_not_support_is_none_and_without_nvml_there_is_no_record() -> None:
    nvml = _Nvml()
    nvml.answers.clear()
    nvml.nanoseconds.clear()
    conditions = GpuConditions(nvml, "gpu")
    conditions.start()
    conditions.stop()
    record = conditions.record()
    assert set(record["before"].values()) == set(record["after"].values()) == {None}
    assert record["clock_reasons"] is record["held_back_s"] is None

    absent = GpuConditions(None, None)
    absent.start()
    absent.stop()
    assert absent.record() is None
