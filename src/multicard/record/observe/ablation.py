"""Parts of a step that a run goes without, so that what they cost is measured and not inferred; nothing is learned.

Without the *loader*, the loop gets the batches of its warm-up again and again, on the device that the script moves them
to. Without *communication*, ranks exchange no gradients once training has begun: DistributedDataParallel works as in
its `no_sync`, and collectives that are called as functions of torch.distributed give each rank what it has itself, in
the right shape. What else ranks exchange, such as activations of a pipeline, cannot be left out; the counters of the
process groups tell that, and then the run has no numbers. Without the *host*, which goes without the loader, too, a
step is replayed as a CUDA graph: see `graphed`.
"""

import copy
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from multicard.core.system import read_or_none
from multicard.record.observe.loaders import ask_again, samples_asked
from multicard.record.observe.replace import is_compiling, replace

LOADER, COMMUNICATION, HOST = "loader", "communication", "host"
MOST_KEPT, MOST_BYTES = 32, 2**30  # batches of a loader, and their size
ALONE_S, MOST_ALONE = 3.0, 500  # that a loader is measured alone: seconds, batches
MOVES = ("to", "cuda")  # by which scripts move tensors


class NotLeftOut(Exception):
    """A part cannot be left out."""

    def __init__(self, part: str, why: str):
        super().__init__(f"cannot go without {part}: {why}")
        self.part, self.why = part, why


