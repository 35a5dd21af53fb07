"""Strategies, layouts and options: real training on CPU processes."""

import csv
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.ops.misc import FrozenBatchNorm2d

from conftest import TINY
from forked_ranks import forked_ranks, start_ranks
from multicard.experiment.datasets import Digits, Synthetic
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import Run
from multicard.launch.job import run_job
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.workloads.vision import train as training_program
from multicard.workloads.vision.data import read_provenance
from multicard.workloads.vision.loaders import training_loader
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.precision import autocast
from multicard.workloads.vision.prepare import prepare
from multicard.workloads.vision.ranks import join
from multicard.workloads.vision.strategy import STRATEGIES

pytestmark = pytest.mark.slow

STEPS, BATCH = 3, 8
# Just enough training for the loss to fall.
LEARNING = {
    "profiler": "none", "image_size": 32, "width_mult": 0.35, "batch_size": 32, "learning_rate": 0.003, "epochs": 3,
    "steps_per_epoch": 20,
}  # fmt: skip


def model() -> nn.Module:
    """Batch normalization with fixed statistics, since ranks do not share those of their batches."""
    torch.manual_seed(0)
    made = MobileNetV2(num_classes=4, width_mult=0.25).double()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    return made.eval()


def trained(wrapped: nn.Module, part: slice) -> None:
    """Some steps on a part of each batch."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 3, 32, 32, generator=generator, dtype=torch.float64)
        labels = torch.randint(4, (BATCH,), generator=generator)
        nn.functional.cross_entropy(wrapped(images[part]), labels[part]).backward()
        optimizer.step()
        optimizer.zero_grad()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def become(rank: int, port: int) -> None:
    """Make this process one of two ranks, as torchrun would."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def train_rank(rank: int, strategy: str, port: int, out: str) -> None:
    become(rank, port)
    torch.set_num_threads(1)
    parameters = VisionParameters(device="cpu", strategy=strategy, devices=2)
    _, device = join(parameters)
    wrapped = STRATEGIES[parameters.strategy].wrap(model(), parameters, device)
    trained(wrapped, slice(rank * BATCH // 2, (rank + 1) * BATCH // 2))
    weights = {
        name.removeprefix("module."): value.full_tensor() if hasattr(value, "full_tensor") else value.detach()
        for name, value in wrapped.named_parameters()
    }
    if rank == 0:
        torch.save(weights, out)
    dist.destroy_process_group()


@pytest.mark.parametrize("strategy", ["ddp-ds", "fsdp"])
def test_two_ranks_train_as_one_process_does_on_the_whole_batch(strategy: str, tmp_path: Path) -> None:
    start_ranks(train_rank, (strategy, free_port(), str(tmp_path / "weights.pt")), ranks=2)
    together = torch.load(tmp_path / "weights.pt", weights_only=True)
    alone = model()
    trained(alone, slice(None))
    for name, value in alone.named_parameters():
        torch.testing.assert_close(together[name], value.detach(), rtol=1e-9, atol=1e-12)


# With statistics of the batch and with dropout two ranks are not one process, whoever trains them: each normalizes its
# own half, and drops other units. Without these two, all else must agree.
SAME_MODEL = partial(MobileNetV2, norm_layer=FrozenBatchNorm2d, dropout=0.0)
WHOLE = TINY | {
    "precision": "fp64", "learning_rate": 0.05, "epochs": 2, "steps_per_epoch": 4, "batch_size": 16,
    "scaling": "strong",
}  # fmt: skip
SHARED = WHOLE | {"strategy": "ddp-ds", "devices": 2}


class Together:
    """The batches of two ranks of ddp-ds, joined to those of one process."""

    def __init__(self, dataset: Any, facts: Any, _p: VisionParameters, _rank: int, device: torch.device):
        self.parts = [training_loader(dataset, facts, VisionParameters(**SHARED), rank, device) for rank in (0, 1)]
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Let both ranks shuffle again."""
        for part in self.parts:
            part.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for batches in zip(*self.parts, strict=True):
            yield tuple(torch.cat(part) for part in zip(*batches, strict=True))


def run_program(p: VisionParameters, digits: Path, scratch: Path) -> None:
    """Run the training program's own loop on one rank."""
    scratch.mkdir(exist_ok=True)
    job = {"data": digits, "scratch": scratch, "profiler": "none"}
    training_program.train(job, p, *join(p), read_provenance(digits))


def run_program_as(rank: int, port: int, digits: Path, scratch: Path) -> None:
    become(rank, port)
    training_program.MobileNetV2 = SAME_MODEL
    run_program(VisionParameters(**SHARED), digits, scratch)
    dist.destroy_process_group()


def column(path: Path, name: str) -> list[float]:
    with path.open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def test_two_ranks_of_ddp_ds_learn_what_one_process_learns_from_the_same_global_batches(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    start_ranks(run_program_as, (free_port(), digits, two), ranks=2)
    monkeypatch.setattr(training_program, "MobileNetV2", SAME_MODEL)
    monkeypatch.setattr(training_program, "training_loader", Together)
    run_program(VisionParameters(**WHOLE), digits, one)

    # The loss of a step tells the weights that all steps before it made, momentum included.
    alone = column(one / "steps.csv.rank0", "loss")
    halves = [column(two / f"steps.csv.rank{rank}", "loss") for rank in (0, 1)]
    assert halves[0] != halves[1]
    assert len(alone) == 2 * 4 + 1 + LEAST_SETTLING + TINY["profiled_steps"]
    assert [sum(pair) / 2 for pair in zip(*halves, strict=True)] == pytest.approx(alone, rel=1e-9)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        together = column(two / "epochs.csv.rank0", name)
        assert together == pytest.approx(column(one / "epochs.csv.rank0", name), rel=1e-9)


class InThreads(nn.Module):
    """Runs a module as nn.DataParallel does: in a thread, which inherits that autocast is on, not its format."""

    def __init__(self, module: nn.Module, device_ids: list[int]):
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Result of the thread."""
        results = []

        def work() -> None:
            with torch.amp.autocast("cpu", enabled=on):
                results.append(self.module(images))

        on = torch.is_autocast_enabled("cpu")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return results[0]


FORMATS = pytest.mark.parametrize(
    ("precision", "product"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)


@FORMATS
def test_the_threads_of_dp_compute_in_the_format_of_the_run(
    precision: str, product: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "DataParallel", InThreads)
    assert formats_under_dp(precision, torch.device("cpu")) == {product}


@pytest.mark.gpu
@FORMATS
def test_the_replicas_of_dp_compute_in_the_format_of_the_run(precision: str, product: torch.dtype) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert formats_under_dp(precision, torch.device("cuda", 0)) == {product}


def formats_under_dp(precision: str, device: torch.device) -> set[torch.dtype]:
    """Formats of what the replicas of a layer give."""
    layer, seen = nn.Linear(4, 4).to(device), set()
    layer.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    wrapped = STRATEGIES["dp"].wrap(layer, VisionParameters(strategy="dp", devices=2, precision=precision), device)
    with autocast(precision, device):
        wrapped(torch.ones(8, 4, device=device))
    return seen


def outcome(digits: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    parameters = VisionParameters(**(TINY | LEARNING | changes))
    unsupported = Run(run_id(parameters), parameters).unsupported_reason(Machine.here())
    if unsupported:
        pytest.skip(unsupported)
    with forked_ranks():
        record = run_job(parameters, digits, folder, time_limit_s=1800)
    assert record["outcome"] == "completed", (folder / "log.txt").read_text()
    return record


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fsdp", "devices": 2},
        {"strategy": "ddp", "devices": 2},
        {"strategy": "ddp-ds", "devices": 2, "scaling": "strong", "bucket_cap_mb": 1},
        {"layout": "nhwc", "num_workers": 1, "prefetch_factor": 3, "persistent_workers": False},
        {"preset": "tuned"},
        {"precision": "fp64"},
        {"precision": "fp16", "image_size": 16},
        {"precision": "bf16"},
        {"loader": "dali"},
        {"loader": "dali", "strategy": "ddp-ds", "devices": 2},
        pytest.param({"device": "cuda", "strategy": "dp", "devices": 2, "precision": "bf16"}, marks=pytest.mark.gpu),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_loss_goes_down(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    outcome(digits, tmp_path / "run", **changes)
    losses = column(tmp_path / "run" / "epochs.csv", "train_loss")
    assert losses[-1] < losses[0]


def test_synthetic_batches_are_learned_by_heart(tmp_path: Path) -> None:
    prepare("synthetic", Synthetic(source="synthetic", samples=700, classes=4), tmp_path / "data")
    outcome(tmp_path / "data", tmp_path / "run", dataset="synthetic")
    losses = column(tmp_path / "run" / "epochs.csv", "train_loss")
    assert losses[-1] < losses[0]


def test_a_rank_without_test_samples_ends_as_the_others_do(tmp_path: Path) -> None:
    # A fifth of 9 is one test image.
    prepare("digits", Digits(source="digits", limit=9), tmp_path / "data")
    few = {"batch_size": 4, "epochs": 1, "warmup_steps": 0, "steps_per_epoch": 1, "profiled_steps": 1}
    outcome(tmp_path / "data", tmp_path / "run", strategy="fsdp", devices=2, **few)
    assert column(tmp_path / "run" / "epochs.csv", "test_accuracy") in ([0.0], [1.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fsdp", "devices": 2, "precision": "fp16", "image_size": 16},
        {"strategy": "fsdp", "devices": 2, "preset": "tuned"},
        {"compile": True},
    ],
    ids=["fsdp with gradient scaling", "fsdp with the tuned preset", "compiled"],
)
def test_what_is_slow_here_runs_to_its_end(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    outcome(digits, tmp_path / "run", **{"epochs": 1, "steps_per_epoch": 5, "width_mult": 0.25} | changes)
