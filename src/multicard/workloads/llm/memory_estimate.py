"""Estimates the memory that tuning a language model needs on each device, before anything runs.

What lies in memory between two steps follows from the shapes. What a step needs beside it is counted after Korthikanti
et al. 2022 (arXiv 2205.05198), of the tensors of torchtune's Llama 3 and of the loops of its recipes.
"""

import math
from dataclasses import astuple, dataclass

from multicard.experiment.models import Architecture
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.technique import TECHNIQUES

BYTES = {"fp32": 4, "bf16": 2}
FLOAT = 4  # bytes of what is computed in fp32 independent of the job's precision
ADAPTED_LINEARS = ("q_proj", "v_proj", "output_proj", "w1", "w2", "w3")  # as the back end has torchtune adapt them
LOSS_CHUNKS = 8  # of torchtune's CEWithChunkedOutputLoss
WORKSPACES = 2 * 32 * 2**20  # of cuBLAS in PyTorch 2.11, of two threads, on compute capability 9.0; else 16 MB in all
# Longest sequences of torchtune's models that give every adapted layer its own table of rotary positions (Llama 3).
OWN_TABLES_UP_TO = 8192


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device, at the moment of a step when it holds most."""

    weights: int  # the model's own
    adapters: int  # LoRA's weights beside them
    gradients: int
    optimizer: int
    buffers: int  # tables of rotary positions
    activations: int  # all else at that moment, less the gradients that do not exist yet, so that the parts add up

    @property
    def total(self) -> int:
        """The most that PyTorch has allocated at once; the CUDA context and NCCL take more, outside its count."""
        return sum(astuple(self))


def estimate_memory(p: LlmParameters, shape: Architecture) -> Memory:
    """Estimate the memory of one device of a job as torchtune 0.6.1's stock recipes run it.

    Weights, adapters, gradients, optimizer and buffers are exact, and the total within a tenth of what is allocated.
    Gradients have the precision of their weights, as has the state of AdamW: two moments of each weight, and a count of
    4 bytes for each tensor. The reference of DPO is the same model without its adapters. Sequences are taken as full.
    """
    job = _Job(p, shape)
    gradients = job.share(job.trained)
    activations = job.peak(gradients) - gradients + (WORKSPACES if p.device == "cuda" else 0)
    optimizer = 2 * gradients + 4 * len(job.trained)
    return Memory(job.weights(), job.share(job.adapters), gradients, optimizer, job.buffers(), activations)


class _Job:
    """The tensors of one job; all sizes are in bytes unless their name says otherwise."""

    def __init__(self, p: LlmParameters, shape: Architecture):
        self.p, self.shape, self.technique = p, shape, TECHNIQUES[p.technique]
        self.size, self.ranks = BYTES[p.precision], p.devices if p.distributed else 1
        self.compiled = p.compile and self.technique.compiles(p)
        self.tokens = p.batch_size * p.sequence_length * self.technique.sequences_per_sample
        self.stream = self.tokens * shape.embedding * self.size  # the input of a layer
        # What a norm keeps: its input in fp32, and to train its scale also what that scales, unless all is fp32.
        self.norm = FLOAT * shape.embedding * self.tokens * (1 if p.trains_adapters or self.size == FLOAT else 2)
        norm, head = (shape.embedding,), (shape.vocabulary, shape.embedding)
        self.norms, self.linears = [norm, norm], list(shape.linear_shapes.values())
        self.layer, self.root = self.linears + self.norms, [head, norm] if shape.tied else [head, head, norm]
        self.adapted = [shape.linear_shapes[name] for name in ADAPTED_LINEARS] if p.trains_adapters else []
        parts = (self.technique.adapter_shapes(*linear, p.lora_rank) for linear in self.adapted)
        self.adapters = shape.layers * [part for of_linear in parts for part in of_linear]
        self.trained = self.adapters or shape.layers * self.layer + self.root
        # Linear layers that QAT quantizes: of the adapted kind those with adapters, else all; a tied output is none.
        self.quantized = (self.adapted or self.linears) if self.technique.fake_quantization else []
        self.head = math.prod(head)

    def share(self, tensors: list[tuple[int, ...]], ranks: int | None = None) -> int:
        """What rank 0 holds of tensors, of which FSDP2 divides the first dimension; it has the largest part."""
        return self.size * sum(math.ceil(rows / (ranks or self.ranks)) * math.prod(rest) for rows, *rest in tensors)

    def weights(self) -> int:
        # In NF4 (arXiv 2305.14314; torchao's NF4Tensor) 4 bits each, 8 bits of scale for 64 of them, for 256 scales
        # another one; and of each tensor a table of 16 values and the mean of the scales.
        linears = self.share(self.linears)
        if self.technique.nf4:
            numbers = map(math.prod, self.linears)
            linears = sum((n // 2 + n // 64 + n // 16384 * self.size) // self.ranks + 17 * self.size for n in numbers)
        return self.shape.layers * (linears + self.share(self.norms)) + self.share(self.root)

    def buffers(self) -> int:
        """A cosine and a sine for each position and frequency, and the frequencies."""
        tables = self.shape.layers if self.p.trains_adapters and self.shape.max_sequence <= OWN_TABLES_UP_TO else 1
        return tables * FLOAT * (self.shape.embedding // self.shape.heads // 2) * (2 * self.shape.max_sequence + 1)

    def peak(self, gradients: int) -> int:
        """The most that is held at one moment of a step beside weights, optimizer state and buffers.

        The moments are the loss and the backward passes of the last layer and of the first. Gradients exist from the
        beginning only where several batches make one step. With activation checkpointing a layer keeps its input, and
        one at a time is computed again. FSDP has gathered the root, the layer and the next one.
        """
        p, of_layer = self.p, self.kept_of_layer()
        kept, again = (self.stream, of_layer) if p.activation_checkpointing else (of_layer, 0)
        before = (gradients if p.gradient_accumulation_steps > 1 else 0) + self.shape.layers * kept
        root, layer = (self.share(each, 1) if p.distributed else 0 for each in (self.root, self.layer))
        working = again + self.in_use() + root + min(2, self.ranks) * layer
        # Gradients that are not divided yet.
        fresh = 0 if p.trains_adapters else self.size * self.head + self.share(self.layer, 1)
        return max(before + self.loss(root), before + working + fresh, gradients + kept + working)

    def kept_of_layer(self) -> int:
        """What autograd keeps of one decoder layer for its backward pass.

        Linear layers keep their input; attention queries, keys and values, repeated for every head, its output, and one
        number per row of its scores; the feed-forward layer the gate before and after its activation, and what it
        multiplies. Packed sequences have cosines and sines for queries and keys of every token. Compiled, norms and
        activation are computed again. Fake quantization keeps what it clamps, in fp32, of every quantized layer's input
        and, to train it, of its weight; and it makes another weight and, where that is trained, another input to keep.
        """
        p, s, size = self.p, self.shape, self.size
        inputs = size * (2 * s.embedding + s.feed_forward)
        per_token = size * (4 * s.embedding + 3 * s.feed_forward + p.lora_rank * len(self.adapted)) + FLOAT * s.heads
        if self.compiled:
            per_token += size * (2 * s.embedding - s.feed_forward)
        else:
            per_token += 2 * self.norm // self.tokens + (2 * FLOAT * s.embedding // s.heads if p.packed else 0)
        columns, weights = sum(columns for _, columns in self.quantized), sum(map(math.prod, self.quantized))
        if self.quantized and not p.trains_adapters:
            return self.tokens * (per_token + (FLOAT + size) * columns) + (FLOAT + size) * weights
        return self.tokens * (per_token + inputs + FLOAT * columns) + size * weights

    def loss(self, root: int) -> int:
        """The last norm, the output layer, and the loss or the gradient of its logits.

        Cross-entropy has all logits and, not compiled, all log-probabilities in fp32 and those of one chunk. DPO has
        five times all logits in fp32: log-probabilities of the policy; logits, scaled logits and log-probabilities of
        the reference; and logits of the step before. Full qat quantizes an output again for every chunk.
        """
        logits, floats = (bytes_ * self.tokens * self.shape.vocabulary for bytes_ in (self.size, FLOAT))
        if self.technique.pairs:
            return self.norm + 5 * floats
        loss = logits if self.compiled else logits + floats + floats // LOSS_CHUNKS
        if self.p.trains_adapters:
            return self.norm + max(loss, logits + min(2, self.ranks) * root)
        kept = self.norm + self.stream
        if self.quantized and not self.shape.tied:
            kept += FLOAT * self.tokens * self.shape.embedding + LOSS_CHUNKS * (FLOAT + self.size) * self.head
        return kept + max(loss, logits + 2 * self.size * self.head + root)

    def in_use(self) -> int:
        """What the backward pass of one layer uses beside what it keeps: gradients round the feed-forward layer."""
        largest = max(map(math.prod, self.linears))
        in_use = 2 * self.size * self.tokens * (self.shape.feed_forward + self.shape.embedding)
        if self.technique.nf4:
            # By way of two indices of 8 bytes per byte, two values, two scaled values and the result.
            in_use = max(in_use, (8 + 3 * self.size) * largest + 2 * self.stream)
        if self.quantized:  # clamps, shifts and scales back
            in_use = max(in_use, (2 * FLOAT + self.size) * max(largest, self.tokens * self.shape.feed_forward))
        return in_use
