"""What a batch of a loader holds, and what the loader is."""

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Subset

from multicard.core.system import read_or_none

DEEPEST = 4  # levels of lists, tuples and mappings that are looked into
MOST_PARTS = 64  # of each

# Attributes of samplers and batch samplers that give each rank its own samples: those of PyTorch, torchdata and Hugging
# Face, and of Accelerate.
SHARES = (("num_replicas", "rank"), ("num_processes", "process_index"))


def samples_in(batch: Any, batch_size: int | None) -> int | None:
    """Samples of a batch: the first dimension that its tensors share, or the length of the lists of samples in it.

    Parameters
    ----------
    batch_size
        As the loader states it, which decides where several numbers would do; None where it states none.

    Returns
    -------
    int | None
        None where it cannot be told.

    >>> samples_in({"ids": [[1, 2, 3], [4]], "labels": [0, 1]}, 2)
    2
    """
    shared, length = _sizes(batch, DEEPEST)
    if batch_size is None:
        return next(iter(shared)) if len(shared) == 1 else None
    fitting = {size for size in (*shared, length) if size is not None and size <= batch_size}
    if batch_size in fitting:
        return batch_size
    smaller = {size for size in shared if size <= batch_size}  # the last batch of a pass
    return next(iter(smaller or fitting)) if len(smaller or fitting) == 1 else None


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


class Loader(NamedTuple):
    """What a loader is; kept instead of the loader itself, which may go before its iterator does.

    Attributes
    ----------
    description
        `kind`, `sampler`, `distinct`, `batch_size` and `num_workers`. `distinct`: whether each of several ranks draws
        samples of its own; None where that cannot be told, as of a data set that may be a share itself, or of a sampler
        that splits by other than all ranks, as with tensor parallelism.
    batch_size
        Samples of a full batch; None where the loader does not make the batches.
    length
        Batches of one pass; None where it is not known.
    ahead
        Batches that its workers prepare before they are asked for.
    """

    description: dict[str, Any]
    batch_size: int | None
    length: int | None
    ahead: int


def loader_of(loader: DataLoader, ranks: int) -> Loader:
    """Describe a loader of one of `ranks` ranks."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    streams = isinstance(loader.dataset, IterableDataset)
    stated = loader.batch_size or getattr(batches, "batch_size", None)
    batch_size = stated if isinstance(stated, int) else None
    split = [
        getattr(each, a) for each in (batches, sampler) for a, b in SHARES if hasattr(each, a) and hasattr(each, b)
    ]
    shared = ranks == 1 or ranks in split
    unknown = bool(split) or streams or isinstance(loader.dataset, Subset)
    description = {
        "kind": type(loader).__name__,
        "sampler": None if streams else type(sampler).__name__,
        "distinct": True if shared else None if unknown else False,
        "batch_size": batch_size,
        "num_workers": loader.num_workers,
    }
    # The length of a stream is not asked for: PyTorch would then warn of batches beyond it.
    length = None if streams else read_or_none(lambda: len(loader))
    return Loader(description, batch_size, length, loader.num_workers * (loader.prefetch_factor or 0))


class Pass:
    """Batches that one pass over a loader gave.

    Attributes
    ----------
    batches
        The step that asked for each, and its samples (None where they cannot be told).
    ended
        The step that found the loader exhausted; None before.
    """

    def __init__(self, loader: Loader):
        self.loader = loader
        self.batches: list[tuple[int, int | None]] = []
        self.ended: int | None = None


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[int | None]]:
    """Samples of the batches that each step used, by the steps that asked for them.

    A batch is used by the step that asks for the one so many later as the script is ahead, and the last ones of a pass
    by the steps that find the loader exhausted.
    """
    found: dict[int, list[int | None]] = {}
    begins = {each.batches[0][0] for each in passes}
    by_loader: list[list[Pass]] = []
    for each in passes:
        own = next((group for group in by_loader if group[0].loader == each.loader), [])
        if not own:
            by_loader.append(own)
        own.append(each)
    for own in by_loader:
        again = {each.batches[0][0] for each in own}
        paces = [_pace(each, begins) for each in own]
        known = next(filter(None, paces), (0, 1))
        for each, pace in zip(own, paces, strict=True):
            steps = _using_steps(each, *(pace or known), again)
            for step, (_, samples) in zip(steps, each.batches, strict=False):  # those not used yet are left out
                found.setdefault(step, []).append(samples)
    return found


def _using_steps(one: Pass, ahead: int, per_step: int, again: Container[int]) -> list[int]:
    """Steps that use the batches of a pass, one after another; `again`: those in which passes of its loader begin."""
    steps = [step for step, _ in one.batches][ahead:]
    if ahead and one.ended is not None:
        before = steps.count(one.ended)
        rest = (one.ended + number // per_step for number in range(before, before + ahead))
        steps += itertools.takewhile(lambda step: step not in again, rest)
    return steps


def _pace(one: Pass, begins: Container[int]) -> tuple[int, int] | None:
    """Batches that a script is ahead of its steps in a pass, and those of a step; None where the pass is too short.

    Accelerate, timm and others ask in the first step of a pass for what every later step asks for and some more, to
    have the next batch at hand. Where later steps do not ask for equally many, none are taken to be ahead.
    `begins`: steps in which passes begin.
    """
    asked, first, last = Counter(step for step, _ in one.batches), one.batches[0][0], one.batches[-1][0]
    if last <= first + 1 and (one.ended is None or one.ended in begins):
        return None
    per_step = asked[first + 1]
    is_steady = per_step > 0 and all(asked[step] == per_step for step in range(first + 1, last))
    return (max(0, asked[first] - per_step), per_step) if is_steady else (0, 1)
