"""The estimate of a tuning job's memory, against loops of the stock recipes, what autograd keeps, and live objects."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from factories import make_run
from forked_ranks import start_ranks
from multicard.programs.llm.measures import LLM_MEASURES
from multicard.programs.llm.memory_estimate import estimate_memory
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.models import ARCHITECTURES, Architecture
from multicard.runs.measures import Measures
from simulated_gpu import Allocations, peak_bytes
from tuning_jobs import TECHNIQUES, held_by_rank, make_recipe

pytestmark = [pytest.mark.slow, pytest.mark.torchtune]

TINY, BILLION = ARCHITECTURES["tiny"], ARCHITECTURES["llama3_2_1b"]
BILLION_4 = replace(BILLION, layers=4)
EIGHT_BILLION_2 = replace(ARCHITECTURES["llama3_8b"], layers=2)
FEW_LOGITS = replace(BILLION, vocabulary=1024, tied=False, max_sequence=2048, layers=4)  # so that layers weigh most


def rare(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.rare)


def job(**fixed: Any) -> LlmParameters:
    return LlmParameters(**{"library": "torchtune", "device": "cpu", "sequence_length": 512} | fixed)


@pytest.mark.parametrize(
    ("shape", "fixed"),
    [
        (BILLION_4, {"technique": "dpo"}),
        (BILLION_4, {"devices": 2}),
        (BILLION_4, {"technique": "full", "gradient_accumulation_steps": 2}),
        (BILLION_4, {"technique": "full", "devices": 4, "activation_checkpointing": True}),
        (BILLION_4, {"technique": "qlora"}),
        (BILLION_4, {"technique": "qat", "devices": 2, "qat_group": 32}),
        (BILLION_4, {"technique": "qat", "qat_of": "weights"}),
        (FEW_LOGITS, {"technique": "qlora", "sequence_length": 2048, "activation_checkpointing": True}),
        (TINY, {"precision": "fp32", "sequence_length": 1024}),
        rare(BILLION, {}),
        rare(BILLION, {"technique": "dpo"}),
        rare(BILLION, {"sequence_length": 2048, "activation_checkpointing": True}),
        rare(BILLION, {"technique": "full", "sequence_length": 2048}),
        rare(BILLION, {"technique": "full", "devices": 2}),
        rare(BILLION_4, {"technique": "full", "precision": "fp32", "activation_checkpointing": True}),
        rare(BILLION_4, {"technique": "qlora", "devices": 2}),
        rare(BILLION_4, {"technique": "dpo", "devices": 2, "activation_checkpointing": True}),
        rare(EIGHT_BILLION_2, {"technique": "qat", "qat_of": "weights", "devices": 2}),
        rare(FEW_LOGITS, {"technique": "full", "sequence_length": 2048}),
        rare(FEW_LOGITS, {"technique": "qat", "sequence_length": 2048, "activation_checkpointing": True}),
        rare(TINY, {"technique": "full", "sequence_length": 128, "devices": 2}),
    ],
    ids=lambda value: (
        " ".join(map(str, value.values())) if isinstance(value, dict) else f"{value.parameters / 1e9:.2f}B"
    ),
)
def test_the_estimate_is_within_a_tenth_of_what_the_stock_recipe_allocates(
    shape: Architecture, fixed: dict[str, Any]
) -> None:
    assert estimate_memory(job(**fixed), shape).total == pytest.approx(peak_bytes(job(**fixed), shape), rel=0.1)


def test_a_library_that_shares_no_model_holds_all_of_it_on_each_device() -> None:
    alone = estimate_memory(job(technique="full", library="trl"), BILLION)
    one_of_two = estimate_memory(job(technique="full", library="trl", devices=2), BILLION)
    assert alone == estimate_memory(job(technique="full"), BILLION)
    assert one_of_two == alone


def test_the_simulated_gpu_counts_what_lives_and_remembers_the_most() -> None:
    allocations = Allocations(vocabulary=1)
    with FakeTensorMode(), allocations:
        first = torch.empty(100)
        second = first + 1
        view = second[:50]
        assert allocations.held == 800
        del second
        assert allocations.held == 800
        del view
        assert (allocations.held, allocations.peak) == (400, 800)


@pytest.mark.parametrize(
    ("technique", "compiled", "packed"),
    [("lora", False, True), ("lora", True, False), ("full", False, False), ("full", True, True)],
)
def test_a_layer_keeps_for_the_backward_pass_what_was_estimated(technique: str, compiled: bool, packed: bool) -> None:
    p = job(technique=technique, compile=compiled, packed=packed)
    layer = make_recipe(p.model_copy(update={"compile": False}), TINY, steps=1)._model.layers[1]
    if compiled:
        layer.compile(backend="aot_eager_decomp_partition")  # keeps what inductor's code would
    positions = torch.arange(512).expand(2, 512) if packed else None
    # Of two models that differ by a layer, at the end of the loss, when gradients are none.
    deep, shallow = (estimate_memory(p, replace(TINY, layers=layers)) for layers in (31, 30))
    estimated = deep.activations + deep.gradients - shallow.activations - shallow.gradients
    assert kept_bytes(layer, positions) == pytest.approx(estimated, rel=0.01)


def kept_bytes(layer: nn.Module, positions: torch.Tensor | None) -> int:
    """Bytes that autograd keeps of a layer of `tiny` for 2 x 512 tokens, beside weights and tables."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(2, 512, 512, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(x, input_pos=positions)
    assert output.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("architecture", "published"),
    [("llama3_8b", 8_030_261_248), ("llama3_1_8b", 8_030_261_248), ("llama3_2_1b", 1_235_814_400)],
)
def test_weights_take_two_bytes_of_each_published_parameter(architecture: str, published: int) -> None:
    assert estimate_memory(job(), ARCHITECTURES[architecture]).weights == 2 * published


