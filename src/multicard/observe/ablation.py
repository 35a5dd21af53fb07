"""Ablations: skip one part of the step (loading, communication, …) to measure its cost. The model learns nothing then.

Without the *loader*, the loop gets the batches of its warm-up again and again, on the device that the script moves them
to.

Without *communication*, ranks exchange no gradients: DistributedDataParallel works as in its `no_sync`. After the first
update, collectives that are called as functions of torch.distributed give each rank only its own tensors, in the right
shape. Other exchanges, such as activations of a pipeline, cannot be left out. The counters of the process groups show
them, and then the run has no numbers.
"""

import copy
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.core.job_file import ObservedJob
from multicard.core.reasons import Reason
from multicard.core.system import read_or_none
from multicard.observe.batches import EVALUATION_PASS, Pass
from multicard.observe.loaders import Loader, ask_again, samples_asked
from multicard.observe.replace import is_compiling, replace

LOADER, COMMUNICATION = "loader", "communication"
# Batches of a loader are kept until there are MOST_KEPT of them, or until they have MOST_KEPT_BYTES bytes.
MOST_KEPT = 32
MOST_KEPT_BYTES = 2**30
# A loader is measured alone until it has given MOST_ALONE batches, or has taken more than MOST_ALONE_S seconds.
MOST_ALONE_S = 3.0
MOST_ALONE = 500
MOVES = ("to", "cuda")  # methods by which scripts move tensors


class KeptBatch(NamedTuple):
    """A batch, and the number of samples that the loader asked its data set for to make it."""

    batch: Any
    asked: int | None  # None if unknown


class LoaderAlone(NamedTuple):
    """Seconds that a loader takes for a number of batches while nothing else runs."""

    batches: int
    seconds: float


class Kept:
    """The first batches of a loader, and the loader's speed alone."""

    def __init__(self) -> None:
        self.batches: list[KeptBatch] = []
        self.bytes = 0
        self.is_full = False  # True once the loader loads no more, and the kept batches are given instead
        self.alone: LoaderAlone | None = None  # see `measured_alone`; None before that, too
        self._given = 0  # number of kept batches that were given again

    def add(self, batch: Any, asked: int | None) -> None:
        """Keep a copy of a batch, unless enough are kept. The loop may change the tensors that it gets.

        A batch that cannot be copied is kept itself.
        """
        if len(self.batches) >= MOST_KEPT or self.bytes >= MOST_KEPT_BYTES:
            return
        copied = read_or_none(lambda: map_tensors(batch, torch.clone))
        self.batches.append(KeptBatch(batch if copied is None else copied, asked))
        self.bytes += read_or_none(lambda: sum(tensor.nbytes for tensor in tensors_in(batch))) or 0

    def next(self) -> KeptBatch:
        """Return the next of the batches that were kept, over and over."""
        batch, asked = self.batches[self._given % len(self.batches)]
        self._given += 1
        return KeptBatch(map_tensors(batch, _unchanged), asked)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """Return a kept tensor for the loop; a copy if the loop has changed the kept tensor in place before.

    Without the copy, the loop would change it further each time. `_version` counts the changes in place, also those
    made through the detached tensor that the loop gets instead of a copy.
    """
    return tensor.clone() if tensor._version else tensor.detach()


