"""What of PyTorch is watched: its optimizers, gradient scalers, loaders and backward pass.

PyTorch has hooks for optimizers alone, and its first releases with torch.compile strip these (until pytorch/pytorch
pull request 115772); an update that a gradient scaler skips, a wait for a batch and a backward pass have none. So
functions of PyTorch are replaced here, and nowhere else, by ones that call them and tell the observer; see
docs/upstream.md.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils.data import dataloader

from multicard.core.system import read_or_none
from multicard.record.observe.batches import loader_of
from multicard.record.observe.observer import OBSERVER
from multicard.record.observe.ranks import world_size

OWN = "multicard."  # package of the functions that torch.compile must leave alone
SCALERS = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")


def install(note_process: Callable[..., None]) -> None:
    """Watch this process from now on; `note_process` adds facts to its process.json."""
    OBSERVER.begin(note_process)
    _watch_optimizers()
    _watch_scalers()
    _watch_backward()
    _watch_loaders()
    hide_from_compiler()


def _watch_optimizers() -> None:
    """Watch `step` of every optimizer, where PyTorch itself wraps it to call its hooks."""
    base = torch.optim.Optimizer
    wrap = base.profile_hook_step
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        plain = wrap(step)

        @functools.wraps(plain)
        def watched(*arguments: Any, **options: Any) -> Any:
            if is_compiling():  # traced into a graph, in which there is nothing to watch
                return plain(*arguments, **options)
            OBSERVER.update_begins(arguments[1:], options)
            done = False
            try:
                found = plain(*arguments, **options)
                done = True
            finally:
                OBSERVER.update_ends(arguments[0] if done else None)
            return found

        # Those releases unwrap `step` when torch.compile begins; gradient scalers ask for the parameters of it.
        watched.__signature__ = inspect.signature(step)
        del watched.__wrapped__
        return watched

    base.profile_hook_step = staticmethod(profile_hook_step)
    # An optimizer does this when it is made; those releases then prevent it.
    for optimizer in vars(torch.optim).values():
        if isinstance(optimizer, type) and issubclass(optimizer, base) and "step" in vars(optimizer):
            optimizer.step = profile_hook_step(optimizer.step)
            optimizer.step.hooked = True


def _watch_scalers() -> None:
    """Watch gradient scalers, since an update that they skip is the end of a step too."""
    for name in SCALERS:
        scaler = getattr(sys.modules.get(name), "GradScaler", None)
        if scaler is None or "step" not in vars(scaler) or hasattr(scaler.step, "watched"):
            continue
        plain = scaler.step

        @functools.wraps(plain)
        def step(self: Any, optimizer: Any, *arguments: Any, _plain: Any = plain, **options: Any) -> Any:
            OBSERVER.update_begins(arguments, options)
            done = False
            try:
                found = _plain(self, optimizer, *arguments, **options)
                done = True
            finally:
                OBSERVER.update_ends(optimizer if done else None)
            return found

        step.watched = True
        scaler.step = step


def _watch_backward() -> None:
    """Watch the backward pass, which `Tensor.backward` calls by this name."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(*arguments: Any, **options: Any) -> None:
        OBSERVER.backward_begins()
        done = False
        try:
            plain(*arguments, **options)
            done = True
        finally:
            OBSERVER.backward_ends(done)

    torch.autograd.backward = backward


def _watch_loaders() -> None:
    """Watch the iterators of loaders, those of subclasses included, such as torchdata's."""
    base = dataloader._BaseDataLoaderIter
    begin = base.__init__

    @functools.wraps(begin)
    def watched_begin(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        begin(self, loader, *arguments, **options)
        self._multicard_loader = read_or_none(lambda: loader_of(loader, world_size()))  # a loader may be anything

    base.__init__ = watched_begin
    plain = base.__next__

    @functools.wraps(plain)
    def watched_next(self: Any) -> Any:
        asked = OBSERVER.batch_asked(self)
        if asked is None:
            return plain(self)
        batch, given = None, False
        try:
            batch = plain(self)
            given = True
        finally:
            OBSERVER.batch_given(asked, batch, given)
        return batch

    base.__next__ = watched_next


def hide_from_compiler() -> None:
    """Have torch.compile leave the observer's functions alone, which run where it would compile what is called."""
    skip = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
    if skip is not None:
        for name, module in list(sys.modules.items()):
            if name.startswith(OWN):
                _each_code(module, skip)


def _each_code(module: ModuleType, skip: Callable[[CodeType], None]) -> None:
    seen, found = set(), list(vars(module).values())
    while found:
        each = found.pop()
        if id(each) in seen or getattr(each, "__module__", module.__name__) != module.__name__:
            continue
        seen.add(id(each))
        if isinstance(each, CodeType) and each.co_filename == module.__file__:
            skip(each)
            found += each.co_consts
        elif isinstance(each, FunctionType):
            found += [each.__code__, getattr(each, "__wrapped__", None)]
        elif isinstance(each, type):
            found += vars(each).values()
        elif isinstance(each, property | staticmethod | classmethod):
            found.append(getattr(each, "fget", None) or getattr(each, "__func__", None))
