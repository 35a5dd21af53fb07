"""Clocks and memory errors of GPUs as NVML tells them. No GPU is here: a fake of NVML answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from multicard.doctor import gpu_health
from multicard.doctor.checks import Check
from multicard.doctor.probe import gpus_of, of_gpu

WELL = {
    "nvmlDeviceGetHandleByIndex": 7, "nvmlDeviceGetUUID": "GPU-7", "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 << 30), "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetTotalEccErrors": 0, "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetNvLinkState": 1, "nvmlDeviceGetMaxClockInfo": 1410, "nvmlDeviceGetClockInfo": 210,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1, "nvmlDeviceGetTemperature": 31, "nvmlDeviceGetPowerUsage": 52_000,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000, "nvmlDeviceGetPowerManagementDefaultLimit": 400_000,
}  # fmt: skip


class FakeNvml:
    """The module pynvml of one GPU; what it is not told, it does not support. Constants are those of nvml.h."""

    NVML_DEVICE_MIG_ENABLE = NVML_FEATURE_ENABLED = NVML_CLOCK_SM = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_NVLINK_MAX_LINKS = 18

    class NVMLError(RuntimeError):
        """Any error."""

    class NVMLError_NoPermission(NVMLError):  # noqa: N801
        """Error 4: this process may not talk to the GPU."""

    def __init__(self, **answers: Any):
        self._answers = WELL | answers

    def __getattr__(self, function: str) -> Any:
        def answer(*arguments: Any) -> Any:
            told = self._answers.get(function)
            told = told(*arguments) if callable(told) else told
            if told is None:
                raise self.NVMLError("Not Supported")
            return told

        return answer


def judged(**answers: Any) -> dict[str, Check]:
    facts = {"nvml_gpus": [of_gpu(FakeNvml(), 0), of_gpu(FakeNvml(**answers), 1)]}
    return {check.check: check for check in gpu_health.checks(facts)}


def test_healthy_gpus_are_told_by_their_numbers() -> None:
    found = judged()
    clocks = "SM clock now 210 MHz, at most 1410 MHz, 31 °C, power limit 400 W, held by: gpu_idle"
    assert found["GPU clocks"] == Check("GPU clocks", clocks)
    assert found["GPU memory errors"] == Check("GPU memory errors", "none uncorrected, rows remapped: 0")


# Bits of nvml.h: 0x40 hardware thermal slowdown, 0x80 hardware power brake.
@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": 0x40, "nvmlDeviceGetTemperature": 91},
            "GPU 1: slowed down by thermal (hw_thermal_slowdown), 91 °C",
        ),
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x80},
            "GPU 1: slowed down by power brake (hw_power_brake_slowdown), 31 °C",
        ),
        ({"nvmlDeviceGetEnforcedPowerLimit": 250_000}, "GPU 1: power limit 250 W, by default 400 W, 31 °C"),
    ],
)
def test_a_gpu_that_is_held_back_is_a_warning(answers: dict[str, Any], says: str) -> None:
    found = judged(**answers)["GPU clocks"]
    assert (found.verdict, found.found) == ("warning", says)


def errors(now: int, ever: int) -> Any:
    return lambda _gpu, _kind, counter: [now, ever][counter]


# NVIDIA's "GPU Memory Error Management": a pending row needs a reset, a failed one a new GPU.
@pytest.mark.parametrize(
    ("answers", "verdict", "says"),
    [
        (
            {"nvmlDeviceGetTotalEccErrors": errors(2, 5)},
            "error",
            "GPU 1: uncorrected memory errors since the driver was loaded (uncorrected now 2, ever 5, rows remapped 0)",
        ),
        (
            {"nvmlDeviceGetTotalEccErrors": errors(0, 5), "nvmlDeviceGetRemappedRows": (1, 2, 0, 0)},
            "warning",
            "in its life (uncorrected now 0, ever 5, rows remapped 3)",
        ),
        ({"nvmlDeviceGetRemappedRows": (0, 1, 1, 0)}, "error", "GPU 1: memory with errors waits for a reset"),
        ({"nvmlDeviceGetRemappedRows": (0, 8, 0, 1)}, "error", "GPU 1: a row of memory could not be remapped"),
        (
            {"nvmlDeviceGetRemappedRows": None, "nvmlDeviceGetRetiredPagesPendingStatus": 1},
            "error",
            "waits for a reset to be replaced by spare memory (uncorrected now 0, ever 0)",
        ),
        ({"nvmlDeviceGetRemappedRows": (4, 0, 0, 0)}, "ok", "none uncorrected, rows remapped: 4"),
        ({"nvmlDeviceGetEccMode": [0, 0]}, "ok", "none uncorrected, rows remapped: 0; ECC is off: GPU 1"),
    ],
)
def test_memory_errors_are_judged_by_what_nvidia_says_of_them(answers: dict[str, Any], verdict: str, says: str) -> None:
    found = judged(**answers)["GPU memory errors"]
    assert (found.verdict, says in found.found) == (verdict, True), found.found


def test_what_nvml_does_not_tell_is_no_fault() -> None:
    nothing = dict.fromkeys(set(WELL) - {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})
    gpu = of_gpu(FakeNvml(**nothing), 0)
    assert {check.verdict for check in gpu_health.checks({"nvml_gpus": [gpu]})} == {"ok"}
    assert (
        gpu_health.checks({}) == gpu_health.checks({"nvml_gpus": [of_gpu(FakeNvml(nvmlDeviceGetUUID=None), 0)]}) == []
    )


def test_gpus_that_a_cgroup_hides_from_a_job_are_none_of_its_own() -> None:
    # NVML counts them and then refuses to open them (nvml.h, nvmlDeviceGetCount_v2); those of others are no fault.
    def handle(index: int) -> int:
        if index in (0, 3):
            raise FakeNvml.NVMLError_NoPermission("Insufficient Permissions")
        return index

    gpus = gpus_of(FakeNvml(nvmlDeviceGetCount=4, nvmlDeviceGetHandleByIndex=handle))
    assert [(gpu["index"], "problem" in gpu) for gpu in gpus] == [(1, False), (2, False)]
