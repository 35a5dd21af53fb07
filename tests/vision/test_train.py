"""The training loop and evaluation; a compiled job is compiled as a whole."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conftest import TINY
from forked_ranks import start_ranks
from multicard.core.rendezvous import free_port
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision import train as training_program
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.precision import gradient_scaler
from multicard.programs.vision.ranks import join
from multicard.programs.vision.train import evaluate, make_optimizer

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
ONE = {"epochs": 2, "steps_per_epoch": 4, "warmup_steps": 1, "profiled_steps": 2}


def parameters(**changes: Any) -> VisionParameters:
    return VisionParameters(**(TINY | ONE | changes))


def test_evaluation_gives_mean_loss_and_accuracy_over_unequal_batches() -> None:
    # Scores of log 3 against log 1 give probabilities 3/4 and 1/4: 3 of 4 samples right.
    scores = torch.log(torch.tensor([[3.0, 1.0], [3.0, 1.0], [1.0, 3.0], [1.0, 3.0]]))
    labels = torch.tensor([0, 0, 1, 0])
    loader = DataLoader(TensorDataset(scores, labels), batch_size=3)  # two batches; a third pass counts for nothing
    loss, accuracy = evaluate(nn.Identity(), loader, parameters(), CPU, passes=3)
    assert accuracy == 0.75
    expected = -(3 * torch.log(torch.tensor(0.75)) + torch.log(torch.tensor(0.25))).item() / 4
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("fused", "default"), [(True, True), (False, None)])
def test_without_the_fused_optimizer_pytorch_chooses_how_to_update(fused: bool, default: bool | None) -> None:
    # False would also rule out the update of many tensors at once, which PyTorch takes on a GPU.
    defaults = make_optimizer(nn.Linear(2, 2), parameters(fused_optimizer=fused)).defaults
    assert (defaults["fused"], defaults["foreach"]) == (default, None)


def test_the_fused_optimizer_recovers_from_an_overflow_in_the_first_step_as_plain_sgd_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What memory holds that nobody has written to is anything.
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, float("nan")))
    learned: dict[bool, list[Any]] = {}
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
        model = model.to(memory_format=torch.channels_last)
        optimizer = make_optimizer(model, parameters(fused_optimizer=fused, learning_rate=0.1))
        scaler = gradient_scaler("fp16", CPU)
        for step in range(5):
            loss = model(torch.randn(8, 3, 8, 8)).square().mean() * (float("inf") if step == 0 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
            learned.setdefault(fused, []).append((weights, scaler.get_scale()))
    for (plain, plain_scale), (fused_, fused_scale) in zip(*learned.values(), strict=True):
        torch.testing.assert_close(fused_, plain)
        assert fused_scale == plain_scale
    assert not torch.equal(learned[True][0][0], learned[True][4][0])


# Convolutions of MobileNet v2, by its paper's table 2: one, 17 blocks of three of which the first has two, one.
CONVOLUTIONS = 1 + 2 + 16 * 3 + 1
STEPS = 3


def train_alone(_rank: int, port: int, strategy: str, digits: str, scratch: str) -> None:
    """Train as the only rank of a job, and count the convolutions that compiled code computes."""
    os.environ |= {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    computed = 0

    def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        found = sum(node.target is torch.conv2d for node in graph.graph.nodes)

        def run(*inputs: Any) -> Any:
            nonlocal computed
            computed += found
            return graph.forward(*inputs)

        return run

    torch.compile = partial(torch.compile, backend=counting)
    p = VisionParameters(**TINY | {"strategy": strategy, "compile": True, "steps_per_epoch": STEPS})
    provenance = read_unchanged(Path(digits), ImageProvenance)
    training_program.train(p, *join(p), Path(digits), provenance, checkpoint=None)
    Path(scratch, "found.json").write_text(json.dumps(computed / STEPS))
    dist.destroy_process_group()


def trained(strategy: str, digits: Path, scratch: Path) -> Any:
    start_ranks(train_alone, (free_port(), strategy, str(digits), str(scratch)))
    return json.loads((scratch / "found.json").read_text())


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp-ds", marks=pytest.mark.rare)])
def test_every_block_is_compiled(strategy: str, digits: Path, tmp_path: Path) -> None:
    model = training_program.MobileNetV2()
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == CONVOLUTIONS
    assert trained(strategy, digits, tmp_path) == CONVOLUTIONS
