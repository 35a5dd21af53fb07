"""The layers that QAT by TRL rounds, and the values to which it rounds."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multicard.programs.machine import torchtune_python, torchtune_unsupported_reason

pytest.importorskip("torchao", "0.16", reason="needs torchao")
transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = pytest.mark.slow

# Run by the interpreter that tunes by torchtune: outputs and gradients of a layer that its recipes round.
BY_TORCHTUNE = """
import sys, torch
from torchtune.training.quantization import Int8DynActInt4WeightQATQuantizer
weight, inputs, gradient = torch.load(sys.argv[1])
layers = torch.nn.Sequential(torch.nn.Linear(*weight.T.shape, bias=False))
layers[0].weight = torch.nn.Parameter(weight)
layers = Int8DynActInt4WeightQATQuantizer(groupsize=256).prepare(layers)
outputs = layers(inputs.requires_grad_())
outputs.backward(gradient)
torch.save([outputs.detach(), inputs.grad, layers[0].weight.grad], sys.argv[1])
"""
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def rounded_names(tied: bool, names: set[str] | None) -> set[str]:
    """Return the names of the layers that round, of a small model in which `names` are to round."""
    from torchao.quantization.qat.linear import FakeQuantizedLinear

    from multicard.programs.llm.trl_quantization import round_linears

    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    round_linears(model, 4, names)
    paths = [path for path, module in model.named_modules() if isinstance(module, FakeQuantizedLinear)]
    assert len(paths) == 2 * len({path.rpartition(".")[2] for path in paths} - {"lm_head"}) + ("lm_head" in paths)
    return {path.rpartition(".")[2] for path in paths}


def test_with_names_only_those_layers_round_else_all_but_an_output_layer_with_the_weights_of_the_embedding() -> None:
    assert rounded_names(False, {"q_proj", "down_proj"}) == {"q_proj", "down_proj"}
    assert rounded_names(False, None) == PROJECTIONS | {"lm_head"}
    assert rounded_names(True, None) == PROJECTIONS


def test_weights_round_to_16_levels_of_their_group_and_inputs_to_256_of_their_token() -> None:
    from multicard.programs.llm.trl_quantization import round_linears

    model = nn.Module()
    model.lm_head, model.config = nn.Linear(4, 1, bias=False), transformers.PretrainedConfig(tie_word_embeddings=False)
    # Two groups of two weights. The largest of each is 7.5 steps, of 0.125 and of 1; the levels are -8 to 7 steps.
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.tensor([[-0.9375, 0.26, 7.5, -1.4]]))
    round_linears(model, 2, None)
    # A token's range includes 0: from 0 to 2.55 in steps of 0.01, and from -5.1 to 0 in steps of 0.02.
    tokens = torch.tensor([[2.55, 0.0, 0.0, 0.0], [1.004, 2.55, 0.0, 0.0], [0.0, 0.0, -5.1, -0.031]])
    expected = torch.tensor([[2.55 * -1.0], [1.0 * -1.0 + 2.55 * 0.25], [-5.1 * 7 - 0.04 * -1]])
    torch.testing.assert_close(model.lm_head(tokens), expected, atol=1e-5, rtol=0)


def clamp(values: torch.Tensor, *bounds: Any, **options: Any) -> torch.Tensor:
    """Stand in for `torch.clamp`: as in PyTorch 2.11, values that equal a bound have a gradient.

    In 2.15 they have none (https://github.com/pytorch/pytorch/pull/191142).
    """
    if len(bounds) != 2:
        return TORCH_CLAMP(values, *bounds, **options)
    least, most = bounds
    is_inside = (values >= least) & (values <= most)
    return torch.where(is_inside, values, values.detach().clip(least, most))


TORCH_CLAMP = torch.clamp


@pytest.mark.skipif(torchtune_unsupported_reason() is not None, reason="needs torchtune")
def test_a_layer_computes_what_torchtunes_does_but_has_no_gradient_at_the_ends_of_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, inputs, gradient = (
        torch.randn(shape, generator=generator) for shape in ((64, 512), (2, 7, 512), (2, 7, 64))
    )
    torch.save([weight, inputs, gradient], tmp_path / "layer")
    command = [torchtune_python(), "-c", BY_TORCHTUNE, str(tmp_path / "layer")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    outputs, *gradients = torch.load(tmp_path / "layer")

    own_outputs, *own_gradients = rounded_layer(weight, inputs, gradient)
    assert torch.equal(own_outputs, outputs)
    for own, expected in zip(own_gradients, gradients, strict=True):
        differing = own != expected
        # About two of each 512 inputs or 256 weights are at the ends of their range.
        assert 0 < differing.float().mean() < 2 / 256 and (own[differing] == 0).all()
    monkeypatch.setattr(torch, "clamp", clamp)
    for own, expected in zip(rounded_layer(weight, inputs, gradient), [outputs, *gradients], strict=True):
        assert torch.equal(own, expected)


def rounded_layer(weight: torch.Tensor, inputs: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return outputs of a layer that rounds, and the gradients of its inputs and weights."""
    from multicard.programs.llm.trl_quantization import round_linears

    model = nn.Module()
    model.lm_head, model.config = nn.Linear(512, 64, bias=False), transformers.PretrainedConfig()
    model.lm_head.weight = nn.Parameter(weight.clone())
    model.config.tie_word_embeddings = False
    round_linears(model, 256, None)
    inputs = inputs.clone().requires_grad_()
    outputs = model.lm_head(inputs)
    outputs.backward(gradient)
    return [outputs.detach(), inputs.grad, model.lm_head.weight.grad]
