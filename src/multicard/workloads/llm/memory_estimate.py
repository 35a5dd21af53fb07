"""Estimates the memory that tuning a language model needs on each device, before anything runs.

What lies in memory between two steps follows from the shapes. What a step needs beside it is counted after Korthikanti
et al. 2022 (arXiv 2205.05198): the tensors that autograd keeps of each layer until the backward pass, per token. Their
formula is of a GPT; here the tensors are those of torchtune's Llama 3 and of the loops of its recipes.
"""

import math
from dataclasses import dataclass

from multicard.experiment.models import Architecture
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.technique import TECHNIQUES

BYTES = {"fp32": 4, "bf16": 2}
FLOAT = 4  # bytes of what is computed in fp32 independent of the job's precision
ADAPTED_LINEARS = ("q_proj", "v_proj", "output_proj", "w1", "w2", "w3")  # as the back end has torchtune adapt them
LOSS_CHUNKS = 8  # of torchtune's CEWithChunkedOutputLoss

# A workspace of cuBLAS, of which the forward pass' thread has one and the backward pass' another, as large as PyTorch
# 2.11 makes it on GPUs of compute capability 9.0 and on others (parseChosenWorkspaceSize in CublasHandlePool.cpp).
HOPPER, HOPPERS_WORKSPACE, OTHER_WORKSPACE = "9.0", 32 * 2**20, 2 * 4096 * 2**10 + 8 * 16 * 2**10

