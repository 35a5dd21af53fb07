"""Count what the batches of a pass over a loader hold (samples and tokens), and find which steps used them."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.record.observe.loaders import Loader

# Levels of lists, tuples and mappings that are looked into, and parts of each.
DEEPEST = 4
MOST_PARTS = 64

TOKENS = ("input_ids", "tokens")  # keys of Hugging Face's batches, and of torchtune's
MASK = "attention_mask"
TOKENS_WITH_LABELS = (*TOKENS, "input", "inputs")  # keys of batches that are pairs with labels: torchtitan's


class Contents(NamedTuple):
    """Samples and tokens of a batch; None if they are unknown."""

    samples: int | None
    tokens: int | None


class Pass:
    """Batches that one pass over a loader gave; made by `Observer` when the first one is asked for."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.batches: list[tuple[int, Contents]] = []  # the step that asked for each batch, and its contents
        self.ended: int | None = None  # the step in which the loader turned out to be exhausted
        self.trained = False  # a backward pass or an update has followed a batch; else they may be a test's
        self._shows_samples: bool | None = None  # the first batch, which is full, does; None before it

    def add(self, step: int, batch: Any, asked: int | None) -> None:
        """Count a batch that a step asked for.

        `asked`: samples that the loader asked its data set for; None where that is not known, as of a stream.
        """
        # A batch may be anything. What was asked counts whatever it looks like, as with two views of each sample.
        samples = asked if asked not in (None, 1) else read_or_none(lambda: self._samples(batch, asked))
        tokens = read_or_none(lambda: tokens_in(batch))
        self.batches.append((step, Contents(samples, tokens)))

    def forget_step(self, step: int) -> None:
        """Drop the batches that a step asked for."""
        self.batches = [batch for batch in self.batches if batch[0] != step]

    def forget_oldest(self, most: int) -> None:
        """Keep the latest batches only."""
        del self.batches[:-most]

    def forget_steps(self, most: int) -> None:
        """Keep the latest batches only, as asked for before the first step."""
        self.batches[:] = [(0, contents) for _, contents in self.batches[-most:]]

    def _samples(self, batch: Any, asked: int | None) -> int | None:
        """Return the samples of a batch of a stream, or of one that a data set made.

        A batch may have fewer samples than its loader states, such as the last one of a pass, if it shows that.
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


# Stands for a pass over any loader that is drawn from without gradients: its batches are not counted.
EVALUATION_PASS = Pass(Loader(description={}, batch_size=None, length=None, ahead=0))


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[Contents]]:
    """Return the contents of the batches that each step used, by the number of the step.

    Accelerate, timm and others ask in the first step of a pass for what every later step asks for and some more, to
    have the next batch ready. Where all later steps ask for equally many, each uses so many, one after another, until
    the next pass over the same loader begins; else a batch is used by the step that asks for it.
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
    """Return whether a script asks for batches before it uses the last.

    It does if the first step of any pass, that is long enough to see it, asks for more than each later one.
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
    """Return the batches that each step uses by the first pass that is long enough to see it; 0 if that is unsteady."""
    for drawn in passes:
        per_step = _batches_per_step(drawn, first_steps)
        if per_step is not None:
            return per_step
    return 0


def _batches_per_step(drawn: Pass, first_steps: Container[int]) -> int | None:
    """Return the batches that each step of a pass uses: 0 if that differs, None if the pass is too short to see it.

    `first_steps`: those in which passes begin.
    """
    batches = _batches_by_step(drawn)
    first = drawn.batches[0][0]
    last = drawn.batches[-1][0]
    # Two steps are enough only if the script saw the end of the pass before it began another one, as scripts do that
    # ask ahead: else the last step may have asked for fewer batches.
    if last <= first + 1 and (drawn.ended is None or drawn.ended in first_steps):
        return None
    per_step = batches[first + 1]
    is_steady = all(batches[step] == per_step for step in range(first + 1, last))
    return per_step if is_steady and batches[first] >= per_step else 0


def _batches_by_step(drawn: Pass) -> Counter[int]:
    """Return how many batches each step asked for."""
    return Counter(step for step, _ in drawn.batches)


def tokens_in(batch: Any) -> int | None:
    """Return the number of tokens of a batch of texts; None of any other.

    They are the elements of its integers of shape (samples, length), less those that its mask of the same shape leaves
    out. A mask on a GPU is not read, since that would wait for it. Under a name that other data have too, as torchtitan
    gives them, they come with labels of the same shape.

    >>> ids = torch.zeros(2, 8, dtype=int)
    >>> tokens_in({"input_ids": ids}), tokens_in(({"input": ids}, ids)), tokens_in(({"input": ids}, ids[:, 0]))
    (16, 16, None)
    """
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, labels = batch
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
    """Return the value of the first of these names that a mapping has, if that may be the ids of tokens."""
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
    """Return the samples of what a data set gives as a batch: the size that all its parts share, if any is a tensor.

    >>> made_by_data_set((torch.zeros(8, 3), torch.zeros(8))), made_by_data_set((torch.zeros(8, 3), 7))
    (8, None)
    """
    parts = [batch] if hasattr(batch, "shape") else list(_parts(batch))
    # A number or a text beside tensors is of a single sample, which nobody has collated.
    if not any(hasattr(part, "shape") for part in parts) or any(map(_is_single, parts)):
        return None
    sizes = shared_sizes(batch)
    return sizes.pop() if len(sizes) == 1 else None


def _is_single(part: Any) -> bool:
    return isinstance(part, int | float | str | bytes) or getattr(part, "shape", None) == ()


def first_sizes(batch: Any, levels: int = DEEPEST) -> set[int]:
    """Return the first dimensions of all tensors of a batch, and 1 if there is a list of one.

    A batch of one sample shows a 1 somewhere, unless it shows nothing.

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
    """Yield what a list, tuple or mapping holds, as far as it is looked at."""
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    else:
        parts = ()
    return islice(parts, MOST_PARTS)
