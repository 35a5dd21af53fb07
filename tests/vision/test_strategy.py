"""Strategies, layouts and options: real training on CPU processes."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.ops.misc import FrozenBatchNorm2d

from conftest import TINY
from forked_ranks import begin_observing, forked_ranks, start_ranks
from job_files import make_job_file
from multicard.config.runs import Run
from multicard.core.rendezvous import free_port
from multicard.launch.job import observed_job, run_job
from multicard.observe import observer_variables
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs.datasets import Digits, Synthetic
from multicard.programs.machine import Machine
from multicard.programs.options import options_of
from multicard.programs.vision import train as training_program
from multicard.programs.vision.loaders import training_loader
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.prepare import prepare
from multicard.runs.parameters import run_id
from multicard.runs.record import RunRecord

# Just enough training for the loss to fall.
LEARNING = {
    "profiler": "none", "image_size": 32, "width_mult": 0.35, "batch_size": 32, "learning_rate": 0.003, "epochs": 3,
    "steps_per_epoch": 15,  # with two passes it depends on the CPU whether the loss falls
}  # fmt: skip
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


def run_program(
    rank: int, port: int | None, p: VisionParameters, digits: Path, scratch: Path, observer: dict[str, str]
) -> None:
    """Run the training program as one rank, as torchrun would where there is a port."""
    if port:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(p.ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
    else:
        training_program.training_loader = Together
    training_program.MobileNetV2 = SAME_MODEL
    job = replace(make_job_file(scratch), observe=observed_job(p, "none"), parameters=p.stated(), data=digits)
    job.write()  # each rank the same, since either may be first to read it
    os.environ |= observer
    begin_observing()
    sys.argv = ["train.py", f"--data={digits}", *options_of(p)]
    training_program.main()


def column(path: Path, name: str) -> list[float]:
    return pd.read_csv(path, float_precision="round_trip")[name].tolist()


@pytest.fixture(scope="module")
def one(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process left that trained on the global batches of two ranks."""
    scratch = tmp_path_factory.mktemp("one")
    start_ranks(run_program, (None, VisionParameters(**WHOLE), digits, scratch, observer_variables(scratch)))
    return scratch


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp-ds", "fsdp"])
def test_two_ranks_train_as_one_process_does_on_the_whole_batch(
    strategy: str, digits: Path, one: Path, tmp_path: Path
) -> None:
    p = VisionParameters(**SHARED | {"strategy": strategy})
    start_ranks(run_program, (free_port(), p, digits, tmp_path, observer_variables(tmp_path)), ranks=2)
    # The loss of a step tells the weights that all steps before it made, momentum included.
    alone = column(one / "steps.csv.rank0", "loss")
    halves = [column(tmp_path / f"steps.csv.rank{rank}", "loss") for rank in (0, 1)]
    assert halves[0] != halves[1]
    assert len(alone) == 2 * 4 + 1 + LEAST_SETTLING + TINY["profiled_steps"]
    assert [sum(pair) / 2 for pair in zip(*halves, strict=True)] == pytest.approx(alone, rel=1e-9)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        together = column(tmp_path / "epochs.csv.rank0", name)
        assert together == pytest.approx(column(one / "epochs.csv.rank0", name), rel=1e-9)


def outcome(digits: Path, folder: Path, **changes: Any) -> RunRecord:
    parameters = VisionParameters(**(TINY | LEARNING | changes))
    unsupported = Run(run_id(parameters), parameters).unsupported_reason(Machine.here())
    if unsupported:
        pytest.skip(unsupported)
    with forked_ranks():
        record = run_job(parameters, digits, folder, time_limit_s=1800)
    assert record.outcome == "completed", (folder / "log.txt").read_text()
    return record


# Every day, strategies are held to one process above, and loaders to each other in their own tests. Emulated GPUs have
# every strategy with every precision, with the losses of a CPU (tests/emulated).
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"strategy": "fsdp", "devices": 2}, marks=pytest.mark.rare),
        pytest.param({"strategy": "ddp", "devices": 2}, marks=pytest.mark.rare),
        {"strategy": "ddp-ds", "devices": 2, "scaling": "strong", "bucket_cap_mb": 1},
        {"layout": "nhwc", "num_workers": 1, "prefetch_factor": 3, "persistent_workers": False},
        {"preset": "tuned", "precision": "bf16"},
        pytest.param({"loader": "dali", "strategy": "ddp-ds", "devices": 2}, marks=pytest.mark.rare),
        {"dataset": "synthetic"},  # whose batches are learned by heart
        pytest.param({"precision": "fp64"}, marks=pytest.mark.rare),
        pytest.param({"precision": "fp16", "image_size": 16, "epochs": 4}, marks=pytest.mark.rare),
        pytest.param({"device": "cuda", "strategy": "dp", "devices": 2, "precision": "bf16"}, marks=pytest.mark.gpu),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_loss_goes_down(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    prepare("synthetic", Synthetic(source="synthetic", samples=700, classes=4), tmp_path / "synthetic")
    outcome(tmp_path / "synthetic" if "dataset" in changes else digits, tmp_path / "run", **changes)
    losses = column(tmp_path / "run" / "epochs.csv", "train_loss")
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_group_of_one_rank_trains_without_a_launcher(digits: Path, tmp_path: Path) -> None:
    few = {"epochs": 1, "steps_per_epoch": 6}
    losses = []
    for strategy in ("ddp-ds", "fsdp"):
        record = outcome(digits, tmp_path / strategy, strategy=strategy, **few)
        assert "torch.distributed.run" not in record.command
        losses.append(column(tmp_path / strategy / "steps.csv", "loss"))
    # With one rank nothing is averaged and nothing is split, and both strategies have the same sampler.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_a_rank_without_test_samples_ends_as_the_others_do(tmp_path: Path) -> None:
    # A fifth of 9 is one test image. With fp16, so that gradients of a sharded model are scaled.
    prepare("digits", Digits(source="digits", limit=9), tmp_path / "data")
    few = {"batch_size": 4, "epochs": 1, "warmup_steps": 0, "steps_per_epoch": 1, "profiled_steps": 1}
    sharded = {"strategy": "fsdp", "devices": 2, "precision": "fp16", "image_size": 16}
    outcome(tmp_path / "data", tmp_path / "run", **sharded, **few)
    assert column(tmp_path / "run" / "epochs.csv", "test_accuracy") in ([0.0], [1.0])


@pytest.mark.rare
@pytest.mark.parametrize("changes", [{"strategy": "fsdp", "devices": 2, "preset": "tuned"}, {"compile": True}], ids=str)
def test_what_is_slow_here_runs_to_its_end(changes: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    outcome(digits, tmp_path / "run", **{"epochs": 1, "steps_per_epoch": 5, "width_mult": 0.25} | changes)
