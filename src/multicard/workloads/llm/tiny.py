"""A small model of random weights and its tokenizer, created the same byte for byte each time, without a download."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from multicard.core.errors import UserError
from multicard.core.files import atomic_write, write_json
from multicard.experiment.models import Architecture
from multicard.workloads.llm.vocabulary import train_vocabulary, write_vocabulary
from multicard.workloads.llm.weights import ONE_FILE, tensor_shapes

SEED = 20250315
DEVIATION = 0.02  # as Llama's weights are initialized
TOKENIZER = "tokenizer.model"
SPECIAL_TOKENS_FILE = "special_tokens.json"
# The names that torchtune asks for are Llama 3's; the rest fills up to 16.
SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
    "<|video|>",
    "<|reserved_special_token_2|>",
    "<|reserved_special_token_3|>",
    "<|reserved_special_token_4|>",
)


def make_tiny(folder: Path, shape: Architecture, resources: Path) -> list[Path]:
    """Make a checkpoint in Hugging Face's form, and a tokenizer trained on the shipped texts; the files in order.

    Raises
    ------
    UserError
        If the texts are missing or too few for the vocabulary.
    """
    base = shape.vocabulary - len(SPECIAL_TOKENS)
    tokens = train_vocabulary(_shipped_texts(resources / "text"), base)
    # Invented tokens would fill the gap, but then the texts are not the ones that were shipped.
    if len(tokens) < base:
        raise UserError(
            f"{resources / 'text'}: found texts for {len(tokens)} tokens, expected enough to train {base} of them"
        )
    config, weights = folder / "config.json", folder / ONE_FILE
    write_json(config, config_of(shape, base))
    with atomic_write(weights) as temporary:
        # `save_file` would make the file private.
        temporary.write_bytes(save(random_weights(shape), metadata={"format": "pt"}))
    write_vocabulary(folder / TOKENIZER, tokens)
    special = [{"id": base + i, "content": name} for i, name in enumerate(SPECIAL_TOKENS)]
    write_json(folder / SPECIAL_TOKENS_FILE, {"added_tokens": special})
    return [config, weights, folder / TOKENIZER, folder / SPECIAL_TOKENS_FILE]


def _shipped_texts(folder: Path) -> Iterator[str]:
    """Every string of every sample, file by file in the order of their names."""
    for file in sorted(folder.glob("*.jsonl"), key=lambda file: file.name):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield from _strings(json.loads(line))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def config_of(shape: Architecture, base: int) -> dict[str, Any]:
    """Contents of config.json; `base` counts the tokens below the special ones."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **shape.config,
        "rope_theta": shape.rope_base,
        "rms_norm_eps": shape.norm_epsilon,
        "torch_dtype": "bfloat16",
        "bos_token_id": base + SPECIAL_TOKENS.index("<|begin_of_text|>"),
        "eos_token_id": base + SPECIAL_TOKENS.index("<|end_of_text|>"),
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
