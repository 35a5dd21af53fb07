"""What a tuned model and its optimizer hold, counted from the live objects of real steps."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torchao.dtypes.nf4tensor import to_nf4

from forked_ranks import start_ranks
from multicard.experiment.models import ARCHITECTURES, Architecture
from multicard.workloads.llm.memory_estimate import estimate_memory
from multicard.workloads.llm.model_state import count
from multicard.workloads.llm.parameters import LlmParameters
from tuning_jobs import TECHNIQUES, held_by_rank

pytestmark = pytest.mark.slow

TINY = ARCHITECTURES["tiny"]
CASES = [(name, precision) for name in TECHNIQUES for precision in ("fp32", "bf16")]
PARTS = ("weights", "adapters", "gradients", "optimizer", "buffers")


def jobs(ranks: int) -> list[tuple[LlmParameters, Architecture]]:
    # Adapters of rank 9 do not divide evenly.
    shared = {"device": "cpu", "devices": ranks, "batch_size": 1, "sequence_length": 16, "lora_rank": 9}
    return [(LlmParameters(**shared, precision=precision, **TECHNIQUES[name]), TINY) for name, precision in CASES]


def leave_what_a_rank_holds(rank: int, ranks: int, folder: str) -> None:
    found = held_by_rank(rank, ranks, jobs(ranks), Path(folder, "meeting"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """The model state of each job."""
    return held_by_rank(0, 1, jobs(1), tmp_path_factory.mktemp("one") / "meeting")


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, int]]]:
    """For each of two processes, the model state of each job."""
    folder = tmp_path_factory.mktemp("two")
    start_ranks(leave_what_a_rank_holds, (2, str(folder)), ranks=2)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


@pytest.mark.parametrize("case", range(len(CASES)), ids=[" ".join(case) for case in CASES])
def test_one_rank_holds_to_the_byte_what_was_estimated(case: int, of_one_rank: list[dict[str, int]]) -> None:
    estimated = estimate_memory(*jobs(1)[case])
    assert {part: of_one_rank[case][part] for part in PARTS} == {part: getattr(estimated, part) for part in PARTS}


@pytest.mark.parametrize("case", range(len(CASES)), ids=[" ".join(case) for case in CASES])
def test_the_fullest_of_two_ranks_holds_to_the_byte_what_was_estimated(
    case: int, of_two_ranks: list[list[dict[str, int]]]
) -> None:
    estimated = estimate_memory(*jobs(2)[case])
    found = {part: max(rank[case][part] for rank in of_two_ranks) for part in PARTS}
    assert found == {part: getattr(estimated, part) for part in PARTS}


@pytest.mark.parametrize("case", range(len(CASES)), ids=[" ".join(case) for case in CASES])
def test_ranks_count_the_weights_of_the_whole_model(
    case: int, of_one_rank: list[dict[str, int]], of_two_ranks: list[list[dict[str, int]]]
) -> None:
    (p, shape), names = jobs(1)[case], ("parameters", "trainable_parameters")
    # Two matrices of rank 9 at each adapted linear layer: in and out of attention's q, v and output, and of w1 to w3.
    ends = (512 + 512) + (512 + 256) + (512 + 512) + 3 * (512 + 1024)
    adapters = 2 * 9 * ends if p.trains_adapters else 0
    expected = [shape.parameters + adapters, adapters or shape.parameters]
    for held in (of_one_rank[case], of_two_ranks[0][case], of_two_ranks[1][case]):
        assert [held[name] for name in names] == expected


def test_weights_that_two_layers_share_count_once() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    held = count(model, torch.optim.SGD(model.parameters()))
    assert (held.weights, held.parameters) == (10 * 4 * 4, 40)


def test_tensors_in_one_storage_count_once_and_whole() -> None:
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
