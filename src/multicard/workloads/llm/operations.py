"""Floating-point operations of tuning a language model, by the shapes of its layers. Nothing here imports torch.

Counted are matrix products, a multiplication and an addition as two; attention as if no position were masked, as PaLM
does (Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Lookups, norms, activations, loss and optimizer are left
out, and what quantization computes.
"""

import math
from collections.abc import Mapping
from typing import Any

from multicard.experiment.models import ARCHITECTURES, Architecture
from multicard.experiment.workload import Operations
from multicard.workloads.llm.memory_estimate import ADAPTED_LINEARS
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.technique import TECHNIQUES

FORWARD = 2  # of a weight and token; as many for the gradient of its input, and for that of the weight
INTO_ATTENTION = ("q_proj", "k_proj", "v_proj")
LAST = "w2"  # of a layer


def operations_per_token(p: LlmParameters, shape: Architecture, length: float) -> tuple[float, float]:
    """Those of the forward and backward passes for a token of sequences of a length; and with what is computed again.

    With frozen weights nothing before the first adapter needs a gradient: not the input of the first layer, nor its
    keys. Activation checkpointing computes each layer again, until all that its backward pass needs is there
    (`torch.utils.checkpoint.set_checkpoint_early_stop`): of the layer's last product it needs the input alone.
    """
    technique = TECHNIQUES[p.technique]
    weights = {name: rows * columns for name, (rows, columns) in shape.linear_shapes.items()}
    into, out_of = _adapters(p, shape)
    adapters = sum(into.values()) + sum(out_of.values())
    scores = 2 * FORWARD * length * shape.embedding  # of queries and keys, and of these and values
    base = shape.layers * sum(weights.values()) + shape.vocabulary * shape.embedding

    of_frozen = 2 * FORWARD if p.trains_adapters else 3 * FORWARD
    references = (technique.flop_per_weight(p) - of_frozen) / FORWARD  # forward passes, without adapters
    model = technique.flop_per_weight(p) * base + shape.layers * (3 * FORWARD * adapters + (3 + references) * scores)
    if p.trains_adapters:
        model -= FORWARD * sum(weights[name] + into.get(name, 0) for name in INTO_ATTENTION) + scores / 2
    again = FORWARD * (sum(weights.values()) + adapters - (out_of[LAST] if out_of else weights[LAST])) + scores
    return model, model + (shape.layers * again if p.activation_checkpointing else 0)


def _adapters(p: LlmParameters, shape: Architecture) -> tuple[dict[str, int], dict[str, int]]:
    """Weights of the two matrices of each adapter, by its layer; none where all weights are trained."""
    if not p.trains_adapters:
        return {}, {}
    of_layer = {
        name: TECHNIQUES[p.technique].adapter_shapes(*shape.linear_shapes[name], p.lora_rank)
        for name in ADAPTED_LINEARS
    }
    first, second = ({name: math.prod(each[index]) for name, each in of_layer.items()} for index in (0, 1))
    return first, second


def operations(record: Mapping[str, Any], steps: Any) -> Operations:
    """Of a device in a step, by the tokens that it computes, padding included.

    Where several batches make a step their sequences are taken to be equally long, which is the least that attention
    can take.
    """
    p, shape = LlmParameters.model_validate(record["parameters"]), ARCHITECTURES[record["model"]["architecture"]]
    sequences = p.gradient_accumulation_steps * p.batch_size * TECHNIQUES[p.technique].sequences_per_sample
    found = [
        (tokens * model, tokens * hardware)
        for tokens in steps["padded_tokens"]
        for model, hardware in [operations_per_token(p, shape, tokens / sequences)]
    ]
    model, hardware = (sum(each) / len(found) for each in zip(*found, strict=True))
    return Operations(model, hardware, product_precisions(p, record.get("variables")))


def product_precisions(p: LlmParameters, variables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Of weights and arithmetic; PyTorch multiplies fp32 in TF32 if a variable says so, as in NVIDIA's containers."""
    is_tf32 = p.precision == "fp32" and (variables or {}).get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"
    return ("tf32", "fp32") if is_tf32 else (p.precision,)
