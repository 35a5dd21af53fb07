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
NAMES = {  # Hugging Face's, by torchtune's
    "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj", "v_proj": "self_attn.v_proj",
    "output_proj": "self_attn.o_proj", "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj",
}  # fmt: skip


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
    of_llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    numbers = {"rope_theta": shape.rope_base, "rms_norm_eps": shape.norm_epsilon, "torch_dtype": "bfloat16"}
    return of_llama | shape.config | numbers | {"bos_token_id": base, "eos_token_id": base + 1}


def random_weights(shape: Architecture) -> dict[str, torch.Tensor]:
    """Normal matrices and norms of one, as bfloat16; the numbers are NumPy's: PyTorch's depend on the CPU."""
    generator, weights = np.random.default_rng(SEED), {}
    for name, size in tensor_shapes(shape).items():
        values = generator.standard_normal(size, np.float32) * np.float32(DEVIATION) if len(size) > 1 else np.ones(size)
        weights[name] = torch.from_numpy(values).to(torch.bfloat16)
    return weights


def tensor_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a checkpoint, by Hugging Face's names."""
    norm, head = (shape.embedding,), (shape.vocabulary, shape.embedding)
    layer = {NAMES[name]: size for name, size in shape.linear_shapes.items()}
    layer |= {"input_layernorm": norm, "post_attention_layernorm": norm}
    layers = {
        f"model.layers.{number}.{name}.weight": size for number in range(shape.layers) for name, size in layer.items()
    }
    shapes = {"model.embed_tokens.weight": head, **layers, "model.norm.weight": norm}
    return shapes if shape.tied else shapes | {"lm_head.weight": head}
