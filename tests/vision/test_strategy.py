"""Strategies, layouts and switches: real training on CPU processes."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torchvision.models.mobilenetv2 import MobileNetV2

from conftest import TINY
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import VisionParameters
from multicard.experiment.runs import Run, run_id
from multicard.record.job import run_job
from multicard.vision.strategy import distribute, joined

STEPS, BATCH = 3, 8
# Just enough training for the loss to fall.
LEARNING = {
    "profiler": "none", "image_size": 32, "width": 0.35, "batch_size": 32, "learning_rate": 0.003, "epochs": 3,
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


def train_rank(rank: int, strategy: str, port: int, out: str) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    parameters = VisionParameters(device="cpu", strategy=strategy, devices=2)
    with joined(parameters) as (_, device):
        wrapped = distribute(model(), parameters, device)
        trained(wrapped, slice(rank * BATCH // 2, (rank + 1) * BATCH // 2))
        weights = {
            name.removeprefix("module."): value.full_tensor() if hasattr(value, "full_tensor") else value.detach()
            for name, value in wrapped.named_parameters()
        }
        if rank == 0:
            torch.save(weights, out)


@pytest.mark.parametrize("strategy", ["ddp-ds", "fsdp"])
def test_two_ranks_train_as_one_process_does_on_the_whole_batch(strategy: str, tmp_path: Path) -> None:
    port = 29_500 + os.getpid() % 1000
    mp.spawn(train_rank, (strategy, port, str(tmp_path / "weights.pt")), nprocs=2)
    together = torch.load(tmp_path / "weights.pt", weights_only=True)
    alone = model()
    trained(alone, slice(None))
    for name, value in alone.named_parameters():
        torch.testing.assert_close(together[name], value.detach(), rtol=1e-9, atol=1e-12)


def outcome(digits: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    parameters = VisionParameters(**(TINY | LEARNING | changes))
    obstacle = Run(run_id(parameters), parameters).obstacle(Machine.here())
    if obstacle:
        pytest.skip(obstacle)
    record = run_job(parameters, digits, folder, time_limit_s=300)
    assert record["outcome"] == "completed", (folder / "log.txt").read_text()
    return record


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fsdp", "devices": 2},
        {"strategy": "ddp-ds", "devices": 2, "scaling": "strong", "bucket_mb": 1},
        {"layout": "nhwc", "workers": 1, "prefetch": 3, "persistent_workers": False},
        {"preset": "tuned"},
        {"precision": "fp64"},
        {"precision": "bf16"},
        {"loader": "dali"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_loss_goes_down(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    outcome(digits, tmp_path / "run", **changes)
    with (tmp_path / "run" / "epochs.csv").open() as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "changes",
    [{"strategy": "fsdp", "devices": 2, "precision": "fp16", "image_size": 16}, {"compile": True}],
    ids=["fsdp with gradient scaling", "compiled"],
)
def test_what_is_slow_here_runs_to_its_end(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    outcome(digits, tmp_path / "run", **{"epochs": 1, "steps_per_epoch": 5, "width": 0.25} | changes)
