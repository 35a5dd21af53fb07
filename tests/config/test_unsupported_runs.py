"""Runs that a machine or a cluster cannot do say why."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from multicard.config.cluster import Cluster, machine_for
from multicard.config.runs import Run
from multicard.programs import machine
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.machine import Machine
from multicard.programs.models import Model
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.parameters import JobParameters, run_id

LAPTOP = Machine(cpus=2, gpus=0, profilers=("kineto", "none"))
TWO_GPUS = Machine(cpus=8, gpus=2, compiler=True)
HIDDEN = Machine(cpus=8, gpus=1, hidden_gpus="they are hidden; unhide them")
TWO_NODES = Machine(cpus=16, gpus=4, nodes=2)
NO_TRITON = replace(TWO_GPUS, triton="a C compiler, none found (gcc, clang)")
MODELS = {"tiny": Model(architecture="tiny"), "big": Model(architecture="llama3_8b", folder="no/such")}

on_cpus, on_gpus, tuning = partial(VisionParameters, device="cpu"), VisionParameters, LlmParameters
torchtune = partial(LlmParameters, library="torchtune")
batch = "a batch of 7 cannot be shared equally by 2 devices"
copies = "the strategy dp copies the model in every step, which torch.compile does not support"
dali = 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
fused = "the strategy fsdp has no fused optimizer (SGD)"
moves = "the strategy fsdp moves weights in every step, CUDA graphs need them in one place"
packed = f"packed: true on GPUs has its attention compiled, which needs {NO_TRITON.triton}; or packed: false"
loss = f"library: trl compiles its loss for GPUs, which needs {NO_TRITON.triton}"
on_gpus_only = "the technique qlora by bitsandbytes needs a GPU; on CPUs it needs library: torchtune"
share = "the technique qlora cannot share q_proj of tiny among 3 devices"
compiled = f"torch.compile on GPUs needs {NO_TRITON.triton}"


def refusal(chosen: JobParameters, on: Machine) -> str | None:
    inputs = {"model": MODELS[chosen.model]} if isinstance(chosen, LlmParameters) else {}
    return Run(run_id(chosen), chosen, inputs).unsupported_reason(on)


@pytest.mark.parametrize(
    ("on", "chosen", "reason"),
    [
        (LAPTOP, on_cpus(strategy="dp", devices=2), "the strategy dp needs two or more GPUs"),
        (LAPTOP, on_cpus(strategy="ddp", devices=2, batch_size=7, scaling="strong"), batch),
        (LAPTOP, on_cpus(cuda_graphs=True), "CUDA graphs need a GPU"),
        (LAPTOP, on_cpus(strategy="fsdp", layout="nhwc"), "the strategy fsdp cannot split weights in the layout nhwc"),
        (LAPTOP, on_cpus(strategy="fsdp", preset="tuned", fused_optimizer=True), fused),
        (LAPTOP, on_cpus(strategy="fsdp", preset="tuned"), None),
        (LAPTOP, on_cpus(loader="dali"), dali),
        (LAPTOP, on_cpus(compile=True), "torch.compile needs a C++ compiler, none found"),
        (LAPTOP, on_cpus(strategy="ddp", devices=2), None),
        (LAPTOP, on_cpus(strategy="ddp", devices=4), "needs 4 devices, 2 found"),
        (LAPTOP, on_cpus(strategy="single", devices=2), "the strategy single uses one device, not 2"),
        (LAPTOP, on_gpus(), "needs a CUDA GPU, none found"),
        (LAPTOP, on_cpus(profiler="nsys"), "needs nsys on the PATH, not found"),
        (LAPTOP, tuning(device="cpu"), None),
        (LAPTOP, tuning(device="cpu", devices=4), "needs 4 devices, 2 found"),
        (LAPTOP, torchtune(device="cpu", technique="qlora", devices=3), share),
        (LAPTOP, tuning(device="cpu"), None),
        (LAPTOP, tuning(device="cpu", technique="qat"), None),
        (TWO_GPUS, tuning(technique="qat", compile=True), None),
        (LAPTOP, tuning(device="cpu", technique="qlora"), on_gpus_only),
        (LAPTOP, tuning(device="cpu", packed=True), "packed: true needs library: torchtune"),
        (TWO_GPUS, tuning(technique="qlora", devices=2), None),
        (replace(TWO_GPUS, bitsandbytes="no NF4"), tuning(technique="qlora"), "no NF4"),
        (replace(TWO_GPUS, torchao="no torchao"), tuning(technique="qat", qat_of="weights"), "no torchao"),
        (replace(TWO_GPUS, torchao="no torchao"), tuning(), None),
        (replace(TWO_GPUS, torchao="no torchao"), torchtune(technique="qat"), None),
        (replace(TWO_GPUS, torchtune="no torchtune"), tuning(), None),
        (replace(TWO_GPUS, trl="no TRL"), tuning(), "no TRL"),
        (NO_TRITON, tuning(), loss),
        (replace(TWO_GPUS, trl="no TRL"), torchtune(), None),
        (LAPTOP, tuning(device="cpu", model="big"), "no weights: no such folder: no/such"),
        (HIDDEN, on_gpus(), None),
        (HIDDEN, on_gpus(strategy="ddp", devices=2), "needs 2 devices, 1 found: they are hidden; unhide them"),
        (HIDDEN, on_cpus(strategy="ddp", devices=16), "needs 16 devices, 8 found"),
        (replace(HIDDEN, gpus=0), on_gpus(), "needs a CUDA GPU, none found: they are hidden; unhide them"),
        (TWO_GPUS, on_gpus(strategy="dp", devices=2), None),
        (TWO_GPUS, on_gpus(strategy="dp", devices=2, compile=True), copies),
        (TWO_GPUS, on_gpus(strategy="dp", devices=2, cuda_graphs=True), copies),
        (TWO_GPUS, on_gpus(strategy="fsdp", devices=2, compile=True), None),
        (TWO_GPUS, on_gpus(strategy="fsdp", devices=2, cuda_graphs=True), moves),
        (TWO_GPUS, on_gpus(strategy="ddp-ds", devices=2, cuda_graphs=True), None),
        (TWO_GPUS, on_gpus(cuda_graphs=True, ablate="loader"), None),
        (TWO_GPUS, on_gpus(strategy="ddp", devices=8, nodes=2), "needs a Slurm allocation of 2 nodes"),
        (TWO_GPUS, torchtune(packed=True), None),
        (TWO_GPUS, tuning(compile=True), None),
        (NO_TRITON, on_gpus(cuda_graphs=True), compiled),
        (NO_TRITON, on_cpus(compile=True), None),
        (NO_TRITON, torchtune(), None),
        (NO_TRITON, torchtune(device="cpu", packed=True), None),
        (NO_TRITON, torchtune(compile=True), compiled),
        (NO_TRITON, torchtune(packed=True), packed),
        (TWO_NODES, on_gpus(strategy="ddp", devices=8, nodes=2), None),
        (TWO_NODES, on_cpus(strategy="fsdp", devices=2, nodes=2), None),
        (TWO_NODES, on_gpus(strategy="ddp", devices=8), "needs 8 devices, 4 found"),
        (TWO_NODES, on_gpus(strategy="ddp", devices=10, nodes=2), "needs 5 devices on each node, 4 found"),
        (TWO_NODES, on_gpus(strategy="ddp", devices=3, nodes=2), "3 devices cannot be shared equally by 2 nodes"),
        (TWO_NODES, on_gpus(strategy="ddp", devices=1, nodes=2), "1 device cannot be shared equally by 2 nodes"),
        (TWO_NODES, on_gpus(strategy="ddp", devices=3, nodes=3), "needs 3 nodes, 2 found"),
        (TWO_NODES, on_gpus(nodes=2), "the strategy single is one process, which cannot use 2 nodes"),
        (TWO_NODES, on_gpus(strategy="dp", nodes=2), "the strategy dp is one process, which cannot use 2 nodes"),
        (TWO_NODES, tuning(devices=8, nodes=2), None),
        (TWO_NODES, tuning(nodes=2), "1 device cannot be shared equally by 2 nodes"),
    ],
)
def test_what_cannot_run_says_why(on: Machine, chosen: JobParameters, reason: str | None) -> None:
    assert refusal(chosen, on) == reason


def test_a_run_that_asks_for_more_cpus_than_a_node_has_is_not_runnable_there() -> None:
    node = machine_for(Cluster(cpus_per_node=16, gpus_per_node=4))
    asked = {"device": "cuda", "strategy": "ddp", "devices": 4, "num_workers": 3}
    more = VisionParameters(**asked, threads=2)  # 4 x (2 threads + 3 workers)
    assert refusal(VisionParameters(**asked), node) is None
    assert refusal(more, node) == "needs 20 CPUs of a node for its ranks and loader workers, 16 found"
    assert refusal(more, node.hypothetical()) is None
    # Nothing refuses them on a machine without Slurm: its CPUs are shared.
    assert refusal(more, Machine(cpus=16, gpus=4)) is None


def test_torchtune_needs_the_versions_that_were_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # An environment within this one, of another Python; only what is read of it is there.
    monkeypatch.setattr(machine.sys, "prefix", str(tmp_path))
    assert machine.torchtune_python() == sys.executable
    python = tmp_path / "torchtune" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    packages = tmp_path / "torchtune" / "lib" / "python3.12" / "site-packages"
    install(packages, torchtune="0.6.1", torchao="0.16.0", torch="2.11.0+cu130")
    assert machine.torchtune_python() == str(python)
    wrong = machine.torchtune_unsupported_reason()
    assert wrong == "torchao 0.16.0 is installed, 0.15 supported"
    p = LlmParameters(device="cpu", library="torchtune")
    assert refusal(p, replace(LAPTOP, torchtune=wrong)) == wrong
    install(packages, torchao="0.15.0")
    assert machine.torchtune_unsupported_reason() is None
    shutil.rmtree(packages / "torchtune.dist-info")
    missing = 'library: torchtune needs the package torchtune (make torchtune, or pip install "multicard[torchtune]")'
    assert machine.torchtune_unsupported_reason() == missing


def install(folder: Path, **versions: str) -> None:
    """Write what a folder of packages says of their versions."""
    for name, version in versions.items():
        metadata = folder / f"{name}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_tuning_by_trl_needs_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.sys, "path", [str(tmp_path), *sys.path])
    install(tmp_path, torchao="0.16.1")
    assert machine.trl_unsupported_reason() is None
    install(tmp_path, torchao="0.15.0")
    assert machine.trl_unsupported_reason() == (
        "library: trl runs with torchao 0.16 or later, or without it; 0.15.0 is installed, as torchtune needs it: "
        "install torchtune into an environment of its own (make torchtune)"
    )
    assert machine.bitsandbytes_unsupported_reason() is None
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None if name in ("trl", "peft") else name)
    assert machine.trl_unsupported_reason() == 'library: trl needs trl and peft (pip install "multicard[llm]")'


def test_qat_by_trl_needs_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None if name == "torchao" else name)
    missing = machine.torchao_unsupported_reason()
    assert missing == 'QAT by TRL needs the package torchao (pip install "multicard[llm]")'
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name)
    assert machine.torchao_unsupported_reason() is None
    assert replace(LAPTOP, torchao=missing).hypothetical().torchao is None


def test_a_technique_that_a_library_lacks_needs_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIBRARIES["trl"], "techniques", {"lora": "as ever"})
    refused = refusal(tuning(device="cpu", technique="full"), LAPTOP)
    assert refused == "the technique full needs library: torchtune"


def test_images_need_the_packages_of_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.vision_unsupported_reason() is None
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None if name == "torchvision" else name)
    missing = machine.vision_unsupported_reason()
    assert missing == 'training on images needs torchvision (pip install "multicard[vision]")'
    assert refusal(VisionParameters(device="cpu"), replace(LAPTOP, vision=missing)) == missing
    assert replace(LAPTOP, vision=missing).hypothetical().vision is None


@pytest.mark.parametrize(
    ("workers", "devices", "cpus", "fitting"),
    # A rank takes a CPU, and each of its workers one.
    [(4, 1, 5, "1 worker"), (1, 2, 4, "0 workers")],
)
def test_more_workers_than_cpus_are_told_with_the_number_that_fits(
    workers: int, devices: int, cpus: int, fitting: str
) -> None:
    p = on_cpus(strategy="ddp-ds", num_workers=workers, devices=devices)
    line = Run(run_id(p), p).crowded_cpus(LAPTOP)
    assert line is not None and line.endswith(f"; {fitting} per rank would fit")
    assert f"ask for {cpus} CPUs, 2 found" in line


def test_enough_cpus_no_workers_and_missing_devices_are_no_crowd() -> None:
    for workers, devices in ((1, 1), (0, 2), (1, 3)):
        p = on_cpus(strategy="ddp-ds", num_workers=workers, devices=devices)
        assert Run(run_id(p), p).crowded_cpus(LAPTOP) is None
