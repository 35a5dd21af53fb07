"""What the launcher samples of GPUs, cut to the times of measured steps: closed forms on a simulated NVML and clock."""

# ruff: noqa: N802, N815 - the stand-in has NVIDIA's names
import csv
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.launch.gpu_samples import COLUMNS, GpuMeasures, GpuSamples, sample_gpus
from multicard.observe.record.visible import identities
from multicard.runs.record import Energy, GpuState

A, B = "GPU-aaaa", "GPU-bbbb"
ANSWERS = {
    ("nvmlDeviceGetClockInfo", 1): 1755,
    ("nvmlDeviceGetClockInfo", 2): 2619,
    ("nvmlDeviceGetTemperature", 0): 40,
    ("nvmlDeviceGetPowerUsage",): 350_500,
    ("nvmlDeviceGetEnforcedPowerLimit",): 600_000,
    ("nvmlDeviceGetPowerManagementDefaultLimit",): 700_000,
    ("nvmlDeviceGetCurrentClocksEventReasons",): 0x1,
    ("nvmlDeviceGetTotalEnergyConsumption",): 5_000,
    ("nvmlDeviceGetMigMode",): [0, 0],
}
STATE = GpuState(
    sm_clock_mhz=1755, memory_clock_mhz=2619, temperature_c=40, power_w=350.5, power_limit_w=600.0,
    default_power_limit_w=700.0, clock_reasons=("gpu_idle",),
)  # fmt: skip


class _Nvml:
    """GPUs whose answers a test sets, by function and arguments; the driver does not support what is missing."""

    nvmlMemory_v2 = 2

    def __init__(self, *uuids: str):
        self.uuids, self.answers, self.broken = uuids, dict(ANSWERS), False

    def nvmlInit(self) -> None:
        if self.broken:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, index: int) -> str:
        return self.uuids[index]

    def nvmlDeviceGetMemoryInfo(self, _gpu: int, version: int) -> SimpleNamespace:
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(used=3 * 2**30)

    def __getattr__(self, name: str) -> Any:
        return lambda _gpu, *arguments: self.answers[name, *arguments]


