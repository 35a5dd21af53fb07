"""A compiled job is compiled as a whole, or says that it is not."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from conftest import TINY
from forked_ranks import start_ranks
from multicard.core.prepared import read_unchanged
from multicard.core.rendezvous import free_port
from multicard.workloads.vision import train as training_program
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.ranks import join

pytestmark = pytest.mark.slow

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
    facts = read_unchanged(Path(digits), "data set")
    job = {"data": digits}
    training_program.train(job, p, *join(p), facts)
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
