"""What a pass over a loader gave, what its batches hold (samples and tokens), and which steps used them."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.record.observe.loaders import Loader

DEEPEST = 4  # levels of lists, tuples and mappings that are looked into
MOST_PARTS = 64  # of each

TOKENS, MASK = ("input_ids", "tokens"), "attention_mask"  # keys of Hugging Face's batches, and of torchtune's
WITH_LABELS = (*TOKENS, "input", "inputs")  # of batches that are pairs with labels: torchtitan's


class Contents(NamedTuple):
    """Samples and tokens of a batch; None where they cannot be told."""

    samples: int | None
    tokens: int | None


class Pass:
    """Batches that one pass over a loader gave."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.batches: list[tuple[int, Contents]] = []  # the step that asked for each, and its contents
        self.ended: int | None = None  # the step that found the loader exhausted
        self.trained = False  # whether a backward pass or an update followed any of them: else they are of a test
        self._shows: bool | None = None  # whether the first one, which is full, shows its samples

    def add(self, step: int, batch: Any, asked: int | None) -> None:
        """Count a batch that a step asked for.

        `asked`: samples that the loader asked its data set for; None where that is not known, as of a stream.
        """
        # A batch may be anything. What was asked counts whatever it looks like, as with two views of each sample.
        samples = asked if asked not in (None, 1) else read_or_none(lambda: self._samples(batch, asked))
        tokens = read_or_none(lambda: tokens_in(batch))
        self.batches.append((step, Contents(samples, tokens)))

    def _samples(self, batch: Any, asked: int | None) -> int | None:
        """Samples of a batch of a stream, or of one that a data set made; those that the loader states are believed."""
        stated = asked or self.loader.batch_size
        if stated is None:
            return made_by_data_set(batch)
        if stated == 1:  # a loader of single items, each of which may be a sample or a batch
            sizes = first_sizes(batch)
            return 1 if 1 in sizes or not sizes else None
        sizes = shared_sizes(batch)
        if self._shows is None:
            self._shows = stated in sizes
        smaller = {size for size in sizes if size < stated}
        if not self._shows or stated in sizes or not smaller:
            return stated
        return smaller.pop() if len(smaller) == 1 else None


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[Contents]]:
    """Contents of the batches that each step used, by the steps.

    Accelerate, timm and others ask in the first step of a pass for what every later step asks for and some more, to
    have the next batch at hand. Where all later steps ask for equally many, each uses so many, one after another, until
    the next pass over the same loader begins; else a batch is used by the step that asks for it.
    """
    found: dict[int, list[Contents]] = {}
    begins = {each.batches[0][0] for each in passes}
    for each in passes:
        own = [other for other in passes if other.loader == each.loader]
        pace = next((known for other in (each, *own) if (known := _per_step(other, begins)) is not None), 0)
        first, again = each.batches[0][0], {other.batches[0][0] for other in own}
        end = min((step for step in again if step > first), default=None)
        for number, (asking, contents) in enumerate(each.batches):
            step = first + number // pace if pace else asking
            if end is None or step < end or step == asking:
                found.setdefault(step, []).append(contents)
    return found


def asks_ahead(passes: Sequence[Pass]) -> bool:
    """Whether a script asks for batches before it uses the last, in any pass that is long enough to tell."""
    begins = {each.batches[0][0] for each in passes}
    return any(_in_step(each)[each.batches[0][0]] > pace for each in passes if (pace := _per_step(each, begins)))


def _per_step(one: Pass, begins: Container[int]) -> int | None:
    """Batches that each step of a pass uses: 0 where that cannot be told, None where the pass is too short for it.

    `begins`: steps in which passes begin.
    """
    asked, first, last = _in_step(one), one.batches[0][0], one.batches[-1][0]
    if last <= first + 1 and (one.ended is None or one.ended in begins):
        return None
    per_step = asked[first + 1]
    is_steady = asked[first] >= per_step and all(asked[step] == per_step for step in range(first + 1, last))
    return per_step if is_steady else 0


def _in_step(one: Pass) -> Counter[int]:
    """How many batches each step asked for."""
    return Counter(step for step, _ in one.batches)


def tokens_in(batch: Any) -> int | None:
    """Tokens of a batch of texts; None of any other.

    They are the elements of its integers of shape (samples, length), less those that its mask of the same shape leaves
    out. A mask on a GPU is not read, since that would wait for it. Under a name that other data have too, as torchtitan
    gives them, they come with labels of the same shape.

    >>> ids = torch.zeros(2, 8, dtype=int)
    >>> tokens_in({"input_ids": ids}), tokens_in(({"input": ids}, ids)), tokens_in(({"input": ids}, ids[:, 0]))
    (16, 16, None)
    """
    names, labels = TOKENS, None
    if isinstance(batch, list | tuple) and len(batch) == 2:
        batch, labels = batch
        names = WITH_LABELS
    if not isinstance(batch, Mapping):
        return None
    ids = next((batch[name] for name in names if name in batch), None)
    if not _are_ids(ids) or (names is WITH_LABELS and not (_are_ids(labels) and labels.shape == ids.shape)):
        return None
    mask = batch.get(MASK)
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape and mask.device.type == "cpu":
        return int(mask.count_nonzero())
    return ids.numel()


def _are_ids(values: Any) -> bool:
    if not isinstance(values, torch.Tensor) or values.dim() != 2:
        return False
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def made_by_data_set(batch: Any) -> int | None:
    """Samples of what a data set gives as a batch: the size that all its parts share, if there are tensors among them.

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
    """First dimensions of all tensors of a batch, and 1 where there is a list of one.

    A batch of one sample shows a 1 somewhere, unless it shows nothing.

    >>> first_sizes((torch.zeros(8, 3), torch.zeros(3, 8))), first_sizes([torch.zeros(8, 3)]), first_sizes("a text")
    ({8, 3}, {8, 1}, set())
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return {int(shape[0])} if len(shape) else set()
    found: set[int] = set()
    for part in _parts(batch) if levels else ():
        found |= first_sizes(part, levels - 1)
    is_list = isinstance(batch, list | tuple)
    return found | {len(batch)} if is_list and len(batch) == 1 else found


def shared_sizes(batch: Any, levels: int = DEEPEST) -> set[int]:
    """Sizes that all parts of a batch share, of those that have any: first dimensions of tensors, lengths of lists."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return {int(shape[0])} if len(shape) else set()
    found: set[int] | None = None
    for part in _parts(batch) if levels else ():
        sizes = shared_sizes(part, levels - 1) | ({len(part)} if isinstance(part, list | tuple) else set())
        if sizes:
            found = sizes if found is None else found & sizes
    return found or set()


def _parts(batch: Any) -> Iterator[Any]:
    """What a list, tuple or mapping holds, as far as it is looked at."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return islice(parts, MOST_PARTS)
