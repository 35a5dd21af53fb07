"""What a batch of a loader holds: samples, and tokens of a language model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

DEEPEST = 4  # levels of lists, tuples and mappings that are looked into
MOST_PARTS = 64  # of each

TOKENS, MASK = ("input_ids", "tokens"), "attention_mask"  # keys of Hugging Face's batches, and of torchtune's
WITH_LABELS = (*TOKENS, "input", "inputs")  # of batches that are pairs with labels: torchtitan's


class Contents(NamedTuple):
    """Samples and tokens of a batch; None where they cannot be told."""

    samples: int | None
    tokens: int | None


class Reading(NamedTuple):
    """How the batches of a pass show their samples, by its first one, which is full.

    Attributes
    ----------
    samples
        Of the first batch.
    shown
        `parts` where its parts share that size, `length` where it is a list of so many samples, `no` where its loader
        states a number that it does not show, as of images beside all boxes in them, or of packed texts.
    """

    samples: int | None
    shown: str


def first_reading(batch: Any, batch_size: int | None) -> Reading:
    """Count the samples of the first batch of a pass.

    Parameters
    ----------
    batch_size
        As the loader states it, which is believed; None where it states none.

    >>> first_reading({"ids": [[1, 2, 3], [4]], "labels": [0, 1]}, 2)
    Reading(samples=2, shown='parts')
    """
    shared, length = _sizes(batch, DEEPEST)
    if batch_size is None:
        return Reading(_made_by_data_set(batch, shared, length), "parts")
    if batch_size in shared:
        return Reading(batch_size, "parts")
    if batch_size == length:
        return Reading(batch_size, "length")
    # A loader of single items, each of which is a batch or a sample as it may be.
    is_item = batch_size == 1 and bool(shared)
    return Reading(None if is_item else batch_size, "no")


def later_samples(batch: Any, batch_size: int | None, drop_last: bool, first: Reading) -> int | None:
    """Count the samples of a later batch, which are fewer than stated at most at the end of a stream or of its parts.

    Parameters
    ----------
    drop_last
        Whether the loader leaves out what does not fill a batch.
    """
    if batch_size is None:
        return first_reading(batch, None).samples
    if drop_last or first.shown == "no":
        return first.samples
    shared, length = _sizes(batch, DEEPEST)
    sizes = {length} if first.shown == "length" else shared
    smaller = {size for size in sizes if size is not None and size < batch_size}
    if batch_size in sizes or not smaller:
        return batch_size
    return smaller.pop() if len(smaller) == 1 else None


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
    return isinstance(values, torch.Tensor) and values.dim() == 2 and _is_integer(values)


def _is_integer(values: torch.Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def _made_by_data_set(batch: Any, shared: set[int], length: int | None) -> int | None:
    """Samples of what a data set gives as a batch: the first dimension of all its tensors, or else its length."""
    if any(_tensors(batch, DEEPEST)):
        # A number or a text beside tensors is of a single sample, which nobody has collated.
        parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
        sizes = set() if any(map(_is_single, parts)) else shared
    else:
        sizes = shared if length is None else shared | {length}
    return next(iter(sizes)) if len(sizes) == 1 else None


def _is_single(part: Any) -> bool:
    return isinstance(part, int | float | str | bytes) or getattr(part, "shape", None) == ()


def _sizes(part: Any, levels: int) -> tuple[set[int], int | None]:
    """Numbers of samples that a part of a batch may hold, by what lies in it, and by its length if it is a list."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return ({int(shape[0])} if len(shape) else set()), None
    if isinstance(part, Mapping):
        return _shared(part.values(), levels), None
    if isinstance(part, list | tuple):
        return _shared(part, levels), len(part)
    return set(), None


def _shared(parts: Iterable[Any], levels: int) -> set[int]:
    """Sizes that all parts share, of those that have any."""
    found: set[int] | None = None
    for _, part in zip(range(MOST_PARTS), parts if levels else (), strict=False):
        shared, length = _sizes(part, levels - 1)
        sizes = shared if length is None else shared | {length}
        if sizes:
            found = sizes if found is None else found & sizes
    return found or set()


def _tensors(part: Any, levels: int) -> Iterator[bool]:
    """True for each tensor or array in a part of a batch."""
    if getattr(part, "shape", None) is not None:
        yield True
    elif levels and isinstance(part, Mapping | list | tuple):
        parts = part.values() if isinstance(part, Mapping) else part
        for _, each in zip(range(MOST_PARTS), parts, strict=False):
            yield from _tensors(each, levels - 1)
