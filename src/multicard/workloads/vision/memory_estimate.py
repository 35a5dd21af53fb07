"""Estimates the memory that training MobileNet v2 needs on each device, before anything runs.

The layers are those of Sandler et al. 2018 (arXiv 1801.04381, Table 2) as torchvision builds them; what autograd keeps
of each until the backward pass follows from PyTorch's derivatives. Nothing here imports torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES

# Of a block of layers: expansion of its channels, channels that it gives, repetitions, stride of the first.
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FIRST, LAST = 32, 1280  # channels of the first and of the last convolution

WEIGHT_BYTES = {"fp64": 8, "fp32": 4, "fp16": 4, "bf16": 4}
VALUE_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}  # autocast computes in half of the bytes
DEFAULT_CLASSES = 10  # of data sets whose number is not known before they are prepared


@dataclass(frozen=True)
class Layer:
    """A convolution, the batch normalization after it and, where `activated`, ReLU6.

    `before`, `after`: edge lengths in pixels of what goes in and comes out; `given`: channels that come out.
    """

    taken: int
    given: int
    kernel: int
    groups: int
    before: int
    after: int
    activated: bool

    @property
    def filters(self) -> int:
        """Weights of the convolution."""
        return self.given * self.taken // self.groups * self.kernel**2

    @property
    def weights(self) -> int:
        """Weights that are trained: filters, and a scale and a shift per channel."""
        return self.filters + 2 * self.given

    @property
    def values(self) -> int:
        """Values that it gives for one image."""
        return self.given * self.after**2


def layers(width_mult: float, image_size: int) -> Iterator[Layer]:
    """The convolutions of the network in the order in which an image passes them."""
    channels, edge = _channels(FIRST * width_mult), _halved(image_size)
    yield Layer(3, channels, 3, 1, image_size, edge, activated=True)
    for expansion, wanted, repetitions, first_stride in BLOCKS:
        given = _channels(wanted * width_mult)
        for number in range(repetitions):
            inside, before = channels * expansion, edge
            if expansion > 1:
                yield Layer(channels, inside, 1, 1, before, before, activated=True)
            edge = _halved(before) if number == 0 and first_stride == 2 else before
            yield Layer(inside, inside, 3, inside, before, edge, activated=True)
            yield Layer(inside, given, 1, 1, edge, edge, activated=False)
            channels = given
    yield Layer(channels, _channels(LAST * max(1.0, width_mult)), 1, 1, edge, edge, activated=True)


def _channels(wanted: float) -> int:
    """The nearest multiple of 8, but not less than nine tenths of what is wanted, as torchvision rounds."""
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * wanted else nearest


def _halved(edge: int) -> int:
    """Edge after a convolution of stride 2."""
    return -(-edge // 2)


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device, at the moment of a step when it holds most.

    Attributes
    ----------
    weights
        Weights and buffers of the model; under fsdp this rank's share, and the whole of what it gathers.
    optimizer
        Momentum.
    gradients
        What exists of them at that moment: the buckets in which DDP reduces them.
    batch
        The images.
    activations
        What autograd keeps for the backward pass, and what it is working on.
    """

    weights: int
    optimizer: int
    gradients: int
    batch: int
    activations: int

    @property
    def total(self) -> int:
        """The most that PyTorch has allocated at once.

        The CUDA context, NCCL, DALI's batches and the workspaces that cuDNN chooses come on top.
        """
        return self.weights + self.optimizer + self.gradients + self.batch + self.activations


def estimate_memory(p: VisionParameters, classes: int = DEFAULT_CLASSES) -> Memory:
    """Estimate the memory of one device of a job that is not compiled."""
    network = list(layers(p.width_mult, p.image_size))
    size, weight_size = VALUE_BYTES[p.precision], WEIGHT_BYTES[p.precision]
    features = network[-1].given
    trained = sum(layer.weights for layer in network) + (features + 1) * classes
    buffers = sum(2 * weight_size * layer.given + 8 for layer in network)  # running mean and variance, and a count
    strategy = STRATEGIES[p.strategy]
    shards = p.devices if strategy.shards_model else 1
    images = p.batch_of_rank if p.devices > p.ranks else p.batch_of_device  # one process puts all on its first GPU
    return Memory(
        weights=weight_size * (trained // shards + (trained if shards > 1 else 0)) + buffers,
        optimizer=weight_size * trained // shards,
        gradients=weight_size * trained if strategy.has_buckets else 0,
        batch=images * 3 * p.image_size**2 * weight_size,
        activations=_activations(network, p.batch_of_device, features, classes, size, weight_size),
    )


def _activations(network: list[Layer], batch: int, features: int, classes: int, size: int, weight_size: int) -> int:
    """The most bytes that are kept and in use, over the backward passes of all layers, the last of which comes first.

    While the backward pass of a layer runs there are, beside what it and the layers before it keep, the gradients of
    what it gives and of what it takes, and those of its weights and of all later ones.
    """
    held = [kept_of(layer, batch, size, weight_size, last=layer is network[-1]) for layer in network]
    if size < weight_size:
        held[0] += batch * 3 * network[0].before ** 2 * size  # the images as autocast casts them
    kept = sum(held) + kept_of_head(batch, features, classes, size, weight_size)
    gradients, peak = weight_size * (features + 1) * classes, 0
    for layer, own in zip(reversed(network), reversed(held), strict=True):
        gradients += weight_size * layer.weights
        taken = layer.taken * layer.before**2 if layer is not network[0] else 0
        peak = max(peak, kept + gradients + batch * (layer.values + max(layer.values, taken)) * size)
        kept -= own
    return peak


def kept_of(layer: Layer, batch: int, size: int, weight_size: int, last: bool = False) -> int:
    """Bytes that autograd keeps of a layer for its backward pass.

    The normalization keeps its input, and mean and deviation of each channel. ReLU6 works in place and keeps a copy of
    its input. What the layer gives is kept by the next convolution as its input (by none after the last one); of a
    residual block that is the sum. Autocast has a copy of the filters in half precision.
    """
    tensors = 1 + layer.activated + (not last)
    casts = layer.filters * size if size < weight_size else 0
    return batch * layer.values * tensors * size + 2 * layer.given * weight_size + casts


def kept_of_head(batch: int, features: int, classes: int, size: int, weight_size: int) -> int:
    """Bytes that autograd keeps of pooling, dropout, classifier and loss."""
    casts = features * classes * size if size < weight_size else 0
    dropped = batch * features * (1 + size)  # the mask, and what remains
    return dropped + batch * classes * weight_size + casts
