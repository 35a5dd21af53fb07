"""What of PyTorch is watched: its optimizers, gradient scalers, loaders and backward pass.

PyTorch has hooks for optimizers alone; an update that a gradient scaler skips, a wait for a batch and a backward pass
have none. So functions of PyTorch are replaced by ones that call them and tell the observer.
"""

import contextlib
import functools
from collections.abc import Callable
from inspect import isgeneratorfunction
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from multicard.core.files import read_json
from multicard.core.system import read_or_none
from multicard.record.observe.ablation import COMMUNICATION, HOST, LOADER, Replay, ReplayedPass, leave_out_communication
from multicard.record.observe.loaders import Loader, loader_of, note_index, samples_asked
from multicard.record.observe.observer import OBSERVER
from multicard.record.observe.ranks import BETWEEN_TWO, messages, world_size
from multicard.record.observe.replace import is_compiling, replace

COMPILER = torch._C._dynamo.eval_frame
DESCRIBED = WeakKeyDictionary[Any, tuple[Loader | None, int]]()  # loaders, and for how many ranks


def install(note_process: Callable[..., None], job: str) -> None:
    """Watch this process from now on; `note_process` adds facts to its process.json, `job` is the path of job.json."""
    OBSERVER.begin(note_process, job)
    _hide_from_compiler()  # first: of a function of this module, what `apart` says counts
    _watch_optimizers()
    _watch_scalers()
    _watch_backward()
    _watch_loaders()
    _watch_messages()
    _ablate(read_json(Path(job))["observe"])
    for mark in (OBSERVER.mark_step, OBSERVER.mark_training, OBSERVER.mark_values):
        apart(mark)