class Replay:
    """Gives the loop the first batches of its loaders again, instead of loading, once `is_time` returns True.

    `hooks` has it return True shortly before the warm-up ends. A loader that is not trained on loads as before.
    """

    def __init__(self, is_time: Callable[[], bool]):
        # What is kept of each loader that loads no more. It is listed here, too, because a loader may be deleted before
        # its iterator is.
        self.replayed: list[Kept] = []
        self._is_time = is_time
        self._kept_of_loader: WeakKeyDictionary[Any, Kept] = WeakKeyDictionary()
        # Shape, type and device of the tensors that modules are called with, and of those that the script moves, with
        # the device that it moves them to.
        self._devices: set[tuple[torch.Size, torch.dtype, torch.device]] = set()
        self._stop_noting_devices: Callable[[], None] | None = None

    def kept_of(self, loader: Any) -> Kept:
        """Return what is kept of a loader. The first call begins to note devices."""
        if self._stop_noting_devices is None and not self._kept_of_loader:
            self._stop_noting_devices = self._note_devices()
        return self._kept_of_loader.setdefault(loader, Kept())

    def take(self, plain: Callable[[Any], Any], iterator: Any, drawn: Pass) -> Any:
        """Return the next batch of an iterator for the pass `drawn`: by `plain`, or a kept one if loading has stopped.

        Raises `StopIteration` at the end of the pass.
        """
        kept: Kept | None = getattr(iterator, "_multicard_kept", None)
        if kept is None or drawn is EVALUATION_PASS:
            return plain(iterator)
        loader = drawn.loader
        if not kept.is_full and drawn.trained and kept.batches and self._is_time():
            yielded = iterator._num_yielded
            self._stop_loading(kept, lambda: (plain(iterator), samples_asked(iterator)), loader.ahead)
            iterator._num_yielded = yielded
        if kept.is_full:
            if loader.length is not None and iterator._num_yielded >= loader.length and not loader.is_endless:
                raise StopIteration
            iterator._num_yielded += 1
            batch, asked = kept.next()
        else:
            batch, asked = plain(iterator), samples_asked(iterator)
            kept.add(batch, asked)
        ask_again(iterator, asked)
        return batch

    def _stop_loading(self, kept: Kept, load: Callable[[], Any], ahead: int) -> None:
        """Have a loader load no more. Before that its speed alone is measured, which may use up its pass.

        Move the kept batches to the device where the script would move them.
        """
        kept.alone = measured_alone(load, ahead)
        kept.is_full = True
        self.replayed.append(kept)
        if self._stop_noting_devices is not None:
            self._stop_noting_devices()
            self._stop_noting_devices = None
        kept.batches = [KeptBatch(map_tensors(batch, self._moved), asked) for batch, asked in kept.batches]

    def _note_devices(self) -> Callable[[], None]:
        """Note the devices of modules' inputs, and where tensors are moved to; return a function that ends this."""

        def move(plain: Callable[..., Any], tensor: Any, *arguments: Any, **options: Any) -> Any:
            moved = plain(tensor, *arguments, **options)
            if moved.device != tensor.device:
                self._devices.add((tensor.shape, tensor.dtype, moved.device))
            return moved

        undo_moves = [replace(torch.Tensor, name, move) for name in MOVES]
        hook = register_module_forward_pre_hook(self._note_inputs)

        def stop() -> None:
            for undo in undo_moves:
                undo()
            hook.remove()

        return stop

    def _note_inputs(self, _module: nn.Module, inputs: Any) -> None:
        if not is_compiling():
            self._devices |= {(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors_in(inputs)}

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device where modules get tensors of its shape and type, or the script moves them.

        If no such device is known, or several are, the tensor is returned as it is.
        """
        devices = {device for shape, dtype, device in self._devices if (shape, dtype) == (tensor.shape, tensor.dtype)}
        if len(devices) != 1 or tensor.device in devices:
            return tensor
        return tensor.to(devices.pop())


def measured_alone(load: Callable[[], Any], ahead: int) -> LoaderAlone | None:
    """Load batches while nothing else runs, and return their number and the seconds that they took.

    The first `ahead` batches do not count, because the loader may have them ready. None if no batch counts, because the
    pass ends too early, or because these batches take more than `MOST_ALONE_S` seconds.
    """
    batches = -ahead
    start = time.perf_counter()
    while batches < MOST_ALONE:
        if batches == 0:
            start = time.perf_counter()
        try:
            load()
        except StopIteration:
            break
        batches += 1
        if time.perf_counter() - start > MOST_ALONE_S:
            break
    return LoaderAlone(batches, time.perf_counter() - start) if batches > 0 else None


class ReplayedPass:
    """Iterator of a pass over a loader that loads no more, with the attributes that the observer reads.

    `Replay.take` ends the pass; without it, the iterator never ends.
    """

    def __init__(self, kept: Kept, loader: Loader | None):
        self._multicard_kept = kept
        self._multicard_loader = loader
        self._num_yielded = 0

    def __iter__(self) -> "ReplayedPass":
        return self

    def __next__(self) -> Any:
        return self._multicard_kept.next().batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested containers with `change` applied to each tensor; what is no tensor or container is not copied."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        mapped: Any = copy.copy(batch)  # a mapping may be more than a dictionary, such as a tokenizer's
        for name, value in batch.items():
            mapped[name] = map_tensors(value, change)
        return mapped
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(part, change) for part in batch))
    if type(batch) in (list, tuple):
        return type(batch)(map_tensors(part, change) for part in batch)
    return batch


# Communication --------------------------------------------------------------------------------------------------------


class CompletedWork:
    """Takes the place of the handle of an asynchronous collective that was left out."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def _keep(*_: Any) -> None:
    """Do nothing: each rank keeps its own tensors."""


def _gather_into(output: Any, shard: Any, _group: Any) -> None:
    # The shard is copied first, because it may be a part of the output, as in FSDP2.
    output.view(-1, shard.numel()).copy_(shard.clone().reshape(1, -1))


def _scatter_from(output: Any, whole: Any, _op: Any, group: Any) -> None:
    shards = whole.reshape(-1, output.numel())
    output.copy_(shards[dist.get_rank(group)].view_as(output))


def _gather(outputs: Iterable[Any], shard: Any, _group: Any) -> None:
    for output in outputs:
        output.copy_(shard)


def _scatter(output: Any, shards: list[Any], _op: Any, group: Any) -> None:
    output.copy_(shards[dist.get_rank(group)])


# For each collective, the function that a rank calls instead. It gets the arguments of the collective, in their order,
# without `async_op`.
LOCALLY: Mapping[str, Callable[..., None]] = {
    "all_reduce": _keep,
    "reduce": _keep,
    "broadcast": _keep,
    "barrier": _keep,
    "all_gather_into_tensor": _gather_into,
    "reduce_scatter_tensor": _scatter_from,
    "all_gather": _gather,
    "reduce_scatter": _scatter,
}


def leave_out_communication(has_begun: Callable[[], bool]) -> None:
    """Have DistributedDataParallel exchange no gradients from now on, and the functions in `LOCALLY` exchange nothing.

    Those functions exchange as before until `has_begun` returns True.
    """
    # A property ignores what is assigned to it. `no_sync` would not do, because scripts that accumulate gradients set
    # the attribute themselves.
    never_synchronizes = property(lambda _: False, lambda *_: None)
    setattr(DistributedDataParallel, "require_backward_grad_sync", never_synchronizes)  # noqa: B010 - mypy: it is a bool
    collectives = LOCALLY if dist.is_available() else {}
    signatures = {name: inspect.signature(getattr(dist, name)) for name in collectives}

    def exchange(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if not has_begun():
            return plain(*arguments, **options)
        call = signatures[plain.__name__].bind(*arguments, **options)
        call.apply_defaults()
        is_async = call.arguments.pop("async_op", False)
        LOCALLY[plain.__name__](*call.arguments.values())
        return CompletedWork() if is_async else None

    for name in signatures:
        replace(dist, name, exchange)


def why_not_ablated(job: ObservedJob, rank: int, replay: Replay | None, exchanged: bool | None) -> Reason | None:
    """Return why the run of a rank has no numbers: its measured steps had a part that they were to go without.

    None if there is no such part. `exchanged`: True if the ranks exchanged something in the measured steps; None if
    that is unknown, which counts as if they had.
    """
    if LOADER in job.ablate and not (replay and replay.replayed):
        no_loader = "no loader of PyTorch's was seen; wrap yours by multicard.marks.wrap_loader"
        return Reason("not_ablated", rank, part=LOADER, message=no_loader)
    if COMMUNICATION in job.ablate:
        message = _why_communication_remains(job, exchanged)
        if message is not None:
            return Reason("not_ablated", rank, part=COMMUNICATION, message=message)
    return None


def _why_communication_remains(job: ObservedJob, exchanged: bool | None) -> str | None:
    if job.ranks == 1:
        return "a single process drives all devices"
    if exchanged is None:
        return "what ranks exchange is not counted here"
    if exchanged:
        return "ranks exchanged more than gradients, as those that share a model do"
    return None


def slowest_alone(replay: Replay | None) -> LoaderAlone | None:
    """Return the speed of the loader that takes most seconds per batch; None if no loader was measured alone."""
    measured = [kept.alone for kept in replay.replayed if kept.alone] if replay else []
    return max(measured, key=lambda alone: alone.seconds / alone.batches, default=None)
