"""Describe a loader, and count the samples that it asks its data set for."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from multicard.core.system import read_or_none

WITHIN_SAMPLERS = ("batch_sampler", "sampler")  # attributes with the sampler within a sampler
# Attributes with the data set within a data set, or a list of several; the last two are torchtitan's, Hugging Face's.
WITHIN_DATA_SETS = ("dataset", "datasets", "_data", "_distributed")
MOST_LINKS = 64  # samplers around samplers, or data sets around data sets, that are looked at
MOST_AHEAD = 10_000  # batches that a loader may have asked for and not given

# Attributes of loaders, samplers and data sets that give each rank samples of its own, with or without a _ before them:
# the number of shares, and the number of this rank's share. They are those of PyTorch, torchdata, torchtitan,
# Lightning, Hugging Face, Accelerate, OpenMMLab, YOLOX and Detectron2, and what people call them.
SHARES = ("num_replicas", "num_processes", "world_size", "data_parallel_size", "dp_world_size", "dp_size", "num_shards")
OWN_SHARE = ("rank", "process_index", "data_parallel_rank", "dp_rank", "global_rank", "shard_id", "shard_index")

# Samplers that draw from all of a data set on each rank, if they are PyTorch's or torchdata's.
PLAIN = {"BatchSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"}
PLAIN_FROM = {"torch", "torchdata"}


class Loader(NamedTuple):
    """Facts of a loader; kept instead of the loader itself, which may go before its iterator does.

    `description` is what rank.json has of it: `kind`, `sampler`, `distinct` (see `draws_distinct`), `batch_size` and
    `num_workers`.
    """

    description: dict[str, Any]
    batch_size: int | None  # samples of a full batch; None where the loader does not make the batches
    length: int | None  # batches of one pass; None where it is not known
    ahead: int  # batches that its workers prepare before they are asked for
    is_endless: bool = False  # a pass does not end after `length` batches, as where the sampler begins again


def loader_of(loader: "DataLoader[Any]", ranks: int) -> Loader:
    """Describe a loader of one of `ranks` ranks."""
    outer_sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    samplers = list(_chain(outer_sampler, WITHIN_SAMPLERS))
    is_stream = isinstance(loader.dataset, IterableDataset)
    stated_sizes = [loader.batch_size, *(_attribute(sampler, "batch_size") for sampler in samplers)]
    batch_size = next((size for size in stated_sizes if isinstance(size, int)), None)
    distinct: bool | int | None = True
    if ranks > 1:
        distinct = read_or_none(lambda: draws_distinct(samplers, loader.dataset, ranks, loader))
    description = {
        "kind": type(loader).__name__,
        "sampler": None if is_stream else type(samplers[-1]).__name__,
        "distinct": distinct,
        "batch_size": batch_size,
        "num_workers": loader.num_workers,
    }
    # The length of a stream is not asked for: PyTorch would then warn of batches beyond it.
    length = None if is_stream else read_or_none(lambda: len(loader))
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    is_endless = any("Repeat" in type(sampler).__name__ for sampler in samplers)
    if length is not None and not is_endless:  # nothing of the next pass is prepared before that begins
        ahead = min(ahead, length)
    return Loader(description, batch_size, length, ahead, is_endless)


def draws_distinct(samplers: list[Any], data: Any, ranks: int, loader: Any = None) -> bool | int | None:
    """Return whether the samplers give each of several ranks samples of its own from this data set.

    A number if so many ranks, of more, get distinct samples and the others the same, as with tensor or context
    parallelism. None if that is unknown, as of a data set that may be a share itself, or of a sampler that is not
    PyTorch's and states no share.
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
    """Yield an object and those within it, by their attributes, the innermost last."""
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
    """Return an attribute; None if there is none, or it cannot be read: it may run code of the script."""
    return read_or_none(lambda: getattr(link, name))


def _shares(link: Any) -> Iterator[int]:
    """Yield among how many ranks a sampler or data set states that it shares samples."""
    numbers_of_share = _integers(link, OWN_SHARE)
    for shares in dict.fromkeys(_integers(link, SHARES)):
        if any(0 <= number < shares for number in numbers_of_share):
            yield shares


def _integers(link: Any, names: tuple[str, ...]) -> list[int]:
    """Return the attributes of these names, with or without a _ before them, that are integers."""
    values = (getattr(link, prefix + name, None) for name in names for prefix in ("", "_"))
    return [value for value in values if isinstance(value, int)]


def _is_plain(sampler: Any, data: Any) -> bool:
    """True if a sampler draws from all of a data set, whatever the rank."""
    sampler_type = type(sampler)
    package = sampler_type.__module__.partition(".")[0]
    if sampler_type.__name__ not in PLAIN or package not in PLAIN_FROM:
        return False
    # One that draws from a part of the data set may have a rank's share.
    return not isinstance(sampler, SubsetRandomSampler) or len(sampler) >= len(data)


def _may_be_share(data: Any) -> bool:
    """True if a data set may be one rank's: a stream, a part, or what can be split, as Hugging Face's."""
    return isinstance(data, IterableDataset | Subset) or callable(getattr(data, "shard", None))


class Asked:
    """Samples of the batches that an iterator has asked its data set for and not given; None where it does not say.

    `sampler_iterator` is a new object in each pass of the loader.
    """

    __slots__ = ("sampler_iterator", "sizes")

    def __init__(self, sampler_iterator: object) -> None:
        self.sampler_iterator = sampler_iterator
        self.sizes = deque[int | None](maxlen=MOST_AHEAD)


def note_index(iterator: Any, index: Any) -> None:
    """Keep how many samples a loader's iterator asks the data set for, until it gives their batch."""
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    if asked is None or asked.sampler_iterator is not iterator._sampler_iter:  # a pass begins
        asked = iterator._multicard_asked = Asked(iterator._sampler_iter)
    asks_several = isinstance(index, list) or (iterator._auto_collation and hasattr(index, "__len__"))
    is_counted = not isinstance(iterator._dataset, IterableDataset)  # a stream may end before it gives as many
    asked.sizes.append(len(index) if asks_several and is_counted else None)


def samples_asked(iterator: Any) -> int | None:
    """Return the samples that it asked for to make the batch that it gives now; None where it does not say.

    To be called once for each batch.
    """
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    return asked.sizes.popleft() if asked is not None and asked.sizes else None


def ask_again(iterator: Any, samples: int | None) -> None:
    """Have `samples_asked` return this next."""
    asked: Asked | None = getattr(iterator, "_multicard_asked", None)
    if asked is None:
        asked = iterator._multicard_asked = Asked(None)
    asked.sizes.appendleft(samples)
