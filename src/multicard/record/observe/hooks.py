"""What of PyTorch is watched: its optimizers, gradient scalers, loaders and backward pass.

PyTorch has hooks for optimizers alone; an update that a gradient scaler skips, a wait for a batch and a backward pass
have none. So functions of PyTorch are replaced here, and nowhere else, by ones that call them and tell the observer.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import dataloader

from multicard.core.files import read_json
from multicard.core.system import read_or_none
from multicard.record.observe.ablation import COMMUNICATION, HOST, LOADER, Replay, ReplayedPass, leave_out_communication
from multicard.record.observe.loaders import loader_of, note_index, samples_asked
from multicard.record.observe.observer import OBSERVER
from multicard.record.observe.ranks import functions_of_messages, note_message, world_size

COMPILER = torch._C._dynamo.eval_frame
# True where torch.compile traces what follows: there what it replaces here must be as if it were not.
is_compiling = torch.compiler.is_dynamo_compiling


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
    plain = torch.amp.GradScaler.step

    @functools.wraps(plain)
    def step(self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return plain(self, optimizer, *arguments, **options)
        begins(callable(options.get("closure", arguments[0] if arguments else None)))
        given = (self, optimizer, *arguments)
        return _call(plain, given, options, lambda done: ends(optimizer if done else None))

    torch.amp.GradScaler.step = step


def _watch_backward() -> None:
    """Watch the backward pass, which `Tensor.backward` calls by this name."""
    begins, ends = apart(OBSERVER.backward_begins), apart(OBSERVER.backward_ends)
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(*arguments: Any, **options: Any) -> None:
        if is_compiling():
            return plain(*arguments, **options)
        begins()
        return _call(plain, arguments, options, ends)

    torch.autograd.backward = backward


def _watch_loaders() -> None:
    """Watch the iterators of loaders, those of subclasses included, such as torchdata's."""
    base = dataloader._BaseDataLoaderIter
    drop = apart(samples_asked)
    begin = base.__init__

    @functools.wraps(begin)
    def watched_begin(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        begin(self, loader, *arguments, **options)
        self._multicard_loader = describe(loader)
        if OBSERVER.replay is not None:
            self._multicard_kept = OBSERVER.replay.of(loader)

    base.__init__ = watched_begin
    _watch_indices(base)
    describe = apart(lambda loader: read_or_none(lambda: loader_of(loader, world_size())))  # a loader may be anything
    base.__next__, ReplayedPass.__next__ = (
        _watched_next(plain, drop) for plain in (base.__next__, ReplayedPass.__next__)
    )


def _watched_next(plain: Callable[..., Any], drop: Callable[..., Any]) -> Callable[..., Any]:
    asks, gets, again = apart(OBSERVER.batch_asked), apart(OBSERVER.batch_given), apart(OBSERVER.replayed)

    @functools.wraps(plain)
    def watched_next(self: Any) -> Any:
        if is_compiling():
            return plain(self)
        drawn = asks(self)
        if drawn is None:
            batch = plain(self)
            drop(self)
            return batch
        batch, given = None, False
        try:
            batch = plain(self) if OBSERVER.replay is None else again(plain, self, drawn)
            given = True
        finally:
            gets(self, drawn, batch, given)
        return batch

    return watched_next


def _watch_indices(base: Any) -> None:
    """Watch what iterators ask of data sets, which tells the samples of a batch whatever it looks like."""
    plain, note = base._next_index, apart(note_index)

    @functools.wraps(plain)
    def watched_index(self: Any) -> Any:
        if is_compiling():
            return plain(self)
        index = plain(self)
        note(self, index)
        return index

    base._next_index = watched_index


def _watch_messages() -> None:
    """Watch messages between two ranks, as of a pipeline; collectives are counted by PyTorch."""
    for owner, name, plain in functions_of_messages():

        @functools.wraps(plain)
        def watched(*arguments: Any, _plain: Any = plain, **options: Any) -> Any:
            note_message()
            return _plain(*arguments, **options)

        setattr(owner, name, watched)


def _ablate(stated: dict[str, Any]) -> None:
    """Have the run go without the parts that job.json names."""
    parts = stated.get("ablate") or ()
    if COMMUNICATION in parts:
        leave_out_communication(lambda: OBSERVER.step > 0, is_compiling)
    if LOADER not in parts:
        return
    first = stated["warmup_steps"] - 1
    if HOST in parts:
        from multicard.record.observe import graphed

        OBSERVER.graphed, first = graphed.Graphed(), graphed.FIRST_REPLAYED
    OBSERVER.replay = Replay(lambda: OBSERVER.step >= max(1, first))
    plain = dataloader.DataLoader.__iter__

    @functools.wraps(plain)
    def watched_pass(self: Any) -> Any:
        kept = OBSERVER.replay.of(self)
        if not kept.is_full or is_compiling():
            return plain(self)
        return ReplayedPass(kept, read_or_none(lambda: loader_of(self, world_size())))

    dataloader.DataLoader.__iter__ = watched_pass


def _hide_from_compiler() -> None:
    """Have torch.compile leave the functions of this module alone, but not what they call."""
    skip = getattr(COMPILER, "skip_code", None)
    if skip is None:  # newer releases have it in torch._dynamo, whose import takes seconds
        leave_alone = COMPILER._FrameExecStrategy(COMPILER._FrameAction.SKIP, COMPILER._FrameAction.DEFAULT)
        skip = lambda code: COMPILER.set_code_exec_strategy(code, leave_alone)  # noqa: E731
    found: list[Any] = [each.__code__ for each in globals().values() if isinstance(each, FunctionType)]
    while found:
        each = found.pop()
        if isinstance(each, CodeType) and each.co_filename == __file__:
            skip(each)
            found += each.co_consts
