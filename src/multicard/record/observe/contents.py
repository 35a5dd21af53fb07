"""What a batch of a loader holds: samples, and tokens of a language model."""

from collections.abc import Iterator, Mapping
from itertools import islice
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
