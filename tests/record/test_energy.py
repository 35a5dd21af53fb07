"""Joules are those of the right GPU, and what cannot be metered is empty and says why.

No GPU is needed here: a fake pynvml with two GPUs stands in for NVIDIA's. The tests marked gpu meter a real one.
"""

# ruff: noqa: N802, N815 - the stand-in has NVIDIA's names
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.record import energy
from multicard.record.energy import EnergyMeter, device_memory_used_bytes
from multicard.record.memory import peak_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class _FakeError(Exception):
    """What the fake NVML raises, as NVMLError."""


class _FakeNvml(ModuleType):
    """Two GPUs whose counters a test sets; CUDA's first GPU is NVML's second."""

    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.millijoules: dict[str, Any] = {"GPU-aaaa": 900_000, "GPU-bbbb": 5_000}
        self.used = {"GPU-aaaa": 7, "GPU-bbbb": 3 * 2**30}
        self.sliced: bool | None = False
        self.broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise _FakeError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.millijoules:
            raise _FakeError("Not Found")
        return uuid

    def nvmlDeviceGetMigMode(self, gpu: str) -> list[int]:
        if self.sliced is None:
            raise _FakeError("Not Supported")
        return [int(self.sliced), int(self.sliced)]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: str) -> int:
        if self.millijoules[gpu] is None:
            raise _FakeError("Not Supported")
        return self.millijoules[gpu]

    def nvmlDeviceGetMemoryInfo(self, gpu: str, version: int) -> SimpleNamespace:
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(used=self.used[gpu])


@pytest.fixture(autouse=True)
def _forget_gpus() -> Any:
    energy._find_gpu.cache_clear()
    yield
    energy._find_gpu.cache_clear()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> _FakeNvml:
    fake = _FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="bbbb"))
    return fake


def test_joules_are_the_difference_of_the_counter_of_the_right_gpu(nvml: _FakeNvml) -> None:
    meter = EnergyMeter(CUDA)
    meter.start()
    nvml.millijoules |= {"GPU-aaaa": 1_000_000, "GPU-bbbb": 17_500}
    meter.stop()
    assert meter.energy_j == 12.5
    assert meter.reason is None


def test_intervals_add_up_and_what_is_between_does_not_count(nvml: _FakeNvml) -> None:
    meter = EnergyMeter(CUDA)
    for _ in range(2):
        meter.start()
        time.sleep(0.02)
        nvml.millijoules["GPU-bbbb"] += 2_000
        meter.stop()
        nvml.millijoules["GPU-bbbb"] += 70_000
    record = meter.record()
    assert record["energy_j"] == 4.0
    assert 0.04 <= record["duration_s"] < 0.2
    assert record["reason"] is None


def test_a_gpu_without_a_counter_has_no_joules(nvml: _FakeNvml) -> None:
    nvml.millijoules["GPU-bbbb"] = None
    meter = EnergyMeter(CUDA)
    assert meter.reason == "no energy counter: Not Supported"
    meter.start()
    meter.stop()
    assert meter.record() == {"energy_j": None, "duration_s": None, "reason": "no energy counter: Not Supported"}


def test_a_reading_that_fails_once_gives_no_joules(nvml: _FakeNvml) -> None:
    meter = EnergyMeter(CUDA)
    meter.start()
    meter.stop()
    nvml.millijoules["GPU-bbbb"] = None
    meter.start()
    nvml.millijoules["GPU-bbbb"] = 9_000
    meter.stop()
    assert meter.energy_j is None
    assert meter.reason == "no energy counter: Not Supported"


def test_an_interval_that_never_ended_is_no_interval(nvml: _FakeNvml) -> None:
    meter = EnergyMeter(CUDA)
    meter.stop()
    meter.start()
    assert meter.record() == {"energy_j": None, "duration_s": None, "reason": "no interval was measured"}


