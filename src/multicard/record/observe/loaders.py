"""What a loader is, and how many samples it asks its data set for."""

from collections import deque
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from multicard.core.system import read_or_none

SAMPLERS = ("batch_sampler", "sampler")  # attributes that lead to those within
DATA_SETS = ("dataset", "datasets", "_data", "_distributed")  # likewise; the last two are torchtitan's, Hugging Face's
MOST_LINKS = 64  # samplers around samplers, or data sets around data sets, that are looked at
MOST_AHEAD = 10_000  # batches that a loader may have asked for and not given

# Attributes of loaders, samplers and data sets that give each rank its own samples, with or without a _ before them:
# of how many shares, and which; those of PyTorch, torchdata, torchtitan, Lightning, Hugging Face, Accelerate,
# OpenMMLab, YOLOX and Detectron2, and what people call them.
SHARES = ("num_replicas", "num_processes", "world_size", "data_parallel_size", "dp_world_size", "dp_size", "num_shards")
OWN_SHARE = ("rank", "process_index", "data_parallel_rank", "dp_rank", "global_rank", "shard_id", "shard_index")

# Samplers that draw from all of a data set on each rank, if they are PyTorch's or torchdata's.
PLAIN = {"BatchSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"}
PLAIN_FROM = {"torch", "torchdata"}


class Loader(NamedTuple):
    """What a loader is; kept instead of the loader itself, which may go before its iterator does."""

    # `kind`, `sampler`, `distinct`, `batch_size` and `num_workers`. `distinct`: whether each of several ranks draws
    # samples of its own; a number where so many of them do, and the others draw the same, as with tensor or context
    # parallelism; None where that cannot be told, as of a data set that may be a share itself, or of a sampler that
    # nobody here knows.
    description: dict[str, Any]
    batch_size: int | None  # samples of a full batch; None where the loader does not make the batches
    length: int | None  # batches of one pass; None where it is not known
    ahead: int  # batches that its workers prepare before they are asked for
    is_endless: bool = False  # whether a pass does not end after `length` batches, as where the sampler begins again


def loader_of(loader: DataLoader, ranks: int) -> Loader:
    """Describe a loader of one of `ranks` ranks."""
    samplers = list(_chain(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, SAMPLERS))
    streams = isinstance(loader.dataset, IterableDataset)
    stated = [loader.batch_size, *(read_or_none(lambda each=each: each.batch_size) for each in samplers)]
    batch_size = next((each for each in stated if isinstance(each, int)), None)
    description = {
        "kind": type(loader).__name__,
        "sampler": None if streams else type(samplers[-1]).__name__,
        "distinct": ranks == 1 or read_or_none(lambda: draws_distinct(samplers, loader.dataset, ranks, loader)),
        "batch_size": batch_size,
        "num_workers": loader.num_workers,
    }
    # The length of a stream is not asked for: PyTorch would then warn of batches beyond it.
    length = None if streams else read_or_none(lambda: len(loader))
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    is_endless = any("Repeat" in type(each).__name__ for each in samplers)
    if length is not None and not is_endless:  # nothing of the next pass is prepared before that begins
        ahead = min(ahead, length)
    return Loader(description, batch_size, length, ahead, is_endless)


class WrappedLoader:
    """A loader that is not PyTorch's, with the observer told of its batches; else it is as the loader itself."""

    def __init__(self, observer: Any, loader: Iterable[Any], ahead: int):
        self._observer, self._loader, self._ahead = observer, loader, ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        description = dict.fromkeys(("kind", "sampler", "distinct", "batch_size", "num_workers"))
        description["kind"] = type(self._loader).__name__
        length = read_or_none(lambda: len(self._loader))
        # As the observer knows the iterators of PyTorch's loaders.
        known = SimpleNamespace(_multicard_loader=Loader(description, None, length, self._ahead), _num_yielded=0)
        is_asked, replay = self._observer.iterator_asked(known._multicard_loader), self._observer.replay
        try:
            iterator = iter(self._loader)
        finally:
            if is_asked:
                self._observer.iterator_given()
        known._multicard_kept = replay and replay.of(self)

        def take(known: Any) -> Any:
            batch = next(iterator)
            known._num_yielded += 1
            return batch

        while True:
            drawn = self._observer.batch_asked(known)
            batch, given = None, False
            try:
                batch = take(known) if replay is None or drawn is None else replay.take(take, known, drawn)
                given = True
            except StopIteration:
                return
            finally:
                if drawn is not None:
                    self._observer.batch_given(known, drawn, batch, given)
            yield batch


