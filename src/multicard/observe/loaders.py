"""Describe a loader, and count the samples that it asks its data set for."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from multicard.core.system import read_or_none

WITHIN_SAMPLERS = ("batch_sampler", "sampler")  # attributes with the sampler within a sampler
# Attributes with the data set within a data set; "datasets" may have a list of several. "_data" is torchtitan's,
# "_distributed" is Hugging Face's.
WITHIN_DATA_SETS = ("dataset", "datasets", "_data", "_distributed")
# Attributes with PyTorch's loader within a loader that is not PyTorch's, such as one that moves batches to a device.
WITHIN_LOADERS = ("loader", "dataloader", "data_loader", "_loader", "_dataloader", "base_loader", "base_dataloader")
MOST_LINKS = 64  # at most so many nested samplers, and so many nested data sets, are looked at
MOST_AHEAD = 10_000  # at most so many batches that a loader has asked for, but not yet given, are remembered

# A loader, sampler or data set that gives each rank its own share of the samples has two of these attributes, with or
# without a _ before the name: SHARES is the number of shares, OWN_SHARE the number of this rank's share, from 0. The
# names are those in PyTorch, torchdata, torchtitan, Lightning, Hugging Face, Accelerate, OpenMMLab, YOLOX and
# Detectron2, and some that are common in scripts.
SHARES = ("num_replicas", "num_processes", "world_size", "data_parallel_size", "dp_world_size", "dp_size", "num_shards")
OWN_SHARE = ("rank", "process_index", "data_parallel_rank", "dp_rank", "global_rank", "shard_id", "shard_index")

# A sampler of such a class, from one of these packages, draws from the whole data set on each rank. A
# SubsetRandomSampler does so only if its subset is the whole data set.
PLAIN = {"BatchSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"}
PLAIN_FROM = {"torch", "torchdata"}


class LoaderDescription(NamedTuple):
    """What rank.json has of a loader; None for what is not known."""

    kind: str  # its class
    sampler: str | None = None  # class of its innermost sampler; None also for a stream
    distinct: bool | int | None = None  # see `draws_distinct`; True if there is one rank
    batch_size: int | None = None  # samples of a full batch
    num_workers: int | None = None
    prefetch_factor: int | None = None  # batches that each worker prepares ahead; None also without workers
    persistent_workers: bool | None = None  # None also without workers
    pin_memory: bool | None = None
    batches_in_pass: int | None = None  # None also for a stream


class Loader(NamedTuple):
    """Facts of a loader; kept instead of the loader itself, which may be deleted before its iterator is."""

    description: LoaderDescription
    batch_size: int | None  # samples of a full batch; None if neither the loader nor a sampler states it
    length: int | None  # batches of one pass; None if it is unknown
    ahead: int  # batches that its workers prepare before they are asked for
    is_endless: bool = False  # True if a pass does not end after `length` batches, because its sampler repeats


def loader_of(loader: "DataLoader[Any]", ranks: int) -> Loader:
    """Describe a loader of one rank; `ranks`: number of ranks."""
    outer_sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    samplers = list(_chain(outer_sampler, WITHIN_SAMPLERS))
    is_stream = isinstance(loader.dataset, IterableDataset)
    stated_sizes = [loader.batch_size, *(_attribute(sampler, "batch_size") for sampler in samplers)]
    batch_size = next((size for size in stated_sizes if isinstance(size, int)), None)
    distinct: bool | int | None = True
    if ranks > 1:
        distinct = read_or_none(lambda: draws_distinct(samplers, loader.dataset, ranks, loader))
    # The length of a stream is not read, because PyTorch would then warn of batches beyond this length.
    length = None if is_stream else read_or_none(lambda: len(loader))
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    is_endless = any("Repeat" in type(sampler).__name__ for sampler in samplers)
    description = LoaderDescription(
        kind=type(loader).__name__,
        sampler=None if is_stream else type(samplers[-1]).__name__,
        distinct=distinct,
        batch_size=batch_size,
        **_loading_of(loader),
        batches_in_pass=None if is_endless else length,
    )
    if length is not None and not is_endless:  # workers prepare nothing of a pass before it begins
        ahead = min(ahead, length)
    return Loader(description, batch_size, length, ahead, is_endless)


def description_of_wrapped(loader: Any, length: int | None) -> LoaderDescription:
    """Describe a loader that is not PyTorch's, by PyTorch's loader within it if there is one; `length`: its batches."""
    chain = _chain(loader, WITHIN_LOADERS)
    within = next((link for link in chain if isinstance(link, DataLoader)), None)
    how = {} if within is None else _loading_of(within)
    return LoaderDescription(type(loader).__name__, **how, batches_in_pass=length)


def without_varying_length(descriptions: Iterable[LoaderDescription]) -> list[LoaderDescription]:
    """Return different descriptions, each once. Those that differ in the length of a pass are one without a length.

    They are of a loader whose passes are not equally long, or that is made again for each pass.
    """
    lengths: dict[LoaderDescription, set[int | None]] = {}
    for description in descriptions:
        lengths.setdefault(description._replace(batches_in_pass=None), set()).add(description.batches_in_pass)
    return [
        description._replace(batches_in_pass=next(iter(counts)) if len(counts) == 1 else None)
        for description, counts in lengths.items()
    ]


def _loading_of(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the fields of a description that say how a loader of PyTorch loads."""
    has_workers = loader.num_workers > 0
    return {
        "num_workers": loader.num_workers,
        "prefetch_factor": loader.prefetch_factor if has_workers else None,
        "persistent_workers": bool(loader.persistent_workers) if has_workers else None,
        "pin_memory": bool(loader.pin_memory),
    }