def written(folder: Path, gpu: str = A, **columns: Callable[[float], Any]) -> GpuSamples:
    """Samples of a GPU from 0 to 20 s, two a second, each column a function of time; a None is empty."""
    with (folder / "gpu_samples.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for now in (number / 2 for number in range(41)):
            rows.writerow({"time_s": now, "gpu": gpu} | {name: value(now) for name, value in columns.items()})
    return GpuSamples.read(folder / "gpu_samples.csv")


def test_energy_is_interpolated_between_samples_of_the_counter_and_only_in_the_windows(tmp_path: Path) -> None:
    # 100 W, but 900 W from 5 to 10 s, in between the windows.
    samples = written(tmp_path, energy_j=lambda now: 1000 + 100 * now + 800 * min(max(now - 5, 0), 5))
    energy = samples.of_gpu(A, [(1.1, 4.9), (10.2, 13.3)]).energy
    seconds = 3.8 + 3.1
    assert (energy.energy_j, energy.duration_s) == (pytest.approx(100 * seconds), pytest.approx(seconds))
    assert energy.reason is None
    # Samples that failed are passed over.
    samples = written(tmp_path, energy_j=lambda now: None if 3 < now < 6 else 50 * now)
    assert samples.of_gpu(A, [(2.0, 8.0)]).energy.energy_j == pytest.approx(50 * 6)


@pytest.mark.parametrize(
    ("columns", "windows", "reason"),
    [
        ({"energy_j": lambda now: now}, [], "no step was measured"),
        ({"energy_j": lambda now: now}, [(5.0, 25.0)], "the GPU was not sampled throughout"),
        ({"power_w": lambda _: 40}, [(5.0, 6.0)], "the driver does not tell the energy"),
        (
            {"energy_j": lambda now: now if now < 10 else None},
            [(5.0, 15.0)],
            "the driver does not tell the energy throughout",
        ),
        (
            {"energy_j": lambda now: now if now > 10 else None},
            [(5.0, 15.0)],
            "the driver does not tell the energy throughout",
        ),
    ],
)
def test_where_there_are_no_joules_there_is_a_reason(
    tmp_path: Path, columns: dict[str, Any], windows: list[tuple[float, float]], reason: str
) -> None:
    energy = written(tmp_path, **columns).of_gpu(A, windows).energy
    assert energy == Energy(reason=reason)


def test_throttling_counts_in_the_windows_on_a_gpu_at_work_alone(tmp_path: Path) -> None:
    def reasons(now: float) -> int:
        if now < 4:
            return 0x40  # heat, before the window
        if now == 6.0:
            return 0x1 | 0x20  # slowed down while it idles, as after a synchronization
        return 0x4 if now < 8 else 0x80

    samples = written(tmp_path, clock_reasons=reasons, temperature_c=lambda now: 40 + now)
    found = samples.of_gpu(A, [(4.2, 7.8)]).conditions
    assert found.clock_reasons == ("sw_power_cap",)
    assert (found.before.temperature_c, found.after.temperature_c) == (40.0, 47.5)
    assert found.before.clock_reasons == ("hw_thermal_slowdown",)
    assert samples.of_gpu(A, []).conditions.after is None


def test_memory_is_the_most_before_the_first_test(tmp_path: Path) -> None:
    samples = written(tmp_path, memory_used_bytes=lambda now: 7 if now < 5 else 9 if now < 6 else 20)
    assert samples.of_gpu(A, [(2.0, 5.6), (8.0, 9.0)]).memory_used_bytes == 9
    assert samples.of_gpu(A, [(2.1, 2.2)]).memory_used_bytes == 7  # between two samples


def test_a_rank_gets_its_own_gpus_and_one_on_cpus_none(tmp_path: Path) -> None:
    samples = written(tmp_path, B, energy_j=lambda now: now)
    first, second = samples.of_rank([B, A], [(1.0, 3.0)])
    assert (first.energy.energy_j, first.energy.reason) == (pytest.approx(2.0), None)
    assert second == GpuMeasures(Energy(reason="NVML does not know the GPU"), None, None)
    [on_cpu] = GpuSamples().of_rank([], [(1.0, 3.0)])
    assert on_cpu == GpuMeasures(Energy(reason="no meter for a CPU"), None, None)


def sampled(folder: Path, nvml: _Nvml, seconds: float = 0.0) -> GpuSamples:
    with sample_gpus(folder / "gpu_samples.csv", nvml):
        time.sleep(seconds)
    return GpuSamples.read(folder / "gpu_samples.csv")


def test_every_gpu_is_sampled_several_times_a_second_from_before_the_job_until_after_it(tmp_path: Path) -> None:
    began = time.monotonic()
    samples = sampled(tmp_path, _Nvml(A, B), 0.55)
    assert set(samples.gpus) == {A, B}
    times = samples.gpus[A]["time_s"]
    assert began <= times.iloc[0] and times.iloc[-1] >= began + 0.55
    assert 2 <= len(times) <= 8 and (times.diff() >= 0.09).sum() >= len(times) - 3
    found = samples.of_gpu(B, [(times.iloc[0], times.iloc[-1])])
    assert found.conditions.before == found.conditions.after == STATE
    assert found.conditions.clock_reasons == ()  # the GPU was idle throughout
    assert found.memory_used_bytes == 3 * 2**30


def test_what_a_driver_does_not_support_is_none_and_an_older_one_is_asked_by_the_former_name(tmp_path: Path) -> None:
    nvml = _Nvml(A)
    nvml.answers.clear()
    assert sampled(tmp_path, nvml).of_gpu(A, []).conditions.before == GpuState()
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons",] = 0x1
    assert sampled(tmp_path, nvml).of_gpu(A, []).conditions.before.clock_reasons == ("gpu_idle",)


def test_a_partitioned_gpu_or_no_driver_is_a_reason(tmp_path: Path) -> None:
    nvml = _Nvml(A)
    nvml.answers["nvmlDeviceGetMigMode",] = [1, 1]
    [instance] = sampled(tmp_path, nvml).of_rank(["GPU-instance"], [(0.0, 1.0)])
    assert instance.energy.reason == "the GPU is partitioned (MIG)"
    nvml.broken = True
    energy = sampled(tmp_path, nvml).of_gpu(A, [(0, 1)]).energy
    assert energy.reason == "NVML cannot be used: Driver Not Loaded"


def test_a_line_that_was_cut_is_left_out_and_without_a_file_there_are_none(tmp_path: Path) -> None:
    written(tmp_path, energy_j=lambda now: now)
    file = tmp_path / "gpu_samples.csv"
    file.write_text(file.read_text()[:-15])
    assert len(GpuSamples.read(file).gpus[A]) == 40
    assert GpuSamples.read(tmp_path / "none.csv") == GpuSamples()


@pytest.mark.gpu
def test_a_real_gpu_under_load_takes_more_than_it_does_idle(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    matrix = torch.randn(4096, 4096, device=device)
    with sample_gpus(tmp_path / "gpu_samples.csv"):
        began = time.monotonic()
        while time.monotonic() - began < 2:
            for _ in range(20):
                matrix @ matrix
            torch.cuda.synchronize()
        ended = time.monotonic()
    samples = GpuSamples.read(tmp_path / "gpu_samples.csv")
    [identity] = identities([device])
    energy = samples.of_gpu(identity["uuid"], [(began, ended)]).energy
    assert energy.reason is None and 10 < energy.energy_j / energy.duration_s < 2000  # watts
