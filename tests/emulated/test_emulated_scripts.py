"""Training scripts for GPUs, unchanged, as jobs on emulated ones under their own launchers: all of it is seen.

Scripts of others are in the folder MULTICARD_SCRIPTS. The machine has more GPUs than a run asks for.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from emulated_jobs import GPU_NAME

from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run
from multicard.core.reasons import describe_reason
from multicard.results.measure import measure_run
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from observed_scripts import has_memory_and_phases
from script.equipment import CASES, ON_GPUS, Script, every_step_is_seen, losses, nanogpt, torchtune

pytestmark = [pytest.mark.emulated, pytest.mark.slow]
rare = pytest.mark.rare

DAILY = "DDP, torchrun"
MACHINE: dict[str, Any] = {"gpus": 3}
OTHERS = Path(os.environ.get("MULTICARD_SCRIPTS", "none"))
others = pytest.mark.skipif(not OTHERS.is_dir(), reason="needs scripts of others (MULTICARD_SCRIPTS)")
STEPS = 10  # of `SHORT`: two to warm up, four measured, two that settle the profiler, two profiled
SMALLEST_BLOCK = 512  # bytes, of PyTorch's allocator; what it reserves are whole segments
SEGMENT = 2 << 20
PHASES = ("data", "transfer", "forward", "backward", "optimizer")


# NVML's energy of the emulated GPUs, for the launcher: it is this process, in which nothing is emulated.
NVML = SimpleNamespace(
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 4,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetUUID=lambda index: f"GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebeced{index:04x}",
    nvmlDeviceGetTotalEnergyConsumption=lambda _index: int(100e3 * time.monotonic()),
)


@pytest.fixture(autouse=True)
def _nvml_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML)


def started(emulated: EmulatedGpus, run: Path, /, *command: str, **given: Any) -> Script:
    stated = {"device": "cuda", "python": str(emulated.python)}
    return Script(run, emulated.environment(**MACHINE), command=command, **stated | given)


def ran_on_its_gpus(run: Script, emulated: EmulatedGpus, communicates: bool = True) -> pd.DataFrame:
    """Each rank had a GPU of its own, or the only one had all, and no other was touched; gives the trace's kernels.

    Measured steps have the memory of PyTorch's allocator, and the trace has kernels and copies of every rank.
    """
    devices, ranks = run.record.parameters.devices, len(run.record.ranks)
    assert ranks in (1, devices)
    gpus = [gpu for rank in run.record.ranks for gpu in rank.gpus]
    assert [gpu.name for gpu in gpus] == [GPU_NAME] * devices
    assert [gpu.uuid[-1] for gpu in gpus] == [str(rank) for rank in range(devices)]
    contexts = {re.search(r"GPU (\d+)", line)[1] for line in emulated.logged("context on device")}
    assert contexts == {str(gpu) for gpu in range(devices)}
    for rank in run.record.ranks:
        assert [meter.reason for meter in rank.energy] == [None] * (devices // ranks)
        for meter in rank.energy:
            assert meter.energy_j == pytest.approx(100 * meter.duration_s, rel=0.01)
    for step in run.steps:
        peak, reserved = int(step["peak_memory_bytes"]), int(step["peak_reserved_bytes"])
        assert peak <= reserved
        assert peak % SMALLEST_BLOCK == reserved % SEGMENT == 0
    assert run.record.profiler.trace_missing is None
    export_run(run.folder)
    extract_run(run.folder, read_run(run.folder).ranks)
    tables = {name: pd.read_parquet(run.folder / "activity" / f"{name}.parquet") for name in ("kernels", "phases")}
    for table in tables.values():
        assert table["rank"].nunique() == ranks
    assert len(tables["kernels"][["rank", "device"]].drop_duplicates()) == devices
    collectives = pd.read_parquet(run.folder / "activity" / "collectives.parquet")
    assert collectives["rank"].nunique() == (ranks if devices > 1 and communicates else 0)
    return tables["kernels"]


@pytest.mark.parametrize("name", [DAILY, *(pytest.param(name, marks=rare) for name in ON_GPUS if name != DAILY)])
def test_every_step_of_every_rank_is_seen(name: str, emulated: EmulatedGpus, tmp_path: Path) -> None:
    case = CASES[name]
    command = case.command.split()
    run = started(emulated, tmp_path, *command, launcher=case.launcher, devices=case.devices).completed()
    every_step_is_seen(run, case, least_bytes=0)
    ran_on_its_gpus(run, emulated)
    copies = pd.read_parquet(run.folder / "activity" / "memory_operations.parquet")
    assert {"host_to_device", "device_to_host"} <= set(copies["operation"])
    in_trace = set(pd.read_parquet(run.folder / "activity" / "phases.parquet")["phase"])
    assert in_trace == {"step", *PHASES} - ({"transfer"} if case.asks_ahead else set())
    if name == DAILY:
        printed = losses(run.log)
        assert printed == losses(run.log_without_observer())[: len(printed)]
        found = measure_run(run.folder)  # batches of 4 on each
        assert found["throughput_samples_per_s"] == pytest.approx(2 * 4 / found["iteration_time_s"], rel=1e-9)


@rare
@pytest.mark.parametrize("arguments", [[], ["--parts"]], ids=["replicas", "parts"])
def test_one_process_on_several_gpus(arguments: list[str], emulated: EmulatedGpus, tmp_path: Path) -> None:
    """By nn.DataParallel, whose replicas are gone after the backward pass, and with a part of the model on each."""
    run = started(emulated, tmp_path, "data_parallel.py", *arguments, launcher="python", devices=2).completed()
    [rank] = run.record.ranks
    ran_on_its_gpus(run, emulated, communicates="--parts" not in arguments)
    has_memory_and_phases(run.steps, PHASES, least_bytes=0)
    assert {step["samples"] for step in run.steps} == {"8"}  # of both GPUs
    assert len(rank.energy) == len(rank.device_memory_used_bytes) == 2


@rare
def test_one_process_that_leaves_a_gpu_unused_has_failed(emulated: EmulatedGpus, tmp_path: Path) -> None:
    run = started(emulated, tmp_path, "data_parallel.py", "--gpus", "1", launcher="python", devices=2)
    assert run.record.outcome == "failed"
    assert describe_reason(run.record.reason).startswith("its process trained on 1 of 2 GPUs; let the script use")


@others
@rare
@pytest.mark.parametrize(("devices", "launcher"), [(1, "python"), (2, "python"), (2, "command")])
def test_imagenet_of_pytorchs_examples(devices: int, launcher: str, emulated: EmulatedGpus, tmp_path: Path) -> None:
    """It takes all GPUs that it sees: one process by nn.DataParallel, or one for each that it starts itself."""
    command = ["main.py", "-a", "shufflenet_v2_x0_5", "--dummy", "-b", "4", "-j", "0", "-p", "1", "--seed", "1"]
    if launcher == "command":
        command += ["--multiprocessing-distributed", "--world-size", "1", "--rank", "0"]
        command += ["--dist-url", "file://{run_dir}/meeting"]
    folder = str(OTHERS / "pytorch-examples" / "imagenet")
    run = started(emulated, tmp_path, *command, launcher=launcher, devices=devices, folder=folder).completed()
    ran_on_its_gpus(run, emulated)
    has_memory_and_phases(run.steps, PHASES, least_bytes=0)
    ranks = len(run.record.ranks)
    assert ranks == (devices if launcher == "command" else 1)
    assert {step["samples"] for step in run.steps} == {str(4 // ranks)}
    # Each rank prints its losses after its updates; the first update ends no step, and the last one is not printed.
    assert len(re.findall(r"Epoch: \[0\].*?Loss \S+", run.log)) == len(run.steps) == STEPS * ranks
    assert run.record.ranks[0].observed.loaders[0].distinct is True


@others
@rare
def test_nanogpt_under_ddp(emulated: EmulatedGpus, tmp_path: Path) -> None:
    """No loader, two batches accumulated on each rank, fp16 with a gradient scaler, evaluation on the first rank."""
    options = {"dtype": "float16", "n_layer": 1, "dropout": 0.0, "max_iters": 12, "gradient_accumulation_steps": 4}
    folder, command = nanogpt(OTHERS, tmp_path, **options)
    run = started(emulated, tmp_path / "run", *command, folder=folder, devices=2, samples_per_step=16).completed()
    ran_on_its_gpus(run, emulated)
    has_memory_and_phases(run.steps, ("backward", "optimizer"), least_bytes=0)
    assert all(step["data_s"] == "" for step in run.steps)
    line = r"iter \d+: loss \S+,"
    printed = re.findall(line, run.log)  # after the updates, by the first rank
    assert 2 * len(printed) == len(run.steps) == 2 * STEPS
    assert printed == re.findall(line, run.log_without_observer())[: len(printed)]


@others
@rare
def test_fsdp2_of_pytorchs_examples(emulated: EmulatedGpus, tmp_path: Path) -> None:
    """It makes its batches on the GPU itself, and never makes that the current device."""
    folder = shutil.copytree(OTHERS / "pytorch-examples" / "distributed" / "FSDP2", tmp_path / "FSDP2")
    run = started(emulated, tmp_path / "run", "example.py", folder=str(folder), devices=2, steps=3).completed()
    kernels = ran_on_its_gpus(run, emulated)
    has_memory_and_phases(run.steps, ("backward", "optimizer"), least_bytes=0)
    assert len(run.steps) == 2 * (STEPS - 1)  # its ten updates, of which the first ends no step
    assert {step["samples"] for step in run.steps} == {""}
    collectives = set(kernels.loc[kernels["kernel"].str.startswith("nccl"), "kernel"].str.split("_").str[1])
    assert {"AllGather", "ReduceScatter"} <= collectives


@rare
@pytest.mark.torchtune
def test_torchtune_by_its_own_command(emulated: EmulatedGpus, tmp_path: Path) -> None:
    """Its recipe for several devices, which shards the model by FSDP2."""
    command = torchtune(tmp_path, "lora_finetune_distributed", "--nproc_per_node", "{devices}")
    run = started(emulated, tmp_path / "run", *command, "device=cuda", launcher="command", devices=2).completed()
    ran_on_its_gpus(run, emulated)
    has_memory_and_phases(run.steps, PHASES, least_bytes=0)
    assert {step["samples"] for step in run.steps} == {"8"}  # a batch of 4, two of them in a step
    assert [rank.observed.optimizers for rank in run.record.ranks] == [("AdamW",)] * 2
    assert len(losses(run.log)) == len(run.of_rank(0)) == len(run.of_rank(1)) == STEPS
