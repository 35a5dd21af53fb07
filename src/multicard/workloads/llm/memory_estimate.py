"""Estimates the memory that tuning a language model needs on each device, before anything runs.

What a step needs is counted after Korthikanti et al. 2022 (arXiv 2205.05198), from torchtune's Llama 3 and its recipes.
"""

import math
from dataclasses import astuple, dataclass

from multicard.experiment.models import Architecture
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.techniques import TECHNIQUES

BYTES = {"fp32": 4, "bf16": 2}
FLOAT = 4  # bytes of what is computed in fp32 independent of the job's precision
ADAPTED_LINEARS = ("q_proj", "v_proj", "output_proj", "w1", "w2", "w3")  # as the back end has torchtune adapt them
LOSS_CHUNKS = 8  # of torchtune's CEWithChunkedOutputLoss
# Of cuBLAS for two threads, on GPUs of compute capability 9.0 and others (PyTorch 2.11, CublasHandlePool.cpp).
WORKSPACES, OTHER_WORKSPACES = 2 * 32 * 2**20, 2 * (2 * 4096 + 8 * 16) * 2**10
OWN_TABLES_UP_TO = 8192  # sequences of torchtune's models whose adapted layers have tables of positions of their own


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


def estimate_memory(p: LlmParameters, shape: Architecture, capability: str | None = None) -> Memory:
    """Estimate the memory of one device of a job as torchtune 0.6.1's stock recipes run it.

    Weights, adapters, gradients, optimizer (AdamW: two moments of each weight, 4 bytes for each tensor) and buffers are
    exact, and the total within a tenth of what is allocated. Sequences count as full. `capability`: that of the GPU.
    """
    job = _Job(p, shape)
    gradients, optimizer = job.share(job.trained), 2 * job.share(job.trained) + 4 * len(job.trained)
    workspaces = WORKSPACES if capability in (None, "9.0") else OTHER_WORKSPACES
    activations = job.peak(gradients) - gradients + (workspaces if p.device == "cuda" else 0)
    return Memory(job.weights(), job.share(job.adapters), gradients, optimizer, job.buffers(), activations)