def draws_distinct(samplers: list[Any], data: Any, ranks: int, loader: Any = None) -> bool | int | None:
    """Which of several ranks draw samples of their own by these samplers from this data set; see `Loader`."""
    sets = list(_chain(data, DATA_SETS))
    shares = {share for each in (loader, *samplers, *sets) for share in _shares(each)}
    if ranks in shares:
        return True
    if shares:
        [share, *others] = shares
        return None if others or ranks % share else share if share > 1 else False
    is_plain = all(_is_plain(each, data) for each in samplers) and not any(map(_may_be_share, sets))
    return False if is_plain else None


def _chain(first: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Give an object and those within it, by their attributes, the innermost last."""
    waiting, seen = deque([first]), []
    while waiting and len(seen) < MOST_LINKS:
        each = waiting.popleft()
        if each is None or any(each is other for other in seen):
            continue
        seen.append(each)
        yield each
        for name in names:
            within = read_or_none(lambda each=each, name=name: getattr(each, name))
            waiting += within if isinstance(within, list | tuple) and name == "datasets" else [within]


def _shares(link: Any) -> Iterator[int]:
    """Among how many ranks a sampler or data set says that it shares samples."""
    sizes, own = (
        [found for name in names for mark in ("", "_") if isinstance(found := getattr(link, mark + name, None), int)]
        for names in (SHARES, OWN_SHARE)
    )
    yield from (size for size in dict.fromkeys(sizes) if any(0 <= rank < size for rank in own))


def _is_plain(sampler: Any, data: Any) -> bool:
    """Whether a sampler draws from all of a data set, whichever rank asks."""
    kind = type(sampler)
    if kind.__name__ not in PLAIN or kind.__module__.partition(".")[0] not in PLAIN_FROM:
        return False
    return not isinstance(sampler, SubsetRandomSampler) or len(sampler) >= len(data)  # else it may have a rank's share


def _may_be_share(data: Any) -> bool:
    """Whether a data set may hold what is one rank's: a stream, a part, or what can be split, as Hugging Face's."""
    return isinstance(data, IterableDataset | Subset) or callable(getattr(data, "shard", None))


def note_index(iterator: Any, index: Any) -> None:
    """Keep how many samples a loader's iterator asks the data set for, until it gives their batch."""
    sampler, sizes = getattr(iterator, "_multicard_asked", (None, None))
    if sampler is not iterator._sampler_iter:  # a pass begins
        sizes = deque[int | None](maxlen=MOST_AHEAD)
        iterator._multicard_asked = iterator._sampler_iter, sizes
    asks_several = isinstance(index, list) or (iterator._auto_collation and hasattr(index, "__len__"))
    is_counted = not isinstance(iterator._dataset, IterableDataset)  # a stream may end before it gives as many
    sizes.append(len(index) if asks_several and is_counted else None)


def samples_asked(iterator: Any) -> int | None:
    """Samples that it asked for to make the batch that it gives now; None where it does not say."""
    _, sizes = getattr(iterator, "_multicard_asked", (None, None))
    return sizes.popleft() if sizes else None


def ask_again(iterator: Any, samples: int | None) -> None:
    """Have `samples_asked` give this next."""
    sampler, sizes = getattr(iterator, "_multicard_asked", (None, None))
    iterator._multicard_asked = sampler, deque([samples, *(sizes or ())], MOST_AHEAD)
