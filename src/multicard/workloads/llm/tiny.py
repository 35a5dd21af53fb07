"""A small model of random weights, made the same byte for byte each time, with the tokenizer that is shipped for it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from multicard.core.files import atomic_write, write_json
from multicard.experiment.models import Architecture

SEED = 20250315
DEVIATION = 0.02  # as Llama's weights are initialized
SPECIAL_TOKENS = 16  # those that torchtune asks for, filled up
CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, SPECIAL_TOKENS_FILE = "tokenizer.model", "special_tokens.json"


def make_tiny(folder: Path, shape: Architecture, shipped: Path) -> list[Path]:
    """Make a checkpoint in Hugging Face's form, with the tokenizer from the folder `shipped`; the files in order."""
    write_json(folder / CONFIG, config_of(shape, shape.vocabulary - SPECIAL_TOKENS))
    with atomic_write(folder / WEIGHTS) as temporary:
        # `save_file` would make the file private.
        temporary.write_bytes(save(random_weights(shape), metadata={"format": "pt"}))
    for name in (TOKENIZER, SPECIAL_TOKENS_FILE):
        shutil.copyfile(shipped / name, folder / name)
    return [folder / name for name in (CONFIG, WEIGHTS, TOKENIZER, SPECIAL_TOKENS_FILE)]


def config_of(shape: Architecture, base: int) -> dict[str, Any]:
    """Contents of config.json; `base` counts the tokens below the special ones, of which two begin and end texts."""
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
    """Normal matrices and norms of one, as bfloat16.

    The numbers are NumPy's: PyTorch's depend on the instructions of the CPU.
    """
    generator = np.random.default_rng(SEED)
    weights = {}
    for name, size in tensor_shapes(shape).items():
        if len(size) == 1:
            weights[name] = torch.ones(size, dtype=torch.bfloat16)
        else:
            values = generator.standard_normal(size, np.float32) * np.float32(DEVIATION)
            weights[name] = torch.from_numpy(values).to(torch.bfloat16)
    return weights


def tensor_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a checkpoint, by Hugging Face's names."""
    linear = shape.linear_shapes
    layer = {
        "self_attn.q_proj": linear["q_proj"],
        "self_attn.k_proj": linear["k_proj"],
        "self_attn.v_proj": linear["v_proj"],
        "self_attn.o_proj": linear["output_proj"],
        "mlp.gate_proj": linear["w1"],
        "mlp.down_proj": linear["w2"],
        "mlp.up_proj": linear["w3"],
        "input_layernorm": (shape.embedding,),
        "post_attention_layernorm": (shape.embedding,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, shape.embedding)}
    for number in range(shape.layers):
        shapes |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (shape.embedding,)
    if not shape.tied:
        shapes["lm_head.weight"] = (shape.vocabulary, shape.embedding)
    return shapes