class _Job:
    """The tensors of one job; all sizes are in bytes unless their name says otherwise."""

    def __init__(self, p: LlmParameters, shape: Architecture):
        self.p, self.shape, self.technique = p, shape, TECHNIQUES[p.technique]
        self.size, self.ranks = BYTES[p.precision], p.devices if p.distributed else 1
        self.compiled = p.compile and self.technique.compiles(p)
        self.tokens = p.batch_size * p.sequence_length * self.technique.sequences_per_sample
        self.stream = self.tokens * shape.embedding * self.size  # the input of a layer
        # A norm keeps its input in fp32, and to train its scale also what that scales, unless all is fp32.
        self.norm = FLOAT * shape.embedding * self.tokens * (1 if p.trains_adapters or self.size == FLOAT else 2)
        norm, head = (shape.embedding,), (shape.vocabulary, shape.embedding)
        self.linears = list(shape.linear_shapes.values())
        self.layer, self.root = [*self.linears, norm, norm], [head, norm] if shape.tied else [head, head, norm]
        self.adapted = [shape.linear_shapes[name] for name in ADAPTED_LINEARS] if p.trains_adapters else []
        parts = (self.technique.adapter_shapes(*linear, p.lora_rank) for linear in self.adapted)
        self.adapters = shape.layers * [part for of_linear in parts for part in of_linear]
        self.head, self.trained = math.prod(head), self.adapters or shape.layers * self.layer + self.root
        # Linear layers that QAT quantizes: of the adapted kind those with adapters, else all; a tied output is none.
        self.quantized = (self.adapted or self.linears) if self.technique.fake_quantization else []

    def share(self, tensors: list[tuple[int, ...]], ranks: int | None = None) -> int:
        """What rank 0 holds of tensors, of which FSDP2 divides the first dimension; it has the largest part."""
        return self.size * sum(math.ceil(rows / (ranks or self.ranks)) * math.prod(rest) for rows, *rest in tensors)

    def weights(self) -> int:
        if not self.technique.nf4:
            return self.share(self.shape.layers * self.layer + self.root)
        # NF4 (arXiv 2305.14314, torchao's NF4Tensor) takes 4 bits each, 8 bits of scale for 64 of them, for 256 scales
        # another one; and for each tensor a table of 16 values and the mean of the scales.
        parts = (n // 2 + n // 64 + n // 16384 * self.size for n in map(math.prod, self.linears))
        linears = sum(part // self.ranks + 17 * self.size for part in parts)
        return self.shape.layers * (linears + self.share(2 * [(self.shape.embedding,)])) + self.share(self.root)

    def buffers(self) -> int:
        """A cosine and a sine for each position and frequency, and the frequencies."""
        tables = self.shape.layers if self.p.trains_adapters and self.shape.max_sequence <= OWN_TABLES_UP_TO else 1
        return tables * FLOAT * (self.shape.embedding // self.shape.heads // 2) * (2 * self.shape.max_sequence + 1)

    def peak(self, gradients: int) -> int:
        """The most that is held at one moment of a step beside weights, optimizer state and buffers.

        That is in the loss, or in the backward pass of the last layer or of the first. Gradients exist before that
        only where several batches make a step. With activation checkpointing a layer keeps its input, and one at a time
        is computed again. FSDP has gathered the root, the layer and the next one.
        """
        p, of_layer = self.p, self.kept_of_layer()
        kept, again = (self.stream, of_layer) if p.activation_checkpointing else (of_layer, 0)
        before = (gradients if p.gradient_accumulation_steps > 1 else 0) + self.shape.layers * kept
        root, layer = (self.share(each, 1) if p.distributed else 0 for each in (self.root, self.layer))
        working = again + self.in_use() + root + min(2, self.ranks) * layer
        fresh = 0 if p.trains_adapters else self.size * self.head + self.share(self.layer, 1)  # not divided yet
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
        per_token = size * (4 * s.embedding + 3 * s.feed_forward + p.lora_rank * len(self.adapted)) + FLOAT * s.heads
        per_token += size * (2 * s.embedding - s.feed_forward) if self.compiled else 2 * self.norm // self.tokens
        per_token += 2 * FLOAT * s.embedding // s.heads if p.packed and not self.compiled else 0
        columns, weights = sum(columns for _, columns in self.quantized), sum(map(math.prod, self.quantized))
        if self.quantized and not p.trains_adapters:
            return self.tokens * (per_token + (FLOAT + size) * columns) + (FLOAT + size) * weights
        per_token += size * (2 * s.embedding + s.feed_forward)
        return self.tokens * (per_token + FLOAT * columns) + size * weights

    def loss(self, root: int) -> int:
        """The last norm, the output layer, and the loss or the gradient of its logits.

        Cross-entropy has all logits and, not compiled, log-probabilities in fp32 of all and of one chunk. DPO has five
        in fp32: log-probabilities of the policy, logits, scaled logits and log-probabilities of the reference, and
        logits of the step before. Full qat quantizes an output again for every chunk.
        """
        logits, floats = (bytes_ * self.tokens * self.shape.vocabulary for bytes_ in (self.size, FLOAT))
        if self.technique.pairs:
            return self.norm + max(5 * floats, 3 * floats + 2 * root)
        loss = logits if self.compiled else logits + floats + floats // LOSS_CHUNKS
        if self.p.trains_adapters:
            return self.norm + max(loss, logits + min(2, self.ranks) * root)
        kept = self.norm + self.stream
        if self.quantized and not self.shape.tied:
            kept += FLOAT * self.tokens * self.shape.embedding + LOSS_CHUNKS * (FLOAT + self.size) * self.head
        return kept + max(loss, logits + 2 * self.size * self.head + root)

    def in_use(self) -> int:
        """What the backward pass of one layer uses beside what it keeps: gradients round the feed-forward layer."""
        largest, wide = max(map(math.prod, self.linears)), self.tokens * self.shape.feed_forward
        gradients = 2 * (self.size * wide + self.stream)
        # Out of NF4 by way of two indices of 8 bytes per byte, two values, two scaled values and the result.
        unpacked = (8 + 3 * self.size) * largest + 2 * self.stream if self.technique.nf4 else 0
        rounded = (2 * FLOAT + self.size) * max(largest, wide) if self.quantized else 0  # clamped, shifted, scaled back
        return max(gradients, unpacked, rounded)
