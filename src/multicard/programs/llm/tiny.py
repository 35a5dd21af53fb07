"""Make a small model with random weights, the same bytes every time, and with the tokenizer that is shipped for it."""

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from multicard.core.files import atomic_write, write_json
from multicard.core.values import JsonObject
from multicard.programs.models import Architecture

SEED = 20250315
DEVIATION = 0.02  # standard deviation with which Llama's weights are initialized
SPECIAL_TOKENS = 16  # number of special tokens: those that torchtune requires, and reserved ones
CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, SPECIAL_TOKENS_FILE = "tokenizer.model", "special_tokens.json"
# Hugging Face's names of linear layers by torchtune's.
NAMES = {
    "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
    "output_proj": "self_attn.o_proj", "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj",
}  # fmt: skip


def make_tiny(folder: Path, shape: Architecture, shipped: Path) -> list[Path]:
    """Write a checkpoint in Hugging Face's form, with the tokenizer from the folder `shipped`; return its files."""
    ordinary_tokens = shape.vocabulary - SPECIAL_TOKENS
    write_json(folder / CONFIG, config_of(shape, ordinary_tokens))
    # `save_file` would make a file that only its owner can read.
    weights = save(random_weights(shape), metadata={"format": "pt"})
    with atomic_write(folder / WEIGHTS) as temporary:
        temporary.write_bytes(weights)
    for name in (TOKENIZER, SPECIAL_TOKENS_FILE):
        shutil.copyfile(shipped / name, folder / name)
    return [folder / name for name in (CONFIG, WEIGHTS, TOKENIZER, SPECIAL_TOKENS_FILE)]


def config_of(shape: Architecture, base: int) -> JsonObject:
    """Return the contents of config.json.

    `base`: number of ordinary tokens, and so the id of the first special token. That one begins a text, the second
    special token ends a text.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **shape.config,
        "rope_theta": shape.rope_base,
        "rms_norm_eps": shape.norm_epsilon,
        "torch_dtype": "bfloat16",
        "bos_token_id": base,
        "eos_token_id": base + 1,
    }


def random_weights(shape: Architecture) -> dict[str, torch.Tensor]:
    """Return matrices of normally distributed numbers and norms of ones, as bfloat16, by Hugging Face's names."""
    # NumPy's generator is used because the numbers of PyTorch's generator depend on the CPU.
    generator = np.random.default_rng(SEED)
    weights = {}
    for name, size in tensor_shapes(shape).items():
        is_norm = len(size) == 1
        if is_norm:
            weights[name] = torch.ones(size, dtype=torch.bfloat16)
            continue
        values = generator.standard_normal(size, np.float32) * np.float32(DEVIATION)
        weights[name] = torch.from_numpy(values).to(torch.bfloat16)
    return weights


def tensor_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a checkpoint, by Hugging Face's names."""
    norm = (shape.embedding,)
    embedding = (shape.vocabulary, shape.embedding)
    shapes_in_layer: dict[str, tuple[int, ...]] = {}
    for name, size in shape.linear_shapes.items():
        shapes_in_layer[NAMES[name]] = size
    shapes_in_layer["input_layernorm"] = norm
    shapes_in_layer["post_attention_layernorm"] = norm

    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": embedding}
    for layer in range(shape.layers):
        for name, tensor_shape in shapes_in_layer.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = tensor_shape
    shapes["model.norm.weight"] = norm
    if not shape.tied:
        shapes["lm_head.weight"] = embedding
    return shapes
