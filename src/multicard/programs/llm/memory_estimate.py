"""Estimate the memory that tuning a language model needs on each device, before anything runs.

At any moment a device holds its share of the weights, of LoRA's adapters and of the optimizer's state, and tables of
positions. A step adds activations and gradients. Their sum is largest at one of three moments (`_Job.peak`):

    peak = max(activations of all layers + what the loss needs,
               activations of all layers + what the backward pass of the last layer needs,
               gradients + activations of one layer + what the backward pass of the first layer needs)

The activations of a layer are counted as Korthikanti et al. count them ("Reducing Activation Recomputation in Large
Transformer Models", 2022, arXiv 2205.05198, section 4), for the decoder of torchtune 0.6.1's Llama 3 in place of
theirs: grouped queries repeated to all heads, SwiGLU, RMS norms, no dropout, and PyTorch's fused attention, which keeps
no scores. Sharding is that of FSDP2; with a library that shares no model among devices, each device has a whole copy.
All sizes are bytes of one device unless a name says otherwise. `tokens` is the number of tokens in a device's batch, so
an activation of N bytes per token has N × `tokens` bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.library import ADAPTED_LINEARS
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.technique import Technique
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.models import Architecture

Shape = tuple[int, ...]

BYTES = {"fp32": 4, "bf16": 2}
FP32 = 4  # bytes of a value that is computed in fp32, also in jobs of another precision
LOSS_CHUNKS = 8  # number of chunks into which torchtune's CEWithChunkedOutputLoss splits the logits
# Bytes of cuBLAS's workspaces for two threads, on GPUs of compute capability 9.0 and on all other GPUs (PyTorch 2.11,
# aten/src/ATen/cuda/CublasHandlePool.cpp).
CUBLAS_WORKSPACES_9_0 = 2 * 32 * 2**20
CUBLAS_WORKSPACES = 2 * (2 * 4096 + 8 * 16) * 2**10
# In torchtune's models with adapters, each layer has its own table of positions if the model's longest sequence is at
# most so many tokens. Else all layers share one table, as they do in models without adapters.
TABLE_PER_LAYER_UP_TO = 8192


@dataclass(frozen=True)
class Memory:
    """Bytes on the device that holds most, at the moment of a step when it holds most."""

    weights: int  # the model's own weights
    adapters: int  # LoRA's weights
    gradients: int
    optimizer: int
    buffers: int  # tables of rotary positions
    # All else. `gradients` counts all gradients; those that do not exist yet at that moment are subtracted here, so
    # that the parts add up to the total.
    activations: int

    @property
    def total(self) -> int:
        """Bytes that PyTorch has allocated at that moment. It does not count those of the CUDA context and of NCCL."""
        return sum(astuple(self))


def estimate_memory(p: LlmParameters, shape: Architecture, capability: str | None = None) -> Memory:
    """Estimate the memory of one device of a job as torchtune 0.6.1's stock recipes run it.

    Weights, adapters, gradients, optimizer (AdamW: two moments of each weight, and 4 bytes of step count for each
    tensor) and buffers are exact. The total is within a tenth of what PyTorch allocates. All sequences are assumed to
    have `sequence_length` tokens.

    With other libraries, weights, adapters, gradients and optimizer are exact unless weights lie in NF4. The rest is
    taken as torchtune's, so the total is rough (`Library.estimates_peak`).

    `capability`: compute capability of the GPU, such as "9.0"; None if it is not known, which counts as "9.0".

    An example to check by hand: `tiny` has 2 layers, embeddings of 512, keys and values of 256, a feed-forward layer of
    1024 and 1024 tokens. That makes 2 x (2 359 296 + 2 x 512) weights in layers and 2 x 1024 x 512 + 512 outside, of 2
    bytes each. Adapters of rank 8 have 8 x (inputs + outputs) weights at each of 6 linear layers, 59 392 in a layer.
    Their gradients take as much, their two moments twice as much and 4 bytes for each of 24 tensors. Tables of
    positions have, for each of 2048 positions, sine and cosine of 32 frequencies, and the frequencies, in both layers.

    >>> from multicard.programs.models import ARCHITECTURES
    >>> memory = estimate_memory(LlmParameters(device="cpu", sequence_length=512), ARCHITECTURES["tiny"])
    >>> memory.weights == 2 * (2 * (2_359_296 + 2 * 512) + 2 * 1024 * 512 + 512)
    True
    >>> memory.adapters == memory.gradients == 2 * 2 * 59_392, memory.optimizer == 2 * memory.gradients + 4 * 24
    (True, True)
    >>> memory.buffers == 2 * 4 * (2048 * 2 * 32 + 32)
    True
    """
    job = _Job(p, shape)
    gradients = job.share(job.trained_tensors)
    optimizer = 2 * gradients + 4 * len(job.trained_tensors)
    activations = job.peak(gradients) - gradients
    if p.device == "cuda":
        activations += CUBLAS_WORKSPACES_9_0 if capability in (None, "9.0") else CUBLAS_WORKSPACES
    return Memory(
        weights=job.weights(),
        adapters=job.share(job.adapters),
        gradients=gradients,
        optimizer=optimizer,
        buffers=job.position_tables(),
        activations=activations,
    )


@dataclass(frozen=True)
class _Job:
    """The tensors of one job, and the sizes that follow from their shapes. `estimate_memory` makes one."""

    p: LlmParameters
    shape: Architecture

    # The job.

    @cached_property
    def technique(self) -> Technique:
        return TECHNIQUES[self.p.technique]

    @cached_property
    def bytes_per_value(self) -> int:
        """Bytes of a weight or an activation in the job's precision."""
        return BYTES[self.p.precision]

    @cached_property
    def is_sharded(self) -> bool:
        """True if FSDP shares the model among devices; also true of a single device that FSDP alone drives."""
        return self.p.distributed and LIBRARIES[self.p.library].shares_model

    @cached_property
    def ranks(self) -> int:
        """Number of devices that share the model."""
        return self.p.devices if self.is_sharded else 1

    @cached_property
    def is_compiled(self) -> bool:
        return self.p.compile and LIBRARIES[self.p.library].compiles(self.p)

    @cached_property
    def tokens(self) -> int:
        """Number of tokens in a device's batch, as if all sequences were full."""
        return self.p.batch_size * self.p.sequence_length * self.technique.sequences_per_sample

    # Shapes of weights. The root is what lies outside the decoder layers: embedding, output layer and last norm.

    @cached_property
    def linears(self) -> list[Shape]:
        """Linear layers of one decoder layer."""
        return list(self.shape.linear_shapes.values())

    @cached_property
    def layer_tensors(self) -> list[Shape]:
        norm = (self.shape.embedding,)
        return [*self.linears, norm, norm]

    @cached_property
    def root_tensors(self) -> list[Shape]:
        norm = (self.shape.embedding,)
        output = (self.shape.vocabulary, self.shape.embedding)
        return [output, norm] if self.shape.tied else [output, output, norm]

    @cached_property
    def output_weights(self) -> int:
        """Number of weights of the output layer."""
        return self.shape.vocabulary * self.shape.embedding

    @cached_property
    def adapted(self) -> list[Shape]:
        """Linear layers of one decoder layer that have adapters."""
        return [self.shape.linear_shapes[name] for name in ADAPTED_LINEARS] if self.p.trains_adapters else []

    @cached_property
    def adapters(self) -> list[Shape]:
        """Adapters of all decoder layers."""
        of_layer: list[Shape] = []
        for rows, columns in self.adapted:
            of_layer += self.technique.adapter_shapes(rows, columns, self.p.lora_rank)
        return self.shape.layers * of_layer

    @cached_property
    def trained_tensors(self) -> list[Shape]:
        return self.adapters or self.shape.layers * self.layer_tensors + self.root_tensors

    @cached_property
    def quantized(self) -> list[Shape]:
        """Linear layers of one decoder layer that QAT quantizes: those with adapters where adapters are trained."""
        if not self.technique.fake_quantization:
            return []
        return self.adapted or self.linears

    # What a rank holds.

    def share(self, tensors: Sequence[Shape], ranks: int | None = None) -> int:
        """Return the bytes that rank 0 holds of tensors whose first dimension FSDP2 divides among `ranks`.

        Where the dimension does not divide evenly, rank 0 has the largest part. `ranks` is by default the job's.
        """
        divisor = ranks or self.ranks
        values = (math.ceil(rows / divisor) * math.prod(rest_of_shape) for rows, *rest_of_shape in tensors)
        return self.bytes_per_value * sum(values)

    def weights(self) -> int:
        """Return the bytes of rank 0's share of the model's own weights."""
        layers = self.shape.layers
        root = self.share(self.root_tensors)
        if not self.technique.nf4:
            return layers * self.share(self.layer_tensors) + root
        norms = self.share(2 * [(self.shape.embedding,)])
        return layers * (self._quantized_linears() + norms) + root

    def _quantized_linears(self) -> int:
        """Return the bytes of rank 0's share of a layer's linear weights in NF4.

        A weight takes 4 bits. 64 weights share a scale of 8 bits, and 256 scales share another scale in the job's
        precision. The ranks divide these. In addition, every rank holds a table of 16 values and the mean of the scales
        of each tensor (Dettmers et al. 2023, arXiv 2305.14314; torchao's NF4Tensor).
        """
        total = 0
        for linear in self.linears:
            weights = math.prod(linear)
            divided = weights // 2 + weights // 64 + weights // (64 * 256) * self.bytes_per_value
            total += divided // self.ranks + (16 + 1) * self.bytes_per_value
        return total

    def position_tables(self) -> int:
        """Return the bytes of rotary positions: cosine and sine of each position and frequency, and the frequencies."""
        shape = self.shape
        per_layer = self.p.trains_adapters and shape.max_sequence <= TABLE_PER_LAYER_UP_TO
        tables = shape.layers if per_layer else 1
        frequencies = shape.embedding // shape.heads // 2
        return tables * FP32 * frequencies * (2 * shape.max_sequence + 1)

    # What a step adds.

    def peak(self, gradients: int) -> int:
        """Return the most bytes that a step adds to weights, optimizer state and buffers, gradients included.

        `gradients`: bytes of all gradients. They exist before the backward pass only if a step has several batches.
        """
        kept, recomputed = self.layer_activations(), 0
        if self.p.activation_checkpointing:
            # A layer keeps its input; the rest of one layer at a time is computed again in the backward pass.
            kept, recomputed = self.hidden_states, kept
        # With FSDP a rank has gathered all weights of the root, of the layer that computes, and of the next layer. A
        # single rank (QAT) gathers no next layer.
        gathered_root = self.share(self.root_tensors, ranks=1) if self.is_sharded else 0
        gathered_layer = self.share(self.layer_tensors, ranks=1) if self.is_sharded else 0
        gathered = gathered_root + min(2, self.ranks) * gathered_layer
        backward_of_layer = recomputed + self.backward_temporaries() + gathered

        accumulated = gradients if self.p.gradient_accumulation_steps > 1 else 0
        after_forward = accumulated + self.shape.layers * kept
        # Gradients of the output layer and the last layer, which are not divided among ranks yet.
        first_gradients = 0
        if not self.p.trains_adapters:
            first_gradients = self.bytes_per_value * self.output_weights + self.share(self.layer_tensors, ranks=1)

        at_loss = after_forward + self.loss(gathered_root)
        at_last_layer = after_forward + backward_of_layer + first_gradients
        at_first_layer = gradients + kept + backward_of_layer
        return max(at_loss, at_last_layer, at_first_layer)

    @cached_property
    def hidden_states(self) -> int:
        """Bytes of the input of a layer: an activation as wide as the embedding."""
        return self.tokens * self.shape.embedding * self.bytes_per_value

    @cached_property
    def norm_activations(self) -> int:
        """Bytes that a norm keeps: its input in fp32 and, if its scale is trained, the normed input that it scales.

        In a job of fp32 the two are one tensor.
        """
        is_scale_kept = not self.p.trains_adapters and self.bytes_per_value != FP32
        return self.tokens * FP32 * self.shape.embedding * (2 if is_scale_kept else 1)

    def layer_activations(self) -> int:
        """Return the bytes that autograd keeps of one decoder layer for its backward pass.

        Six activations are as wide as the embedding: the two normed inputs of linear layers, the queries, the keys and
        the values (repeated for every head), and the attention's output. Four are as wide as the feed-forward layer:
        the gate before and after its activation function, the tensor that it multiplies, and the product. The attention
        also keeps one fp32 number per head and token.
        """
        shape, size = self.shape, self.bytes_per_value
        attention = size * 4 * shape.embedding + FP32 * shape.heads
        gate = size * 3 * shape.feed_forward
        adapters = size * self.p.lora_rank * len(self.adapted)
        linear_inputs = size * (2 * shape.embedding + shape.feed_forward)
        per_token = attention + gate + adapters
        if self.is_compiled:
            # Two tensors as wide as the embedding, the inputs of the norms, replace what norms keep uncompiled. The
            # gate after its activation function is not kept, but computed again.
            per_token += size * (2 * shape.embedding - shape.feed_forward)
        else:
            per_token += 2 * self.norm_activations // self.tokens
            if self.p.packed:
                # Cosine and sine of every token's position, for queries and for keys.
                per_token += 2 * FP32 * shape.embedding // shape.heads
        if not self.quantized:
            return self.tokens * (per_token + linear_inputs)
        return self.tokens * per_token + self._quantized_activations(linear_inputs)

    def _quantized_activations(self, linear_inputs: int) -> int:
        """Return the bytes that autograd keeps for the fake-quantized linear layers of one decoder layer.

        For each quantized layer it keeps the clamped input in fp32, and a quantized copy of the weight. If the weights
        themselves are trained, it also keeps the clamped weight in fp32, and it keeps the quantized input instead of
        the input.

        `linear_inputs`: bytes per token of the inputs of the linear layers.
        """
        size = self.bytes_per_value
        inputs = sum(columns for _, columns in self.quantized)
        weights = sum(math.prod(linear) for linear in self.quantized)
        if self.p.trains_adapters:
            return self.tokens * (linear_inputs + FP32 * inputs) + size * weights
        return (FP32 + size) * (self.tokens * inputs + weights)

    def loss(self, gathered_root: int) -> int:
        """Return the bytes of the last norm, the output layer, and either the loss or the gradient of its logits.

        Cross-entropy has all logits. Uncompiled, it also has fp32 log-probabilities of all logits and of one chunk. DPO
        has five fp32 tensors as large as the logits: log-probabilities of the policy; logits, scaled logits and
        log-probabilities of the reference; and logits of the step before. QAT of all weights quantizes the output layer
        again for every chunk, unless the output layer shares the embedding's weights, which are not quantized.

        `gathered_root`: bytes of the root that FSDP gathered; 0 without FSDP.
        """
        logits = self.tokens * self.shape.vocabulary * self.bytes_per_value
        fp32_logits = self.tokens * self.shape.vocabulary * FP32
        if self.technique.pairs:
            return self.norm_activations + max(5 * fp32_logits, 3 * fp32_logits + 2 * gathered_root)
        cross_entropy = logits
        if not self.is_compiled:
            cross_entropy += fp32_logits + fp32_logits // LOSS_CHUNKS
        if self.p.trains_adapters:
            return self.norm_activations + max(cross_entropy, logits + min(2, self.ranks) * gathered_root)
        kept = self.norm_activations + self.hidden_states
        if self.quantized and not self.shape.tied:
            clamped_inputs = FP32 * self.tokens * self.shape.embedding
            quantized_weights = (FP32 + self.bytes_per_value) * self.output_weights
            kept += clamped_inputs + LOSS_CHUNKS * quantized_weights
        output_gradients = 2 * self.bytes_per_value * self.output_weights
        return kept + max(cross_entropy, logits + output_gradients + gathered_root)

    def backward_temporaries(self) -> int:
        """Return the bytes that the backward pass of one layer uses in addition to what the layer keeps.

        That is the largest of three: gradients before and after the feed-forward layer; with weights in NF4, unpacking
        the largest weight; with fake quantization, rounding the largest weight or activation.
        """
        size = self.bytes_per_value
        largest_weight = max(math.prod(linear) for linear in self.linears)
        feed_forward_values = self.tokens * self.shape.feed_forward
        gradients = 2 * (size * feed_forward_values + self.hidden_states)
        unpacked = rounded = 0
        if self.technique.nf4:
            # For each byte, which holds two weights: two indices of 8 bytes, two values, two scaled values, the result.
            unpacked = (8 + 3 * size) * largest_weight + 2 * self.hidden_states
        if self.quantized:
            # Clamped and shifted in fp32, then scaled back.
            rounded = (2 * FP32 + size) * max(largest_weight, feed_forward_values)
        return max(gradients, unpacked, rounded)
