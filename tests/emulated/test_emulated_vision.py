"""Vision on emulated GPUs: every strategy on up to four of them, and every precision, with the losses of a CPU."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from emulated_jobs import GPU_NAME, Job, asked_for, run_on_cpu, run_on_gpus, steps_of
from same_numbers import BATCH_SIZE

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run
from multicard.core.files import read_json
from multicard.core.layout import PHASES
from multicard.programs.datasets import Digits
from multicard.programs.vision.prepare import prepare
from multicard.runs.record import RunRecord

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PROGRAM = "same_numbers"  # the program of the workload, without random numbers that differ between devices
STEPS, WARMUP, PROFILED = 4, 2, 2
SMALL: dict[str, Any] = TINY | {
    "batch_size": BATCH_SIZE,
    "steps_per_epoch": STEPS, "warmup_steps": WARMUP, "profiled_steps": PROFILED, "profiler": "none",
}  # fmt: skip

# The same on a CPU. Batches of 8 make this network amplify a difference of the last digit a thousandfold in each step:
# where sums are taken in another order on GPUs, fp64 tells that from an error.
FP64 = {"precision": "fp64"}
HALVES_BY_DALI = {"strategy": "ddp-ds", "devices": 2, "scaling": "strong", "loader": "dali"}
REFERENCES: dict[str, dict[str, Any]] = {
    "single": {},
    # nn.DataParallel has no side on a CPU: there the model takes the parts of a batch one after the other.
    "dp 2": {"batch_size": 2 * BATCH_SIZE},
    "ddp 2": {"strategy": "ddp", "devices": 2},
    "shares 2, fp64": {"strategy": "ddp-ds", "devices": 2} | FP64,
    "shares 4, fp64": {"strategy": "ddp-ds", "devices": 4} | FP64,
    "dali": HALVES_BY_DALI,
}

# Runs on GPUs, each with the reference whose losses it has. FSDP2 computes what DDP with a distributed sampler does.
# `tuned` leaves FSDP NCHW.
WORKER = {"num_workers": 1, "persistent_workers": False, "pin_memory": True, "non_blocking": True}
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "single": (WORKER | {"profiler": "kineto", "epochs": 2}, "single"),
    "bf16": ({"precision": "bf16", "tf32": "off"}, "single"),
    "fp16": ({"precision": "fp16"}, "single"),
    "ddp 1": ({"strategy": "ddp", "bucket_cap_mb": 1, "binding": "numa"}, "single"),
    "dp 2": ({"strategy": "dp", "devices": 2, "profiler": "kineto"}, "dp 2"),
    "ddp 2": ({"strategy": "ddp", "devices": 2}, "ddp 2"),
    "ddp-ds 2": (
        {"strategy": "ddp-ds", "devices": 2, "profiler": "kineto", "preset": "tuned"} | FP64,
        "shares 2, fp64",
    ),
    "fsdp 2": ({"strategy": "fsdp", "devices": 2, "preset": "tuned"} | FP64, "shares 2, fp64"),
    "fsdp 4": ({"strategy": "fsdp", "devices": 4, "profiler": "kineto"} | FP64, "shares 4, fp64"),
    "dali": (HALVES_BY_DALI, "dali"),
}
DAILY = "single"  # what is vision's own; scripts have two ranks every day
NO_DALI = importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None
needs_dali = pytest.mark.skipif(NO_DALI, reason="needs nvidia-dali-cuda130")
TOLERANCE = {"fp64": 1e-5, "fp32": 1e-4, "fp16": 3e-2, "bf16": 3e-2}  # relative
# Steps that are compared. What is rounded to 16 bits, and even the last digit of fp64, is soon amplified beyond any
# tolerance.
ALIKE_FOR = {"fp64": 3, "fp16": 1, "bf16": 1}

Runs = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    # Four ranks need STEPS batches each of 80 %; a test set of 40 is soon evaluated.
    prepare("digits", Digits(source="digits", limit=200), folder)
    return folder


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    emulated_gpus: EmulatedGpus,
    few_digits: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    """Gives the directories of a run on GPUs and of its reference, by name."""
    folder, names = tmp_path_factory.mktemp("runs"), asked_for(request)

    def job(kind: str, name: str, changes: dict[str, Any]) -> Job:
        return Job(SMALL | changes, few_digits, folder / kind / name, program=PROGRAM)

    references = dict.fromkeys(RUNS[name][1] for name in names)
    run_on_cpu([job("cpu", name, REFERENCES[name]) for name in references])
    run_on_gpus(emulated_gpus, [job("gpu", name, RUNS[name][0] | {"device": "cuda"}) for name in names])
    return lambda name: (folder / "gpu" / name, folder / "cpu" / RUNS[name][1])


def marks(name: str) -> list[Any]:
    return [pytest.mark.rare] * (name != DAILY) + [needs_dali] * (name == "dali")


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in RUNS])
def test_a_run_on_gpus_learns_what_the_cpu_learns_and_is_recorded(name: str, runs: Runs) -> None:
    changes, folder = RUNS[name][0], runs(name)[0]
    found, expected = map(steps_of, runs(name))
    record = read_run(folder)
    have_the_losses_of_the_cpu(found, expected, changes.get("precision", "fp32"))
    are_timed_with_memory_and_energy(found, record, changes)
    if "profiler" in changes:
        show_every_gpu_at_work(folder, record, changes.get("devices", 1))
    if "binding" in changes:
        [rank] = record.ranks
        assert rank.binding.note.startswith(("bound to CPUs", "not bound: "))


def have_the_losses_of_the_cpu(found: pd.DataFrame, expected: pd.DataFrame, precision: str) -> None:
    columns = ["rank", "step", "samples"]
    first = found[found["step"] <= STEPS].reset_index(drop=True)  # a second epoch has no reference
    whole = expected[expected["step"] <= STEPS].reset_index(drop=True)
    assert first[columns].to_dict() == whole[columns].to_dict()
    alike = first["step"] <= ALIKE_FOR.get(precision, STEPS)
    assert alike.any() and first["loss"].max() < 10
    assert first["loss"][alike].tolist() == pytest.approx(whole["loss"][alike].tolist(), rel=TOLERANCE[precision])


def are_timed_with_memory_and_energy(steps: pd.DataFrame, record: RunRecord, changes: dict[str, Any]) -> None:
    """By CUDA events, PyTorch's allocator and NVML."""
    ranks, devices, epochs = steps["rank"].nunique(), changes.get("devices", 1), changes.get("epochs", 1)
    assert (steps["window"] == "measured").sum() == ranks * (epochs * STEPS - WARMUP)
    assert (steps["window"] == "profiled").sum() >= ranks * PROFILED  # more, where a loader reads ahead
    shares = steps[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / steps["duration_s"]
    assert shares.between(0, 1.001).all() and shares.median() > 0.5
    assert {gpu.name for gpu in record.hardware.gpus} == {GPU_NAME}
    weights = 4 * 3 * 16 * 8  # fewer bytes than any model here has
    assert (steps["peak_memory_bytes"] > weights).all()
    assert (steps["peak_reserved_bytes"] >= steps["peak_memory_bytes"]).all()
    energy = [meter for rank in record.ranks for meter in rank.energy]
    used = [used for rank in record.ranks for used in rank.device_memory_used_bytes]
    assert len(energy) == len(used) == devices
    assert min(used) >= steps["peak_memory_bytes"].min()
    for meter in energy:
        assert meter.reason is None and meter.duration_s > 0
        # An emulated GPU takes 100 W, counted every 20 ms: each window may be off by that at either end.
        assert meter.energy_j == pytest.approx(100 * meter.duration_s, abs=2 * 2 * epochs)


def show_every_gpu_at_work(folder: Path, record: RunRecord, devices: int) -> None:
    """In the tables of the window that PyTorch's profiler recorded."""
    assert (record.profiler.used, record.profiler.trace_missing) == ("kineto", None)

    def table(name: str) -> pd.DataFrame:
        return pd.read_parquet(folder / "activity" / f"{name}.parquet")

    kernels = table("kernels")
    assert kernels["calls"].sum() >= devices * PROFILED * 100  # a MobileNet v2 has more operations than that
    assert len(kernels[["rank", "device"]].drop_duplicates()) == devices
    assert "host_to_device" in set(table("memory_operations")["operation"])
    assert not table("phases").empty
    assert (devices > 1) == (not table("collectives").empty)
    assert read_json(folder / "measures.json")["iteration_time_s"] > 0