# parseChosenWorkspaceSize of torch 2.11.0 (ATen/cuda/CublasHandlePool.cpp; its machine code compares the pair with
# 9 and 0): 4096 * 8 KiB if major == 9 and minor == 0, else 4096 * 2 + 16 * 8 KiB. One is for each of two threads.
@pytest.mark.parametrize(("capability", "kib"), [("9.0", 32768), (None, 32768), ("7.5", 8320), ("10.0", 8320)])
def test_a_gpu_needs_two_workspaces_more(capability: str | None, kib: int) -> None:
    on_gpu, on_cpu = (estimate_memory(job(device=device), TINY, capability) for device in ("cuda", "cpu"))
    assert on_gpu.total - on_cpu.total == 2 * kib * 1024
    # The estimate of a finished run is of its own GPU.
    record = make_run(
        job(device="cuda"),
        model={"architecture": "tiny"},
        hardware={"gpus": [{"name": "synthetic", "capability": capability}]},
    )
    steps = pd.DataFrame(
        {"window": ["measured"], "step": [1], "loss": [1.0], "samples": [1], "tokens": [1], "padded_tokens": [1]}
    )
    assert LLM_MEASURES.compute(record, Measures(elapsed_s=1.0), steps, None)["estimated_memory_bytes"] == on_gpu.total


def test_recipes_that_do_not_compile_need_as_much_when_asked_to() -> None:
    alone, several = ([job(technique="dpo", devices=n, compile=asked) for asked in (True, False)] for n in (1, 2))
    assert estimate_memory(alone[0], BILLION).total < estimate_memory(alone[1], BILLION).total
    assert estimate_memory(several[0], BILLION).total == estimate_memory(several[1], BILLION).total


# What a tuned model and its optimizer hold, counted from the live objects of real steps.

PRECISIONS = {"lora": ("fp32", "bf16"), "qat of adapters": ("fp32",), "full": ("fp32", "bf16")}  # of others bf16
CASES = [(name, precision) for name in TECHNIQUES for precision in PRECISIONS.get(name, ("bf16",))]
PARTS = ("weights", "adapters", "gradients", "optimizer", "buffers")


def jobs(ranks: int) -> list[tuple[LlmParameters, Architecture]]:
    # Adapters of rank 9 do not divide evenly.
    shared = {
        "library": "torchtune", "device": "cpu", "devices": ranks, "batch_size": 1, "sequence_length": 16,
        "lora_rank": 9,
    }  # fmt: skip
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
