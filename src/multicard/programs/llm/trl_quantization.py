"""Quantization-aware training by TRL: linear layers that round their inputs and weights, made by torchao."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig


def round_linears(model: Any, group_size: int, names: Collection[str] | None) -> None:
    """Replace linear layers of a Llama model by layers that round each input to 8 bits and each weight to 4 bits.

    The ranges are those of torchtune's `Int8DynActInt4WeightQATQuantizer`: that of an input fits each token, that of
    weights is symmetric and fits each group of weights in a row.

    Parameters
    ----------
    group_size
        Number of weights in a group; divides the width of each layer.
    names
        Names of the layers within their module, such as "q_proj". None: all linear layers, with the output layer unless
        it uses the weights of the embedding, which are not rounded.
    """
    inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    int4 = torch.int4  # type: ignore[attr-defined]  # PyTorch's stubs lack it
    weights = IntxFakeQuantizeConfig(int4, group_size=group_size, is_symmetric=True)

    def is_rounded(module: nn.Module, path: str) -> bool:
        if not isinstance(module, nn.Linear):
            return False
        if names is not None:
            return path.rpartition(".")[2] in names
        return module is not model.lm_head or not model.config.tie_word_embeddings

    quantize_(model, QATConfig(activation_config=inputs, weight_config=weights, step="prepare"), is_rounded)
