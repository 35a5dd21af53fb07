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

# A cuBLAS handle's workspace, by compute capability, as PyTorch 2.11 chooses it (parseChosenWorkspaceSize in
# ATen/cuda/CublasHandlePool.cpp; later versions choose the larger one on Blackwell, too).
WORKSPACES = {"9.0": 32 * 2**20}
OTHER_WORKSPACE = 2 * 4096 * 2**10 + 8 * 16 * 2**10

# torchtune's Llama 3 gives every adapted layer its own table of rotary positions; its Llama 3.1 and later, whose
# sequences are longer than this, share one.
OWN_TABLES_UP_TO = 8192


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device, at the moment of a step when it holds most.

    Attributes
    ----------
    weights
        The model's own weights.
    adapters
        LoRA's weights beside them.
    gradients, optimizer
        Of what is trained.
    buffers
        Tables of rotary positions.
    activations
        All else at that moment: what is kept for the backward pass, what is in use, what FSDP has gathered, workspaces;
        less the gradients that do not exist yet at that moment, so that the parts add up.
    """

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int

    @property
    def total(self) -> int:
        """The most that PyTorch has allocated at once; the CUDA context and NCCL take more, outside its count."""
        return self.weights + self.adapters + self.gradients + self.optimizer + self.buffers + self.activations


def workspaces_bytes(capability: str | None) -> int:
    """Of cuBLAS in a training process: PyTorch takes one for the forward pass' thread and one for the backward pass'.

    It counts them as its own memory. `capability` is the GPU's, such as "9.0"; where it is not known yet they are taken
    to be the largest.
    """
    largest = max(WORKSPACES.values())
    return 2 * (largest if capability is None else WORKSPACES.get(capability, OTHER_WORKSPACE))


def estimate_memory(p: LlmParameters, shape: Architecture, capability: str | None = None) -> Memory:
    """Estimate the memory of one device of a job as torchtune 0.6.1's stock recipes run it.

    Weights, adapters, gradients, optimizer and buffers are exact. Under torchrun FSDP2 divides every tensor by its
    first dimension (torch.distributed.fsdp.fully_shard) and rank 0 holds the largest part, which is given. Gradients
    have the precision of their weights, as has the state of AdamW: two moments of each weight, and a count of 4 bytes
    for each tensor. Under qlora the layers' linear weights lie in NF4 (arXiv 2305.14314; torchao's NF4Tensor): 4 bits
    each, 8 bits of scale for 64 of them, and for 256 scales one of their own in the job's precision. The reference of
    DPO is the same model without its adapters. Sequences are taken as full: padding counts. `capability`: as of
    `workspaces_bytes`.
    """
    job = _Job(p, shape)
    gradients = job.share(job.trained)
    return Memory(
        weights=job.weights(),
        adapters=job.share(job.adapters),
        gradients=gradients,
        optimizer=2 * gradients + 4 * len(job.trained),
        buffers=job.buffers(),
        activations=job.peak(gradients) - gradients + (workspaces_bytes(capability) if p.device == "cuda" else 0),
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
        self.logits = self.tokens * shape.vocabulary  # their number

        head = (shape.vocabulary, shape.embedding)
        self.linears = list(shape.linear_shapes.values())
        self.layer = [*self.linears, (shape.embedding,), (shape.embedding,)]
        self.root = [head, (shape.embedding,)] if shape.tied else [head, head, (shape.embedding,)]
        adapted = [shape.linear_shapes[name] for name in ADAPTED_LINEARS]
        self.adapted = adapted if p.trains_adapters else []
        self.layer_adapters = [
            part for rows, columns in self.adapted for part in self.technique.adapter_shapes(rows, columns, p.lora_rank)
        ]
        self.adapters = shape.layers * self.layer_adapters
        self.trained = self.adapters or shape.layers * self.layer + self.root
        # Linear layers that QAT quantizes: of the adapted kind those with adapters, else all; a tied output is none.
        self.quantized = (self.adapted or self.linears) if self.technique.fake_quantization else []
        quantizes_head = self.quantized and not p.trains_adapters and not shape.tied
        self.quantized_head = math.prod(head) if quantizes_head else 0  # weights
        self.head = math.prod(head) * self.size

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

        The moments are the end of the loss, the beginning of the backward pass, its last layer, its first, and its end.
        Gradients exist from the beginning only where several batches make one step.
        """
        of_layer = self.kept_of_layer()
        before = gradients if self.p.gradient_accumulation_steps > 1 else 0
        before += self.scales() + self.shape.layers * (self.stream if self.p.activation_checkpointing else of_layer)
        working = self.in_use() + self.gathered()
        again = of_layer if self.p.activation_checkpointing else 0  # computed again, one layer at a time
        return max(
            before + self.kept_of_head() + max(self.loss(), self.begin()),
            before + again + working + self.fresh(),
            gradients + (self.stream if self.p.activation_checkpointing else 0) + of_layer + working + self.undivided(),
            gradients + self.end(),
        )

    def kept_of_layer(self) -> int:
        """What autograd keeps of one decoder layer for its backward pass.

        Norms keep their input in fp32, and to train their scale also what it scales, in fp32; where all is fp32 one
        kernel does without the latter. Linear layers keep their input. Attention keeps queries, keys and values, the
        latter two repeated for every head, its output, and of its scores (flash attention) one number per row. The
        feed-forward layer keeps the gate before and after its activation, and what it multiplies. Packed sequences have
        cosines and sines for the position of every token, for queries and for keys. Compiled, norms and activation are
        computed again from their inputs.

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
            per_token += 2 * self.kept_of_norm() + (2 * FLOAT * s.embedding // s.heads if p.packed else 0)
        if not self.quantized:
            return self.tokens * (per_token + inputs)
        columns = sum(columns for _, columns in self.quantized)
        weights = sum(rows * columns for rows, columns in self.quantized)
        if p.trains_adapters:
            return self.tokens * (per_token + inputs + FLOAT * columns) + size * weights
        return self.tokens * (per_token + (FLOAT + size) * columns) + (FLOAT + size) * weights

    def kept_of_norm(self) -> int:
        """What a norm keeps of a token."""
        return FLOAT * self.shape.embedding * (1 if self.p.trains_adapters or self.size == FLOAT else 2)

    def kept_of_head(self) -> int:
        """What the last norm and the output layer keep; full qat quantizes the output again for every chunk."""
        kept = self.tokens * self.kept_of_norm() + (0 if self.p.trains_adapters else self.stream)
        if self.quantized_head:
            kept += FLOAT * self.tokens * self.shape.embedding
            kept += LOSS_CHUNKS * (FLOAT + self.size) * self.quantized_head
        return kept

    def loss(self) -> int:
        """The end of the loss.

        Cross-entropy has all logits, all log-probabilities in fp32 and, of one chunk, logits in fp32; compiled, the
        logits alone. DPO has five times all logits in fp32: log-probabilities of the policy; logits, scaled logits and
        log-probabilities of the reference; and logits of the step before, which the recipe's `_` still names.
        """
        if self.technique.pairs:
            return 5 * FLOAT * self.logits
        loss = self.size * self.logits
        if not self.compiled:
            loss += FLOAT * self.logits + (FLOAT * self.logits // LOSS_CHUNKS if self.size < FLOAT else 0)
        return max(loss, self.size * self.logits + self.quantizing(self.quantized_head))

    def begin(self) -> int:
        """The beginning of the backward pass: gradients of all logits while the head goes backward.

        To train it, its gradient is summed up from those of chunks. FSDP gathers the root, by a buffer of its size, and
        then the last layer into a buffer.
        """
        root = self.whole(self.root) if self.p.distributed else 0
        gradient = self.size * self.logits
        if self.technique.pairs:
            return 3 * FLOAT * self.logits + 2 * root
        if self.p.trains_adapters:
            return gradient + min(2, self.ranks) * root
        gathered = root + (self.whole(self.layer) if self.ranks > 1 else 0)
        used = gradient // LOSS_CHUNKS
        return gradient - used + 2 * self.head + gathered + FLOAT * self.quantized_head

    def in_use(self) -> int:
        """What the backward pass of one layer uses beside what it keeps: gradients round the feed-forward layer.

        torchao takes a weight out of NF4 by way of two indices of 8 bytes per byte, two values, two scaled values and
        the result (NF4Tensor.get_original_weight).
        """
        largest = max(rows * columns for rows, columns in self.linears)
        gradients = 2 * self.size * self.tokens * (self.shape.feed_forward + self.shape.embedding)
        if self.technique.nf4:
            return max(gradients, (8 + 3 * self.size) * largest + 2 * self.stream)
        if self.quantized:
            return max(gradients, self.quantizing(max(largest, self.tokens * self.shape.feed_forward)))
        return gradients

    def quantizing(self, numbers: int) -> int:
        """What fake quantization uses on its way: clamped, shifted and scaled back."""
        return (2 * FLOAT + self.size) * numbers

    def scales(self) -> int:
        """Scales and zero points that fake quantizers hold between steps: of groups of weights, and of tokens."""
        groups = sum(rows * columns for rows, columns in self.quantized) // self.p.qat_group
        return self.shape.layers * 2 * FLOAT * (groups + len(self.quantized) * self.tokens)

    def gathered(self) -> int:
        """What FSDP has gathered while a layer goes backward: the root, the layer, and in a buffer the next one."""
        if not self.p.distributed:
            return 0
        return self.whole(self.root) + min(2, self.ranks) * self.whole(self.layer + self.layer_adapters)

    def fresh(self) -> int:
        """Gradients of the output and of a layer."""
        return 0 if self.p.trains_adapters else self.head + self.whole(self.layer)

    def undivided(self) -> int:
        """What gradients take more than divided ones while FSDP has those of the root and of a layer, and a copy."""
        if self.p.trains_adapters or not self.p.distributed:
            return 0
        return self.fresh() + self.whole(self.layer) - self.share(self.root + self.layer)

    def end(self) -> int:
        """The end of the backward pass, beside the gradients: that of the embedding is made.

        A tied one is added to that of the output. FSDP has the root and its gradients whole, and a layer's copy.
        """
        if self.p.trains_adapters:
            return 0
        if not self.p.distributed:
            return self.head
        whole = 2 * self.whole(self.root) + self.whole(self.layer) + (self.head if self.shape.tied else 0)
        return whole - self.share(self.root)
