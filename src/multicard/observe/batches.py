"""Count what the batches of a pass over a loader hold (samples and tokens), and find which steps used them."""

import math
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.observe.loaders import Loader, LoaderDescription

# At most so many levels of nested lists, tuples and mappings are looked into, and so many parts of each.
DEEPEST = 4
MOST_PARTS = 64

TOKENS = ("input_ids", "tokens")  # keys of Hugging Face's batches, and of torchtune's
MASK = "attention_mask"
TOKENS_WITH_LABELS = (*TOKENS, "input", "inputs")  # keys of inputs that come with labels, such as torchtitan's

# Batches of so many steps have a checksum: the first ones, which are most often in the warm-up.
COMPARED_STEPS = 3
# A checksum is of at most so many tensors, and of about so many elements of each.
COMPARED_TENSORS = 4
COMPARED_ELEMENTS = 4096


class Contents(NamedTuple):
    """Numbers of samples and of tokens in a batch, and its checksum; None if unknown."""

    samples: int | None
    tokens: int | None
    checksum: int | None = None


class Pass:
    """Batches that one pass over a loader gave; made by `Observer` when the first one is asked for."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.batches: list[tuple[int, Contents]] = []  # the step that asked for each batch, and its contents
        self.ended: int | None = None  # the step in which the loader turned out to be exhausted; None before that
        # True once a backward pass or an update has followed a batch. Until then the batches may be a test's.
        self.trained = False
        # True if the first batch, which is full, shows its number of samples by its shape. None before that batch.
        self._shows_samples: bool | None = None
        # The step and contents of the latest batch. Most batches of a step hold the same, and share this.
        self._latest = (0, Contents(None, None))

    def add(self, step: int, batch: Any, asked: int | None) -> None:
        """Count a batch that a step asked for.

        `asked`: samples that the loader asked its data set for; None if that is unknown, as for a stream.
        """
        # The number that was asked for counts whatever the batch looks like: it may have two views of each sample. If
        # the number is None, or 1 (one item, which may be a batch), the batch itself must show its samples.
        samples = asked if asked is not None and asked != 1 else read_or_none(partial(self._samples, batch, asked))
        # As `read_or_none` does, but without a call of it for each batch.
        try:
            tokens = tokens_in(batch)
        except Exception:
            tokens = None
        checksum = read_or_none(partial(checksum_of, batch)) if 0 < step <= COMPARED_STEPS else None
        latest_step, latest = self._latest
        if latest_step != step or latest.samples != samples or latest.tokens != tokens or latest.checksum != checksum:
            self._latest = step, Contents(samples, tokens, checksum)
        self.batches.append(self._latest)

    def forget_step(self, step: int) -> None:
        """Drop the batches that a step asked for."""
        self.batches = [batch for batch in self.batches if batch[0] != step]

    def forget_oldest(self, most: int) -> None:
        """Keep only the latest `most` batches."""
        del self.batches[:-most]

    def forget_steps(self, most: int) -> None:
        """Keep only the latest `most` batches, as if they had been asked for before the first step."""
        self.batches[:] = [(0, contents) for _, contents in self.batches[-most:]]

    def _samples(self, batch: Any, asked: int | None) -> int | None:
        """Return the number of samples in a batch; None if unknown. `asked`: 1 or None.

        It is the number that was asked for, else the loader's batch size, with these exceptions. If there is neither,
        the data set has made the batch. If it is 1, but the batch shows other sizes only, it is unknown. If the first
        batch of the pass has shown this number by its shape, a batch that shows a smaller one, such as the last batch,
        has as many samples as it shows.
        """
        stated = asked or self.loader.batch_size
        if stated is None:
            return made_by_data_set(batch)
        if stated == 1:  # a loader of single items, each of which may be a sample or a batch
            first_dimensions = first_sizes(batch)
            return 1 if 1 in first_dimensions or not first_dimensions else None
        sizes = shared_sizes(batch)
        if self._shows_samples is None:
            self._shows_samples = stated in sizes
        smaller = {size for size in sizes if size < stated}
        if not self._shows_samples or stated in sizes or not smaller:
            return stated
        return smaller.pop() if len(smaller) == 1 else None


# Takes the place of a pass whose batches are drawn while gradients are disabled: they are not counted.
EVALUATION_PASS = Pass(Loader(LoaderDescription("evaluation"), batch_size=None, length=None, ahead=0))


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[Contents]]:
    """Return the contents of the batches that each step used, by the number of the step.

    A batch may be used later than it is asked for: Accelerate, timm and others ask for more batches in the first step
    of a pass than in each later one, to have the next batch ready. So if all later steps (except perhaps the last) ask
    for the same number of batches, each step of the pass uses that number of batches, in their order. Batches that are
    left when the next pass over the same loader begins are dropped. If later steps ask for different numbers, each step
    uses the batches that it asks for. A pass that is too short to show this is like the other passes over its loader.

    >>> drawn = Pass(Loader(LoaderDescription("Batches"), batch_size=8, length=4, ahead=0))
    >>> drawn.batches = [(1, "first"), (1, "second"), (2, "third"), (3, "fourth")]
    >>> drawn.ended = 4
    >>> used_by_step([drawn])
    {1: ['first'], 2: ['second'], 3: ['third'], 4: ['fourth']}
    """
    used: dict[int, list[Contents]] = {}
    first_steps = _first_steps(passes)
    for drawn in passes:
        same_loader = [other for other in passes if other.loader == drawn.loader]
        per_step = _known_pace([drawn, *same_loader], first_steps)
        first = drawn.batches[0][0]
        next_first = min((step for step in _first_steps(same_loader) if step > first), default=math.inf)
        for number, (asking_step, contents) in enumerate(drawn.batches):
            step = first + number // per_step if per_step else asking_step
            if step < next_first or step == asking_step:
                used.setdefault(step, []).append(contents)
    return used


def asks_ahead(passes: Sequence[Pass]) -> bool:
    """Return True if a script asks for the next batch before it uses the last one.

    That is so if, in any pass, all later steps ask for the same number of batches and the first step asks for more.
    Passes that are too short to show this do not count.
    """
    first_steps = _first_steps(passes)
    for drawn in passes:
        per_step = _batches_per_step(drawn, first_steps)
        if per_step and _batches_by_step(drawn)[drawn.batches[0][0]] > per_step:
            return True
    return False


def _first_steps(passes: Iterable[Pass]) -> set[int]:
    """Return the steps in which passes begin."""
    return {drawn.batches[0][0] for drawn in passes}


def _known_pace(passes: Iterable[Pass], first_steps: Container[int]) -> int:
    """Return the number of batches that each step uses, by the first pass that is long enough to show it.

    0 if its steps ask for different numbers, or if no pass is long enough.
    """
    for drawn in passes:
        per_step = _batches_per_step(drawn, first_steps)
        if per_step is not None:
            return per_step
    return 0


def _batches_per_step(drawn: Pass, first_steps: Container[int]) -> int | None:
    """Return the number of batches that each step of a pass uses; None if the pass is too short to show it.

    0 if the steps between the first and the last ask for different numbers, or if the first step asks for fewer than
    the second. `first_steps`: the steps in which passes begin.
    """
    batches = _batches_by_step(drawn)
    first = drawn.batches[0][0]
    last = drawn.batches[-1][0]
    # One or two steps are enough only if the loader turned out to be exhausted in a step in which no pass begins, as in
    # scripts that ask ahead. Otherwise the last step may have asked for fewer batches than it uses.
    if last <= first + 1 and (drawn.ended is None or drawn.ended in first_steps):
        return None
    per_step = batches[first + 1]
    is_steady = all(batches[step] == per_step for step in range(first + 1, last))
    return per_step if is_steady and batches[first] >= per_step else 0


def _batches_by_step(drawn: Pass) -> Counter[int]:
    """Return the number of batches that each step asked for; 0 for steps that asked for none."""
    return Counter(step for step, _ in drawn.batches)


def checksums(passes: Iterable[Pass]) -> list[int]:
    """Return the checksums of the batches that the first steps asked for; nothing if one of these has none."""
    sums = [contents.checksum for drawn in passes for step, contents in drawn.batches if 0 < step <= COMPARED_STEPS]
    known = [checksum for checksum in sums if checksum is not None]
    return known if len(known) == len(sums) else []


def checksum_of(batch: Any) -> int | None:
    """Return a checksum of a part of a batch, which is the same for the same samples; None if no tensor is on the CPU.

    It is of the first tensors of the batch, and of elements all over each, since many samples begin with the same ones.
    Nothing of a GPU is read, because that would wait for it.

    >>> checksum_of(torch.arange(4)) == checksum_of([torch.arange(4)]), checksum_of("a text")
    (True, None)
    """
    checksum = None
    for tensor in islice(_tensors(batch), COMPARED_TENSORS):
        if tensor.device.type == "cpu":
            # No operators of PyTorch, which may be counted. In the order "K" no tensor without gaps is copied.
            elements = tensor.numpy().ravel(order="K")
            # An odd distance, so that not only the same places of samples are read whose size is a power of two.
            read = elements[:: len(elements) // COMPARED_ELEMENTS | 1]
            checksum = zlib.crc32(read.tobytes(), checksum or 0)
    return checksum


def _tensors(batch: Any, levels: int = DEEPEST) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch in their order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif levels:
        for part in _parts(batch):
            yield from _tensors(part, levels - 1)


def tokens_in(batch: Any) -> int | None:
    """Return the number of tokens in a batch of texts; None for any other batch.

    The batch, or the first element of a pair of inputs and labels, is a mapping. It has the ids of tokens, which are
    integers of shape (samples, length), under one of the keys `TOKENS`. Ids are not counted where the attention mask,
    of the same shape, is 0. A mask on a GPU is not read, because that would wait for the GPU.

    In a pair, the ids may also be under "input" or "inputs", as torchtitan's are. Other data have these names, too, so
    the labels of a pair must be integers of the same shape.

    >>> ids = torch.zeros(2, 8, dtype=int)
    >>> tokens_in({"input_ids": ids}), tokens_in(({"input": ids}, ids)), tokens_in(({"input": ids}, ids[:, 0]))
    (16, 16, None)
    """
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, labels = batch
        if type(inputs) is torch.Tensor:  # as in most batches
            return None
        ids = _first_ids(inputs, TOKENS_WITH_LABELS)
        if ids is None or _ids_or_none(labels) is None or labels.shape != ids.shape:
            return None
    else:
        inputs = batch
        ids = _first_ids(inputs, TOKENS)
        if ids is None:
            return None
    mask = inputs.get(MASK)
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape and mask.device.type == "cpu":
        return int(mask.count_nonzero())
    return ids.numel()


def _first_ids(inputs: Any, names: Iterable[str]) -> torch.Tensor | None:
    """Return the value of the first of `names` that a mapping has, if it may be the ids of tokens; else None."""
    if not isinstance(inputs, Mapping):
        return None
    return _ids_or_none(next((inputs[name] for name in names if name in inputs), None))


def _ids_or_none(values: Any) -> torch.Tensor | None:
    """Return a tensor of integers with two dimensions; None for anything else."""
    if not isinstance(values, torch.Tensor) or values.dim() != 2:
        return None
    is_integer = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return values if is_integer else None


def made_by_data_set(batch: Any) -> int | None:
    """Return the number of samples in a batch that a data set has made: the one size that all its parts share.

    None if they share no size or several, if no part is a tensor, or if a part is a single number or text.

    >>> made_by_data_set((torch.zeros(8, 3), torch.zeros(8))), made_by_data_set((torch.zeros(8, 3), 7))
    (8, None)
    """
    parts = [batch] if hasattr(batch, "shape") else list(_parts(batch))
    # A single number or text, next to tensors, belongs to a single sample: this is no batch.
    if not any(hasattr(part, "shape") for part in parts) or any(map(_is_single, parts)):
        return None
    sizes = shared_sizes(batch)
    return sizes.pop() if len(sizes) == 1 else None


def _is_single(part: Any) -> bool:
    return isinstance(part, int | float | str | bytes) or getattr(part, "shape", None) == ()


def first_sizes(batch: Any, levels: int = DEEPEST) -> set[int]:
    """Return the first dimensions of all tensors of a batch, and 1 if it has a list or tuple of one element.

    For a batch of one sample, 1 is among them, unless there are none.

    >>> first_sizes((torch.zeros(8, 3), torch.zeros(3, 8))), first_sizes([torch.zeros(8, 3)]), first_sizes("a text")
    ({8, 3}, {8, 1}, set())
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return _first_dimension(shape)
    sizes: set[int] = set()
    if levels:
        for part in _parts(batch):
            sizes |= first_sizes(part, levels - 1)
    if isinstance(batch, list | tuple) and len(batch) == 1:
        sizes.add(1)
    return sizes


def shared_sizes(batch: Any, levels: int = DEEPEST) -> set[int]:
    """Return the sizes that all parts of a batch share: first dimensions of tensors, lengths of lists.

    Parts without a size, such as texts, do not count.

    >>> shared_sizes((torch.zeros(8, 3), 8 * ["a text"], "another")), shared_sizes((torch.zeros(8, 3), torch.zeros(3)))
    ({8}, set())
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return _first_dimension(shape)
    if not levels:
        return set()
    shared: set[int] | None = None
    for part in _parts(batch):
        sizes = shared_sizes(part, levels - 1)
        if isinstance(part, list | tuple):
            sizes = sizes | {len(part)}
        if sizes:
            shared = sizes if shared is None else shared & sizes
    return shared or set()


def _first_dimension(shape: Any) -> set[int]:
    return {int(shape[0])} if len(shape) else set()


def _parts(batch: Any) -> Iterator[Any]:
    """Yield the first `MOST_PARTS` elements of a list or tuple, or values of a mapping; nothing for other objects."""
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    else:
        parts = ()
    return islice(parts, MOST_PARTS)