class Kept:
    """The first batches of a loader, and what it does alone."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, Any]] = []  # and how many samples the loader asked for to make each
        self.bytes = 0
        self.is_full = False  # from here on nothing is loaded
        self.alone: dict[str, float] | None = None
        self._given = 0

    def add(self, batch: Any, asked: Any) -> None:
        """Keep a batch unless there are enough, with tensors of its own: the loop may change those that it gets."""
        if len(self.batches) >= MOST_KEPT or self.bytes >= MOST_BYTES:
            return
        own = read_or_none(lambda: map_tensors(batch, torch.clone))
        self.batches.append((batch if own is None else own, asked))
        self.bytes += read_or_none(lambda: sum(each.nbytes for each in tensors_in(batch))) or 0

    def next(self) -> tuple[Any, Any]:
        """A batch that was kept, and its samples."""
        batch, asked = self.batches[self._given % len(self.batches)]
        self._given += 1
        # One that the loop has changed in place is copied from then on, so that it does not change with every pass.
        return map_tensors(batch, lambda each: each.clone() if each._version else each.detach()), asked


class Replay:
    """Gives the loop its first batches again once `is_time` says so: when the warm-up is about to end."""

    def __init__(self, is_time: Callable[[], bool]):
        self._is_time = is_time
        self._of_loader: WeakKeyDictionary[Any, Kept] = WeakKeyDictionary()
        self._seen: set[tuple[Any, ...]] = set()  # shape, type and device of what modules are called with
        self._stop_noting: Callable[[], None] | None = None
        self.replayed: list[Kept] = []  # of loaders that load no more, which may be gone before their iterators are

    def of(self, loader: Any) -> Kept:
        """What is kept of a loader."""
        if self._stop_noting is None and not self._of_loader:
            self._stop_noting = self._note_devices()
        return self._of_loader.setdefault(loader, Kept())

    def take(self, plain: Callable[[Any], Any], iterator: Any, drawn: Any) -> Any:
        """The batch that an iterator gives by `plain` for the pass `drawn`: its next, or one that was kept."""
        kept, loader = getattr(iterator, "_multicard_kept", None), drawn.loader
        if kept is None or loader is None:  # of a test
            return plain(iterator)
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

    def _stop_loading(self, kept: Kept, take: Callable[[], Any], ahead: int) -> None:
        """Measure a loader alone, which may use up its pass, and have it load no more."""
        kept.alone = measured_alone(take, ahead)
        kept.is_full = True
        self.replayed.append(kept)
        if self._stop_noting is not None:
            self._stop_noting()
            self._stop_noting = None
        kept.batches = [(map_tensors(batch, self._moved), asked) for batch, asked in kept.batches]

    def _note_devices(self) -> Callable[[], None]:
        """Note from now on where modules get their inputs, and where tensors are moved to; give what ends that."""

        def move(plain: Callable[..., Any], tensor: Any, *arguments: Any, **options: Any) -> Any:
            found = plain(tensor, *arguments, **options)
            if found.device != tensor.device:
                self._seen.add((tensor.shape, tensor.dtype, found.device))
            return found

        undo = [replace(torch.Tensor, name, move) for name in MOVES]
        undo.append(register_module_forward_pre_hook(self._note_inputs).remove)
        return lambda: [each() for each in undo]

    def _note_inputs(self, _module: nn.Module, inputs: Any) -> None:
        if not is_compiling():
            self._seen |= {(each.shape, each.dtype, each.device) for each in tensors_in(inputs)}

    def _moved(self, tensor: Any) -> Any:
        """A tensor on the device where modules get one like it, or the loop moves one to, so that it need not."""
        like = {device for shape, kind, device in self._seen if (shape, kind) == (tensor.shape, tensor.dtype)}
        return tensor.to(like.pop()) if len(like) == 1 and tensor.device not in like else tensor


def measured_alone(take: Callable[[], Any], ahead: int) -> dict[str, float] | None:
    """How long a loader takes that has the machine to itself: `seconds` for `batches`; None where its pass ends before.

    The batches `ahead`, which it had ready, are not counted.
    """
    batches, start = -ahead, time.perf_counter()
    while batches < MOST_ALONE:
        if batches == 0:
            start = time.perf_counter()
        try:
            take()
        except StopIteration:
            break
        batches += 1
        if time.perf_counter() - start > ALONE_S:
            break
    return {"batches": batches, "seconds": time.perf_counter() - start} if batches > 0 else None


class ReplayedPass:
    """A pass over a loader that loads no more: an iterator as the observer knows those of PyTorch."""

    def __init__(self, kept: Kept, loader: Any):
        self._multicard_kept, self._multicard_loader = kept, loader
        self._num_yielded = 0

    def __iter__(self) -> "ReplayedPass":
        return self

    def __next__(self) -> Any:
        return self._multicard_kept.next()[0]


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested containers."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(each)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same containers with each tensor changed; what is neither stays as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        found = copy.copy(batch)  # it may be more than a dictionary, as those of tokenizers
        for name, value in batch.items():
            found[name] = map_tensors(value, change)
        return found
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(each, change) for each in batch))
    if type(batch) in (list, tuple):
        return type(batch)(map_tensors(each, change) for each in batch)
    return batch


# Communication --------------------------------------------------------------------------------------------------------


class Done:
    """Stands for the work of a collective that had nothing to do."""

    def wait(self, *_: Any) -> bool:
        """It is done."""
        return True

    is_completed = wait


def _keep(*_: Any) -> None:
    """Each rank keeps what it has."""


def _gather_into(output: Any, own: Any, _group: Any) -> None:
    output.view(-1, own.numel()).copy_(own.clone().reshape(1, -1))  # it may be a part of the output, as FSDP2's is


def _scatter_from(output: Any, own: Any, _op: Any, group: Any) -> None:
    output.copy_(own.reshape(-1, output.numel())[dist.get_rank(group)].view_as(output))


def _gather(outputs: Iterable[Any], own: Any, _group: Any) -> None:
    for each in outputs:
        each.copy_(own)


def _scatter(output: Any, own: list[Any], _op: Any, group: Any) -> None:
    output.copy_(own[dist.get_rank(group)])


# What each does on a rank alone, by its arguments but for `async_op`.
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
    """Have ranks exchange no gradients, and nothing by the functions above once training `has_begun`."""
    # Scripts that accumulate gradients set it themselves, so that `no_sync` alone would not do.
    DistributedDataParallel.require_backward_grad_sync = property(lambda _: False, lambda *_: None)
    signatures = {name: inspect.signature(getattr(dist, name)) for name in (LOCALLY if dist.is_available() else ())}

    def exchange(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if not has_begun():
            return plain(*arguments, **options)
        given = signatures[plain.__name__].bind(*arguments, **options)
        given.apply_defaults()
        is_async = given.arguments.pop("async_op", False)
        LOCALLY[plain.__name__](*given.arguments.values())
        return Done() if is_async else None

    for name in signatures:
        replace(dist, name, exchange)


def not_left_out(stated: Mapping[str, Any], replay: Replay | None, exchanged: bool | None) -> dict[str, str] | None:
    """The `part` that the measured steps had nevertheless, and why as `message`; None where there is none.

    `exchanged`: whether the ranks exchanged anything; None where that cannot be told.
    """
    parts = stated.get("ablate") or ()
    if LOADER in parts and HOST not in parts and not (replay and replay.replayed):
        message = "no loader of PyTorch's was seen; wrap yours by multicard.marks.wrap_loader"
        return {"part": LOADER, "message": message}
    if COMMUNICATION in parts and stated["ranks"] == 1:
        return {"part": COMMUNICATION, "message": "a single process drives all devices"}
    if COMMUNICATION in parts and exchanged is not False:
        more = "ranks exchanged more than gradients, as those that share a model do"
        return {"part": COMMUNICATION, "message": more if exchanged else "what ranks exchange is not counted here"}
    return None


def loader_alone(replay: Replay | None, batches_per_step: float) -> dict[str, Any]:
    """What the slowest of the loaders that were left out does alone, as `loader_alone`; nothing where there is none."""
    known = [kept.alone for kept in (replay.replayed if replay else ()) if kept.alone]
    slowest = max(known, key=lambda each: each["seconds"] / each["batches"], default=None)
    known = slowest and batches_per_step
    return {"loader_alone": slowest | {"batches_per_step": batches_per_step}} if known else {}