def test_without_a_driver_an_unknown_gpu_or_a_partitioned_gpu_there_is_a_reason(nvml: _FakeNvml) -> None:
    nvml.sliced = True
    assert EnergyMeter(CUDA).reason == "the GPU is partitioned (MIG)"
    assert device_memory_used_bytes(CUDA) is None
    energy._find_gpu.cache_clear()
    del nvml.millijoules["GPU-bbbb"]
    assert EnergyMeter(CUDA).reason == "NVML does not know the GPU: Not Found"
    energy._find_gpu.cache_clear()
    nvml.broken = True
    assert EnergyMeter(CUDA).reason == "NVML does not know the GPU: Driver Not Loaded"


def test_a_gpu_that_cannot_be_partitioned_is_metered(nvml: _FakeNvml) -> None:
    nvml.sliced = None
    meter = EnergyMeter(CUDA)
    meter.start()
    meter.stop()
    assert meter.energy_j == 0


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert EnergyMeter(CUDA).reason == "the package nvidia-ml-py is not installed"


def test_memory_in_use_is_that_of_the_right_gpu(nvml: _FakeNvml) -> None:
    assert device_memory_used_bytes(CUDA) == 3 * 2**30


def test_a_cpu_has_no_meter() -> None:
    meter = EnergyMeter(CPU)
    meter.start()
    meter.stop()
    assert meter.record() == {"energy_j": None, "duration_s": None, "reason": "no meter for a CPU"}
    assert device_memory_used_bytes(CPU) is None


def test_a_cpu_process_has_a_resident_peak_and_reserves_nothing() -> None:
    before = peak_memory(CPU)
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    after = peak_memory(CPU)
    assert before.reserved is None
    assert after.reserved is None
    assert after.allocated >= 200 * 2**20
    assert after.allocated >= before.allocated


def test_of_several_gpus_the_fullest_counts_and_each_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    counters = {
        gpus[0]: {"allocated_bytes": {"all": {"peak": 5}}, "reserved_bytes": {"all": {"peak": 6}}},
        gpus[1]: {"allocated_bytes": {"all": {"peak": 3}}, "reserved_bytes": {"all": {"peak": 9}}},
    }
    asked, reset = [], []
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda gpu: asked.append(gpu) or counters[gpu])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    assert peak_memory(*gpus) == (5, 9)
    assert asked == reset == gpus


@pytest.fixture
def on_gpu() -> None:
    """CUDA is initialized, as in a rank when it begins to measure; no test needs another one before it."""
    torch.cuda.init()


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
def test_peaks_are_those_that_pytorch_reports() -> None:
    peak_memory(CUDA)
    torch.empty(64 * 2**20, dtype=torch.uint8, device=CUDA)
    told = (torch.cuda.max_memory_allocated(CUDA), torch.cuda.max_memory_reserved(CUDA))
    assert told[0] >= 64 * 2**20
    assert peak_memory(CUDA) == told


@pytest.mark.gpu
def test_a_real_gpu_under_load_takes_more_than_it_does_idle() -> None:
    matrix = torch.randn(4096, 4096, device=CUDA)
    meter = EnergyMeter(CUDA)
    if meter.reason != "no interval was measured":
        pytest.skip(meter.reason)
    meter.start()
    began = time.perf_counter()
    while time.perf_counter() - began < 2:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
    meter.stop()
    assert meter.reason is None
    assert 10 < meter.energy_j / meter.duration_s < 2000  # watts


@pytest.mark.gpu
def test_readings_of_a_real_gpu_take_some_milliseconds_and_wait_for_no_kernel() -> None:
    meter = EnergyMeter(CUDA)
    torch.zeros(1, device=CUDA)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # two seconds or so
    began = time.perf_counter()
    meter.start()
    device_memory_used_bytes(CUDA)
    meter.stop()
    assert time.perf_counter() - began < 0.2
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
def test_a_real_gpu_holds_at_least_what_pytorch_reserved() -> None:
    peak_memory(CUDA)
    block = torch.empty(256 * 2**20, dtype=torch.uint8, device=CUDA)
    peak = peak_memory(CUDA)
    assert peak.reserved >= peak.allocated >= block.numel()
    used = device_memory_used_bytes(CUDA)
    assert used is None or used >= torch.cuda.memory_reserved(CUDA)
    del block
    peak_memory(CUDA)
    assert peak_memory(CUDA).allocated < 256 * 2**20
