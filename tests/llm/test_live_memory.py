"""What a tuned model and its optimizer hold, counted from the live objects of real steps."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torchao.dtypes.nf4tensor import to_nf4

from forked_ranks import start_ranks
from model_state import count
from multicard.experiment.models import ARCHITECTURES, Architecture
from multicard.workloads.llm.memory_estimate import estimate_memory
from multicard.workloads.llm.parameters import LlmParameters
from tuning_jobs import TECHNIQUES, held_by_rank

pytestmark = pytest.mark.slow

TINY = ARCHITECTURES["tiny"]
PRECISIONS = {"lora": ("fp32", "bf16"), "qat of adapters": ("fp32",), "full": ("fp32", "bf16")}  # of others bf16
CASES = [(name, precision) for name in TECHNIQUES for precision in PRECISIONS.get(name, ("bf16",))]
PARTS = ("weights", "adapters", "gradients", "optimizer", "buffers")


def jobs(ranks: int) -> list[tuple[LlmParameters, Architecture]]:
    # Adapters of rank 9 do not divide evenly.
    shared = {"device": "cpu", "devices": ranks, "batch_size": 1, "sequence_length": 16, "lora_rank": 9}
    return [(LlmParameters(**shared, precision=precision, **TECHNIQUES[name]), TINY) for name, precision in CASES]


def leave_what_a_rank_holds(rank: int, ranks: int, folder: str) -> None:
    found = held_by_rank(rank, ranks, jobs(ranks), Path(folder, "meeting"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fullest_rank_holds_to_the_byte_what_was_estimated(ranks: int, tmp_path: Path) -> None:
    start_ranks(leave_what_a_rank_holds, (ranks, str(tmp_path)), ranks=ranks)
    of_ranks = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    # Two matrices of rank 9 at each adapted linear layer: in and out of attention's q, v and output, and of w1 to w3.
    ends = (512 + 512) + (512 + 256) + (512 + 512) + 3 * (512 + 1024)
    for case, (p, shape), *held in zip(CASES, jobs(ranks), *of_ranks, strict=True):
        found = {part: max(rank[part] for rank in held) for part in PARTS}
        estimated = estimate_memory(p, shape)
        assert found == {part: getattr(estimated, part) for part in PARTS}, case
        # Each counts the weights of the whole model.
        adapters = 2 * 9 * ends if p.trains_adapters else 0
        for rank in held:
            assert rank["parameters"] == shape.parameters + adapters, case
            assert rank["trainable_parameters"] == (adapters or shape.parameters), case


def test_what_is_shared_counts_once_and_whole() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    held = count(model, torch.optim.SGD(model.parameters()))
    assert (held.weights, held.parameters) == (10 * 4 * 4, 40)
    # Tensors in one storage.
    model, storage = nn.Linear(2, 3), torch.zeros(100)
    model.weight.grad, model.bias.grad = storage[:6].view(3, 2), storage[6:9]
    assert count(model, torch.optim.SGD(model.parameters())).gradients == 400


def test_trained_weights_are_adapters_only_beside_frozen_ones() -> None:
    model = nn.ModuleDict({"base": nn.Linear(8, 8, bias=False), "adapter": nn.Linear(8, 2, bias=False)})
    optimizer = torch.optim.SGD(model.parameters())
    trained = count(model, optimizer)
    model["base"].requires_grad_(False)
    beside = count(model, optimizer)
    assert (trained.weights, trained.adapters, trained.trainable_parameters) == (80 * 4, 0, 80)
    assert (beside.weights, beside.adapters, beside.trainable_parameters) == (64 * 4, 16 * 4, 16)


def test_of_a_weight_in_four_bits_every_inner_tensor_counts() -> None:
    model = nn.Linear(256, 128, bias=False)
    model.weight = nn.Parameter(to_nf4(torch.randn(128, 256)), requires_grad=False)
    held = count(model, torch.optim.SGD([torch.zeros(1)]))
    # Half a byte each; a scale of one byte for 64; one of four bytes for 256 scales; their mean; the code's 16 values.
    assert held.weights == 16384 + 512 + 2 * 4 + 4 + 16 * 4
    assert held.parameters == 128 * 256


def test_nothing_is_held_of_gradients_and_state_before_the_first_step() -> None:
    model = nn.Linear(2, 2)
    held = count(model, torch.optim.AdamW(model.parameters()))
    assert (held.gradients, held.optimizer) == (0, 0)