def apart(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that calls a method of the observer, and have torch.compile leave alone what that calls.

    As `torch.compiler.disable` does, which would import torch._dynamo into every script.
    """
    if hasattr(COMPILER, "set_code_exec_strategy"):
        skip = COMPILER._FrameAction.SKIP
        COMPILER.set_code_exec_strategy(method.__code__, COMPILER._FrameExecStrategy(skip, skip))
        return method
    set_compiler = getattr(COMPILER, "set_eval_frame", lambda _: None)

    def call(*arguments: Any) -> Any:
        compiler = set_compiler(None)
        if compiler is None:
            return method(*arguments)
        try:
            return method(*arguments)
        finally:
            set_compiler(compiler)

    return call


def _call(plain: Callable[..., Any], arguments: Any, options: Any, ends: Callable[[bool], None]) -> Any:
    """Call a function, and tell at its end whether it failed."""
    done = False
    try:
        found = plain(*arguments, **options)
        done = True
    finally:
        ends(done)
    return found


def _watch_optimizers() -> None:
    """Watch `step` of every optimizer, where PyTorch itself wraps it to call its hooks."""
    base = torch.optim.Optimizer
    begins, ends = apart(OBSERVER.update_begins), apart(OBSERVER.update_ends)
    wrap = base.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        plain = wrap(step)

        @functools.wraps(plain)
        def watched(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                found = plain(*arguments, **options)
                OBSERVER.updated_in_graph = arguments[0]  # torch.compile does so after each run of the graph
                return found
            closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
            begins(callable(closure))
            return _call(plain, arguments, options, lambda done: ends(arguments[0] if done else None))

        return watched

    base.profile_hook_step = staticmethod(profile_hook_step)
    for optimizer in vars(torch.optim).values():
        if isinstance(optimizer, type) and issubclass(optimizer, base) and "step" in vars(optimizer):
            optimizer.step = profile_hook_step(optimizer.step)
            optimizer.step.hooked = True


def _watch_scalers() -> None:
    """Watch gradient scalers, since an update that they skip is the end of a step too."""
    begins, ends = apart(OBSERVER.update_begins), apart(OBSERVER.update_ends)

    def step(plain: Callable[..., Any], scaler: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        OBSERVER.has_scaler |= scaler.is_enabled()
        begins(callable(options.get("closure", arguments[0] if arguments else None)))
        given = (scaler, optimizer, *arguments)
        return _call(plain, given, options, lambda done: ends(optimizer if done else None))

    replace(torch.amp.GradScaler, "step", step)


def _watch_backward() -> None:
    """Watch the backward pass, which `Tensor.backward` calls by this name, and that of gradients alone."""
    begins, ends = apart(OBSERVER.backward_begins), apart(OBSERVER.backward_ends)
    gradients_end = apart(OBSERVER.gradients_end)

    def backward(plain: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        begins(options.get("tensors", arguments[0] if arguments else None))
        _call(plain, arguments, options, ends)

    def grad(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begins(None, True)
        return _call(plain, arguments, options, lambda _: gradients_end())

    replace(torch.autograd, "backward", backward)
    replace(torch.autograd, "grad", grad)


def _watch_loaders() -> None:
    """Watch the iterators of loaders, those of subclasses included, such as torchdata's."""
    base = dataloader._BaseDataLoaderIter
    asks, gets, take = apart(OBSERVER.batch_asked), apart(OBSERVER.batch_given), apart(Replay.take)
    drop, note, describe = apart(samples_asked), apart(note_index), apart(_described)
    asks_iterator, gets_iterator = apart(OBSERVER.iterator_asked), apart(OBSERVER.iterator_given)
    watched: set[type] = {dataloader.DataLoader}

    def iterate(plain: Callable[..., Any], loader: Any, is_plain: bool) -> Any:
        if not asks_iterator(describe(loader), is_plain):
            return plain(loader)
        try:
            return plain(loader)
        finally:
            gets_iterator()

    def watch_iter(kind: type) -> None:
        """Watch `__iter__` of loaders that have one of their own, such as torchdata's, from their second pass on."""
        for each in kind.__mro__:
            own = vars(each).get("__iter__")
            if issubclass(each, dataloader.DataLoader) and each not in watched and isinstance(own, FunctionType):
                watched.add(each)
                if not isgeneratorfunction(own):  # which does nothing yet
                    replace(each, "__iter__", lambda plain, loader: iterate(plain, loader, False))

    def begin(plain: Callable[..., Any], iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        watch_iter(type(loader))
        plain(iterator, loader, *arguments, **options)
        iterator._multicard_loader = describe(loader)
        if OBSERVER.replay is not None:
            iterator._multicard_kept = OBSERVER.replay.of(loader)

    def next_batch(plain: Callable[..., Any], iterator: Any) -> Any:
        drawn = asks(iterator)
        if drawn is None:
            batch = plain(iterator)
            drop(iterator)
            return batch
        batch, given = None, False
        try:
            batch = plain(iterator) if OBSERVER.replay is None else take(OBSERVER.replay, plain, iterator, drawn)
            given = True
        finally:
            gets(iterator, drawn, batch, given)
        return batch

    def next_index(plain: Callable[..., Any], iterator: Any) -> Any:
        """What is asked of data sets tells the samples of a batch, whatever it looks like."""
        index = plain(iterator)
        note(iterator, index)
        return index

    replace(dataloader.DataLoader, "__iter__", lambda plain, loader: iterate(plain, loader, True))
    replace(base, "__init__", begin)
    replace(base, "__next__", next_batch)
    replace(ReplayedPass, "__next__", next_batch)
    replace(base, "_next_index", next_index)


def _described(loader: Any) -> Loader | None:
    """Describe a loader, which may be anything; of one that was described before, its length alone is asked for."""
    ranks = world_size()
    known, ranks_known = read_or_none(lambda: DESCRIBED.get(loader)) or (None, None)
    if known is not None and ranks_known == ranks:
        return known if known.length is None else known._replace(length=read_or_none(lambda: len(loader)))
    found = read_or_none(lambda: loader_of(loader, ranks))
    with contextlib.suppress(TypeError):  # one without a hash
        DESCRIBED[loader] = found, ranks
    return found


def _watch_messages() -> None:
    """Watch messages between two ranks, as of a pipeline; collectives are counted by PyTorch."""

    def message(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        messages["between two"] += 1
        return plain(*arguments, **options)

    for name in BETWEEN_TWO if dist.is_available() else ():
        replace(dist.ProcessGroup, name, message)


def _ablate(stated: dict[str, Any]) -> None:
    """Have the run go without the parts that job.json names."""
    parts = stated.get("ablate") or ()
    if COMMUNICATION in parts:
        leave_out_communication(lambda: OBSERVER.step > 0)
    if LOADER not in parts:
        return
    first = stated["warmup_steps"] - 1
    if HOST in parts:
        from multicard.record.observe import graphed

        OBSERVER.graphed, first = graphed.Graphed(), graphed.FIRST_REPLAYED
    OBSERVER.replay = Replay(lambda: OBSERVER.step >= max(1, first))

    def begin_pass(plain: Callable[..., Any], loader: Any) -> Any:
        kept = OBSERVER.replay.of(loader)
        return ReplayedPass(kept, _described(loader)) if kept.is_full else plain(loader)

    replace(dataloader.DataLoader, "__iter__", begin_pass)


def _hide_from_compiler() -> None:
    """Have torch.compile leave the functions of this module and `replace` alone, but not what they call."""
    skip = getattr(COMPILER, "skip_code", None)
    if skip is None:  # newer releases have it in torch._dynamo, whose import takes seconds
        leave_alone = COMPILER._FrameExecStrategy(COMPILER._FrameAction.SKIP, COMPILER._FrameAction.DEFAULT)
        skip = lambda code: COMPILER.set_code_exec_strategy(code, leave_alone)  # noqa: E731
    files = (__file__, replace.__code__.co_filename)
    found: list[Any] = [each.__code__ for each in globals().values() if isinstance(each, FunctionType)]
    while found:
        each = found.pop()
        if isinstance(each, CodeType) and each.co_filename in files:
            skip(each)
            found += each.co_consts