def draws_distinct(samplers: list[Any], data: Any, ranks: int, loader: Any = None) -> bool | int | None:
    """Return whether each of several ranks gets its own samples of a data set.

    True: each rank draws from its own share. False: each rank draws from the whole data set. A number n, less than
    `ranks`: there are n shares, and several ranks draw from the same share, as with tensor or context parallelism.

    None if this is unknown: if no share is stated, but a data set may be a share itself, or a sampler is not PyTorch's;
    if several numbers of shares are stated and none is `ranks`; if the ranks cannot be divided into the shares equally.
    """
    data_sets = list(_chain(data, WITHIN_DATA_SETS))
    shares: set[int] = set()
    for link in (loader, *samplers, *data_sets):
        shares.update(_shares(link))
    if ranks in shares:
        return True
    if len(shares) == 1:
        [share] = shares
        if ranks % share:
            return None
        return share if share > 1 else False
    if shares:
        return None
    is_plain = all(_is_plain(sampler, data) for sampler in samplers)
    return False if is_plain and not any(map(_may_be_share, data_sets)) else None


def _chain(first: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield an object, then the objects in its attributes `names`, then the objects in theirs, and so on, each once."""
    waiting = deque([first])
    seen: list[Any] = []
    while waiting and len(seen) < MOST_LINKS:
        link = waiting.popleft()
        if link is None or any(link is earlier for earlier in seen):
            continue
        seen.append(link)
        yield link
        for name in names:
            within = _attribute(link, name)
            if name == "datasets" and isinstance(within, list | tuple):
                waiting += within
            else:
                waiting.append(within)


def _attribute(link: Any, name: str) -> Any:
    """Return an attribute; None if there is none, or if reading it raises, because it may run code of the script."""
    return read_or_none(lambda: getattr(link, name))


def _shares(link: Any) -> Iterator[int]:
    """Yield the numbers of shares that a loader, sampler or data set states.

    A number of shares counts only if the object has the number of a share, too, which is from 0 to that number less 1.
    """
    numbers_of_share = _integers(link, OWN_SHARE)
    for shares in dict.fromkeys(_integers(link, SHARES)):
        if any(0 <= number < shares for number in numbers_of_share):
            yield shares


def _integers(link: Any, names: tuple[str, ...]) -> list[int]:
    """Return the attributes of these names, with or without a _ before them, that are integers."""
    values = (getattr(link, prefix + name, None) for name in names for prefix in ("", "_"))
    return [value for value in values if isinstance(value, int)]


def _is_plain(sampler: Any, data: Any) -> bool:
    """True if a sampler is known to draw from the whole data set on every rank."""
    sampler_type = type(sampler)
    package = sampler_type.__module__.partition(".")[0]
    if sampler_type.__name__ not in PLAIN or package not in PLAIN_FROM:
        return False
    # A part of the data set may be the share of one rank.
    return not isinstance(sampler, SubsetRandomSampler) or len(sampler) >= len(data)


def _may_be_share(data: Any) -> bool:
    """True if a data set may be one rank's share: a stream, a `Subset`, or one with a method `shard` (Hugging Face)."""
    return isinstance(data, IterableDataset | Subset) or callable(getattr(data, "shard", None))


class Asked:
    """Numbers of samples of the batches that an iterator has asked its data set for, but not yet given; oldest first.

    A number is None if it is unknown. `sampler_iterator`: the iterator of the loader's sampler. It is a new object in
    each pass of the loader, so it shows when a pass begins. `is_stream`: True if the data set is a stream, which may
    end before it gives as many samples as it was asked for.
    """

    __slots__ = ("is_stream", "sampler_iterator", "sizes")

    def __init__(self, sampler_iterator: object, is_stream: bool) -> None:
        self.sampler_iterator = sampler_iterator
        self.is_stream = is_stream
        self.sizes = deque[int | None](maxlen=MOST_AHEAD)


def note_index(iterator: Any, index: Any) -> None:
    """Keep the number of samples that a loader's iterator asks the data set for, until it gives their batch.

    `index`: what the data set is asked for. The number is its length if it is a list, or if it has a length and PyTorch
    collates the samples. It is None for any other index, which may be that of a whole batch, and for a stream.
    """
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    if asked is None or asked.sampler_iterator is not iterator._sampler_iter:  # a pass begins
        is_stream = isinstance(iterator._dataset, IterableDataset)
        asked = iterator._multicard_asked = Asked(iterator._sampler_iter, is_stream)
    asks_several = isinstance(index, list) or (iterator._auto_collation and hasattr(index, "__len__"))
    asked.sizes.append(len(index) if asks_several and not asked.is_stream else None)


def samples_asked(iterator: Any) -> int | None:
    """Return the number of samples that a loader's iterator asked for, for the batch that it gives now.

    None if the number is unknown. Must be called once for each batch, because it removes the number.
    """
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    return asked.sizes.popleft() if asked is not None and asked.sizes else None


def ask_again(iterator: Any, samples: int | None) -> None:
    """Have the next call of `samples_asked` for this iterator return `samples`."""
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    if asked is None:
        asked = iterator._multicard_asked = Asked(None, is_stream=False)
    asked.sizes.appendleft(samples)
