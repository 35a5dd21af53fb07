"""Ablations: skip one part of the step (loading, communication, …) to measure its cost. The model does not train then.

Without the *loader*, the loop gets the batches of its warm-up again and again, on the device that the script moves them
to. Without *communication*, ranks exchange no gradients once training has begun: DistributedDataParallel works as in
its `no_sync`, and collectives that are called as functions of torch.distributed give each rank what it has itself, in
the right shape. Other exchanges, such as activations of a pipeline, cannot be left out; the counters of the
process groups show that, and then the run has no numbers. Without the *host*, which goes without the loader, too, a
step is replayed as a CUDA graph: see `graphed`.
"""

import copy
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.core.reasons import Reason
from multicard.core.system import read_or_none
from multicard.record.observe.batches import EVALUATION_PASS, Pass
from multicard.record.observe.loaders import Loader, ask_again, samples_asked
from multicard.record.observe.replace import is_compiling, replace

LOADER, COMMUNICATION, HOST = "loader", "communication", "host"
# Batches of a loader that are kept, and their size.
MOST_KEPT = 32
MOST_KEPT_BYTES = 2**30
# A loader is measured alone for so many seconds, or batches.
MOST_ALONE_S = 3.0
MOST_ALONE = 500
MOVES = ("to", "cuda")  # methods by which scripts move tensors


class NotLeftOut(Exception):
    """A part cannot be left out, for a reason."""

    def __init__(self, part: str, why: str):
        super().__init__(f"cannot go without {part}: {why}")
        self.part = part
        self.why = why

    def reason(self, rank: int | None) -> Reason:
        """Return why the run of a rank has no numbers, as rank.json has it."""
        return Reason("not_ablated", rank, part=self.part, message=self.why)


class KeptBatch(NamedTuple):
    """A batch, and how many samples the loader asked its data set for to make it."""

    batch: Any
    asked: int | None


class LoaderAlone(NamedTuple):
    """Seconds that a loader with the machine to itself takes for some batches."""

    batches: int
    seconds: float


class Kept:
    """The first batches of a loader, and the loader's speed alone."""

    def __init__(self) -> None:
        self.batches: list[KeptBatch] = []
        self.bytes = 0
        self.is_full = False  # once True, nothing is loaded
        self.alone: LoaderAlone | None = None  # None until it is measured, and if its pass was too short for that
        self._given = 0

    def add(self, batch: Any, asked: int | None) -> None:
        """Keep a batch unless there are enough, with tensors of its own: the loop may change those that it gets."""
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
    """Return a copy of a tensor that the loop has changed in place, so that it does not change with every pass."""
    return tensor.clone() if tensor._version else tensor.detach()


class Replay:
    """Gives the loop its first batches again once `is_time` says so: when the warm-up is about to end."""

    def __init__(self, is_time: Callable[[], bool]):
        # Loaders that load no more. They are kept here since a loader may be gone before its iterator is.
        self.replayed: list[Kept] = []
        self._is_time = is_time
        self._kept_of_loader: WeakKeyDictionary[Any, Kept] = WeakKeyDictionary()
        # Shape, type and device of the tensors that modules are called with.
        self._devices: set[tuple[torch.Size, torch.dtype, torch.device]] = set()
        self._stop_noting_devices: Callable[[], None] | None = None

    def kept_of(self, loader: Any) -> Kept:
        """Return what is kept of a loader."""
        if self._stop_noting_devices is None and not self._kept_of_loader:
            self._stop_noting_devices = self._note_devices()
        return self._kept_of_loader.setdefault(loader, Kept())

    def take(self, plain: Callable[[Any], Any], iterator: Any, drawn: Pass) -> Any:
        """Return the batch that an iterator gives for the pass `drawn`: its next, by `plain`, or one that was kept."""
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
        """Measure a loader alone, which may use up its pass, and have it load no more."""
        kept.alone = measured_alone(load, ahead)
        kept.is_full = True
        self.replayed.append(kept)
        if self._stop_noting_devices is not None:
            self._stop_noting_devices()
            self._stop_noting_devices = None
        kept.batches = [KeptBatch(map_tensors(batch, self._moved), asked) for batch, asked in kept.batches]

    def _note_devices(self) -> Callable[[], None]:
        """Note where modules get their inputs, and where tensors are moved to; return a function that ends that."""

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
        """Return a tensor on the device where modules get one like it, or to which the loop moves one."""
        devices = {device for shape, dtype, device in self._devices if (shape, dtype) == (tensor.shape, tensor.dtype)}
        if len(devices) != 1 or tensor.device in devices:
            return tensor
        return tensor.to(devices.pop())


