"""Operations by the shapes of a language model are those that PyTorch counts in torchtune's recipes."""

from typing import Any

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from multicard.experiment.models import ARCHITECTURES, Architecture
from multicard.experiment.workload import WORKLOADS
from multicard.record.operations import OperationCounter
from multicard.workloads.llm.operations import operations_per_token
from multicard.workloads.llm.parameters import LlmParameters
from tuning_jobs import make_recipe, quiet

pytestmark = pytest.mark.slow

SMALL = Architecture(
    vocabulary=64, layers=2, heads=4, kv_heads=2, embedding=256, feed_forward=384, max_sequence=64
)  # the size of every weight is a multiple of NF4's blocks


def job(**stated: Any) -> LlmParameters:
    return LlmParameters(**{"device": "cpu", "precision": "fp32", "batch_size": 2, "sequence_length": 16} | stated)


@pytest.mark.parametrize(
    ("technique", "recomputed"), [("lora", True), ("qlora", False), ("dpo", False), ("full", False), ("full", True)]
)
def test_the_shapes_give_what_pytorch_counts_in_a_step_of_a_recipe(technique: str, recomputed: bool) -> None:
    p = job(technique=technique, activation_checkpointing=recomputed)
    recipe = make_recipe(p, SMALL, steps=1)
    torch.set_num_threads(1)
    # PyTorch counts no fused attention of CPUs.
    with quiet(), sdpa_kernel(SDPBackend.MATH), OperationCounter() as counter:
        recipe.train()
    tokens = 2 * 16 * (2 if technique == "dpo" else 1)
    model, hardware = operations_per_token(p, SMALL, 16)
    assert (tokens * hardware, None) == (counter.total, counter.problem)
    assert (hardware > model) == recomputed


def test_full_tuning_costs_six_operations_for_each_weight_and_token_and_twelve_for_attention() -> None:
    shape, length = ARCHITECTURES["llama3_8b"], 2048
    lookups = shape.vocabulary * shape.embedding
    norms = (2 * shape.layers + 1) * shape.embedding
    # PaLM's 6 N + 12 L H Q T, N without what only looks up or scales.
    expected = 6 * (8_030_261_248 - lookups - norms) + 12 * 32 * 4096 * length
    assert operations_per_token(job(technique="full"), shape, length) == (expected, expected)


def test_frozen_weights_cost_four() -> None:
    shape = ARCHITECTURES["llama3_8b"]
    lora, full = (operations_per_token(job(technique=each, lora_rank=1), shape, 16)[0] for each in ("lora", "full"))
    assert lora / full == pytest.approx(4 / 6, rel=0.005)


def test_a_step_counts_padding_and_the_length_of_each_ranks_sequences() -> None:
    p = job(technique="full", devices=2, gradient_accumulation_steps=2)
    record = {"parameters": p.model_dump(), "model": {"architecture": "tiny"}}
    shape = ARCHITECTURES["tiny"]
    steps = pd.DataFrame({"rank": [0, 1], "tokens": [1, 1], "padded_tokens": [400, 800]})  # of 4 sequences each
    found = WORKLOADS["llm"].operations(record, steps)
    each = [tokens * operations_per_token(p, shape, tokens / 4)[0] for tokens in (400, 800)]
    assert found.model == pytest.approx(sum(each) / 2)