# torchtune's Llama 3 gives every adapted layer its own table of rotary positions; its Llama 3.1 and later, whose
# sequences are longer than this, share one.
OWN_TABLES_UP_TO = 8192


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device, at the moment of a step when it holds most.

    Activations are all else at that moment: what is kept for the backward pass, what is in use, what FSDP has gathered,
    workspaces; less the gradients that do not exist yet at that moment, so that the parts add up.
    """

    weights: int  # the model's own
    adapters: int  # LoRA's weights beside them
    gradients: int
    optimizer: int
    buffers: int  # tables of rotary positions
    activations: int

    @property
    def total(self) -> int:
        """The most that PyTorch has allocated at once; the CUDA context and NCCL take more, outside its count."""
        return self.weights + self.adapters + self.gradients + self.optimizer + self.buffers + self.activations


def estimate_memory(p: LlmParameters, shape: Architecture, capability: str | None = None) -> Memory:
    """Estimate the memory of one device of a job as torchtune 0.6.1's stock recipes run it.

    Weights, adapters, gradients, optimizer and buffers are exact, and activations within a tenth of all. Under torchrun
    FSDP2 divides every tensor by its first dimension and rank 0 holds the largest part, which is given. Gradients have
    the precision of their weights, as has the state of AdamW: two moments of each weight, and a count of 4 bytes for
    each tensor. Under qlora the layers' linear weights lie in NF4 (arXiv 2305.14314; torchao's NF4Tensor): 4 bits each,
    8 bits of scale for 64 of them, and for 256 scales one of their own in the job's precision. The reference of DPO is
    the same model without its adapters. Sequences are taken as full: padding counts. `capability`: of the GPU; where it
    is not known, the larger workspaces are counted.
    """
    job = _Job(p, shape)
    gradients = job.share(job.trained)
    workspace = HOPPERS_WORKSPACE if capability in (None, HOPPER) else OTHER_WORKSPACE
    return Memory(
        weights=job.weights(),
        adapters=job.share(job.adapters),
        gradients=gradients,
        optimizer=2 * gradients + 4 * len(job.trained),
        buffers=job.buffers(),
        activations=job.peak(gradients) - gradients + (2 * workspace if p.device == "cuda" else 0),
    )


class _Job:
    """The tensors of one job; all sizes are in bytes unless their name says otherwise."""

    def __init__(self, p: LlmParameters, shape: Architecture):
        self.p, self.shape = p, shape
        self.size = BYTES[p.precision]
        self.ranks = p.devices if p.distributed else 1
        self.technique = TECHNIQUES[p.technique]
        self.compiled = p.compile and self.technique.compiles(p)
        self.tokens = p.batch_size * p.sequence_length * self.technique.sequences_per_sample
        self.stream = self.tokens * shape.embedding * self.size  # the input of a layer
        # What a norm keeps: its input in fp32, and to train its scale also what that scales, unless all is fp32.
        self.norm = FLOAT * shape.embedding * self.tokens * (1 if p.trains_adapters or self.size == FLOAT else 2)

        head = (shape.vocabulary, shape.embedding)
        self.linears = list(shape.linear_shapes.values())
        self.layer = [*self.linears, (shape.embedding,), (shape.embedding,)]
        self.root = [head, (shape.embedding,)] if shape.tied else [head, head, (shape.embedding,)]
        self.adapted = [shape.linear_shapes[name] for name in ADAPTED_LINEARS] if p.trains_adapters else []
        self.layer_adapters = [
            part for rows, columns in self.adapted for part in self.technique.adapter_shapes(rows, columns, p.lora_rank)
        ]
        self.adapters = shape.layers * self.layer_adapters
        self.trained = self.adapters or shape.layers * self.layer + self.root
        # Linear layers that QAT quantizes: of the adapted kind those with adapters, else all; a tied output is none.
        self.quantized = (self.adapted or self.linears) if self.technique.fake_quantization else []
        self.head = math.prod(head)  # its weights
        self.quantized_head = 0 if p.trains_adapters or shape.tied or not self.quantized else self.head

    def share(self, tensors: list[tuple[int, ...]]) -> int:
        """What rank 0 holds of tensors of these shapes."""
        return self.size * sum(math.ceil(rows / self.ranks) * math.prod(rest) for rows, *rest in tensors)

    def whole(self, tensors: list[tuple[int, ...]]) -> int:
        return self.size * sum(map(math.prod, tensors))

    def weights(self) -> int:
        if not self.technique.nf4:
            return self.share(self.shape.layers * self.layer + self.root)
        norms = self.layer[len(self.linears) :]
        tables = 17 * self.size  # of each weight, on each rank: the 16 values of a code, and the mean of the scales
        linears = sum(self._nf4(math.prod(linear)) // self.ranks + tables for linear in self.linears)
        return self.shape.layers * (linears + self.share(norms)) + self.share(self.root)

    def _nf4(self, weights: int) -> int:
        return weights // 2 + weights // 64 + weights // (64 * 256) * self.size

    def buffers(self) -> int:
        frequencies = self.shape.embedding // self.shape.heads // 2
        tables = self.shape.layers if self.p.trains_adapters and self.shape.max_sequence <= OWN_TABLES_UP_TO else 1
        # A cosine and a sine for each position and frequency, and the frequencies.
        return tables * FLOAT * frequencies * (2 * self.shape.max_sequence + 1)

    def peak(self, gradients: int) -> int:
        """The most that is held at one moment of a step beside weights, optimizer state and buffers.

        The moments are the loss, the backward pass of the last layer, that of the first, and its end. Gradients exist
        from the beginning only where several batches make one step. With activation checkpointing a layer keeps its
        input alone, and one layer at a time is computed again. FSDP has gathered the root, the layer and the next one.
        """
        p, of_layer = self.p, self.kept_of_layer()
        kept, again = (self.stream, of_layer) if p.activation_checkpointing else (of_layer, 0)
        # Scales and zero points that fake quantizers hold between steps: of groups of weights, and of tokens.
        groups = sum(map(math.prod, self.quantized)) // p.qat_group
        kept += 2 * FLOAT * (groups + len(self.quantized) * self.tokens)
        before = (gradients if p.gradient_accumulation_steps > 1 else 0) + self.shape.layers * kept
        root, layer = (self.whole(self.root), self.whole(self.layer)) if p.distributed else (0, 0)
        working = self.in_use() + root + min(2, self.ranks) * layer
        fresh = 0 if p.trains_adapters else self.size * self.head + self.whole(self.layer)  # gradients, not divided yet
        undivided = fresh + layer - self.share(self.root + self.layer) if fresh and p.distributed else 0
        end = 2 * root + layer if p.distributed else fresh
        return max(
            before + self.loss(root),
            before + again + working + fresh,
            gradients + kept + again + working + undivided,
            gradients + (end if fresh else 0),
        )

    def kept_of_layer(self) -> int:
        """What autograd keeps of one decoder layer for its backward pass.

        Linear layers keep their input. Attention keeps queries, keys and values, the latter two repeated for every
        head, its output, and of its scores (flash attention) one number per row. The feed-forward layer keeps the gate
        before and after its activation, and what it multiplies. Packed sequences have cosines and sines for the
        position of every token, for queries and for keys. Compiled, norms and activation are computed again.

        Fake quantization under qat keeps what it clamps, in fp32, of every quantized layer's input and, to train it, of
        its weight; and it makes another weight and, where that is trained, another input for the linear layer to keep.
        """
        p, s, size = self.p, self.shape, self.size
        inputs = size * (2 * s.embedding + s.feed_forward)  # into attention, into the gate, out of it
        per_token = 4 * size * s.embedding + FLOAT * s.heads + 3 * size * s.feed_forward
        per_token += size * p.lora_rank * len(self.adapted)
        if self.compiled:
            per_token += size * (2 * s.embedding - s.feed_forward)
        else:
            per_token += 2 * self.norm // self.tokens + (2 * FLOAT * s.embedding // s.heads if p.packed else 0)
        if not self.quantized:
            return self.tokens * (per_token + inputs)
        columns = sum(columns for _, columns in self.quantized)
        weights = sum(rows * columns for rows, columns in self.quantized)
        if p.trains_adapters:
            return self.tokens * (per_token + inputs + FLOAT * columns) + size * weights
        return self.tokens * (per_token + (FLOAT + size) * columns) + (FLOAT + size) * weights

    def loss(self, root: int) -> int:
        """The last norm, the output layer, and the loss or the gradient of its logits.

        Cross-entropy has all logits and, not compiled, all log-probabilities in fp32 and those of one chunk. DPO has
        five times all logits in fp32: log-probabilities of the policy; logits, scaled logits and log-probabilities of
        the reference; and logits of the step before, which the recipe's `_` still names. Full qat quantizes the output
        again for every chunk.
        """
        logits, numbers = self.size * self.tokens * self.shape.vocabulary, self.tokens * self.shape.vocabulary
        if self.technique.pairs:
            return self.norm + max(5 * FLOAT * numbers, 3 * FLOAT * numbers + 2 * root)
        chunk = FLOAT * numbers // LOSS_CHUNKS if self.size < FLOAT else 0
        loss = logits if self.compiled else logits + FLOAT * numbers + chunk
        if self.p.trains_adapters:
            return self.norm + max(loss, logits + min(2, self.ranks) * root)
        kept = self.norm + self.stream
        if self.quantized_head:
            kept += FLOAT * self.tokens * self.shape.embedding
            kept += LOSS_CHUNKS * (FLOAT + self.size) * self.quantized_head
        return kept + max(loss, logits + 2 * self.size * self.head + root)

    def in_use(self) -> int:
        """What the backward pass of one layer uses beside what it keeps: gradients round the feed-forward layer.

        torchao takes a weight out of NF4 by way of two indices of 8 bytes per byte, two values, two scaled values and
        the result (NF4Tensor.get_original_weight). Fake quantization clamps, shifts and scales back.
        """
        largest = max(map(math.prod, self.linears))
        gradients = 2 * self.size * self.tokens * (self.shape.feed_forward + self.shape.embedding)
        if self.technique.nf4:
            return max(gradients, (8 + 3 * self.size) * largest + 2 * self.stream)
        if self.quantized:
            largest = max(largest, self.tokens * self.shape.feed_forward)
            return max(gradients, (2 * FLOAT + self.size) * largest)
        return gradients