def measured_alone(load: Callable[[], Any], ahead: int) -> LoaderAlone | None:
    """Return the seconds for some batches with nothing else running; None if the pass ends first.

    The batches `ahead`, which the loader had ready, are not counted.
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
    """A pass over a loader that loads no more: an iterator with the attributes that the observer reads."""

    def __init__(self, kept: Kept, loader: Loader | None):
        self._multicard_kept = kept
        self._multicard_loader = loader
        self._num_yielded = 0

    def __iter__(self) -> "ReplayedPass":
        return self

    def __next__(self) -> Any:
        return self._multicard_kept.next().batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return the same containers with each tensor changed; what is neither stays as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        mapped: Any = copy.copy(batch)  # it may be more than a dictionary, as those of tokenizers
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
    """Stands for the work of a collective that had nothing to do."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def _keep(*_: Any) -> None:
    """Each rank keeps what it has."""


def _gather_into(output: Any, shard: Any, _group: Any) -> None:
    # The copy is needed since the shard may be a part of the output, as FSDP2's is.
    output.view(-1, shard.numel()).copy_(shard.clone().reshape(1, -1))


def _scatter_from(output: Any, whole: Any, _op: Any, group: Any) -> None:
    shards = whole.reshape(-1, output.numel())
    output.copy_(shards[dist.get_rank(group)].view_as(output))


def _gather(outputs: Iterable[Any], shard: Any, _group: Any) -> None:
    for output in outputs:
        output.copy_(shard)


def _scatter(output: Any, shards: list[Any], _op: Any, group: Any) -> None:
    output.copy_(shards[dist.get_rank(group)])


# Collectives, and what each does on a rank alone, by its arguments but for `async_op`.
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
    """Have ranks exchange no gradients, and nothing by the functions in `LOCALLY` once training `has_begun`."""
    # A property, since scripts that accumulate gradients set the attribute themselves: `no_sync` alone would not do.
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


def find_part_not_left_out(
    stated: Mapping[str, Any], replay: Replay | None, exchanged: bool | None
) -> NotLeftOut | None:
    """Return the part that the measured steps had nevertheless, and why; None if there is none.

    `stated`: `observe` of job.json. `exchanged`: the ranks exchanged something; None if that is unknown.
    """
    parts: Sequence[str] = stated.get("ablate") or ()
    if LOADER in parts and HOST not in parts and not (replay and replay.replayed):
        return NotLeftOut(LOADER, "no loader of PyTorch's was seen; wrap yours by multicard.marks.wrap_loader")
    if COMMUNICATION in parts:
        if stated["ranks"] == 1:
            return NotLeftOut(COMMUNICATION, "a single process drives all devices")
        if exchanged is None:
            return NotLeftOut(COMMUNICATION, "what ranks exchange is not counted here")
        if exchanged:
            return NotLeftOut(COMMUNICATION, "ranks exchanged more than gradients, as those that share a model do")
    return None


def loader_alone(replay: Replay | None, batches_per_step: float) -> dict[str, Any]:
    """Return `loader_alone` of rank.json: `batches`, `seconds` and `batches_per_step` of the slowest loader left out.

    Empty if no loader was measured alone.
    """
    measured = [kept.alone for kept in replay.replayed if kept.alone] if replay else []
    if not measured or not batches_per_step:
        return {}
    slowest = max(measured, key=lambda alone: alone.seconds / alone.batches)
    return {"loader_alone": {**slowest._asdict(), "batches_per_step": batches_per_step}}
