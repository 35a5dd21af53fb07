"""Hooks into PyTorch's optimizers, gradient scalers, data loaders, backward pass and collectives.

PyTorch has hooks for optimizers only. It has none for an update that a gradient scaler skips, for a wait for a batch,
or for a backward pass. So functions of PyTorch are replaced by functions that call the original and report to the
observer.
"""

import contextlib
import functools
import gc
import sys
from collections.abc import Callable
from inspect import isgeneratorfunction
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from multicard.core import host_work
from multicard.core.host_work import (
    AUTOMATIC,
    COLLECT,
    COLLECTIVE,
    COLLECTIVES,
    GARBAGE,
    SAVE,
    SAVING,
    STARTING,
    STOPPING,
)
from multicard.core.job_file import ObservedJob, read_job
from multicard.core.system import read_or_none
from multicard.observe.ablation import COMMUNICATION, LOADER, Replay, ReplayedPass, leave_out_communication
from multicard.observe.loaders import Loader, loader_of, note_index, samples_asked
from multicard.observe.observer import OBSERVER
from multicard.observe.ranks import BETWEEN_TWO, MESSAGES, messages, world_size
from multicard.observe.replace import is_compiling, replace, substitute
from multicard.observe.training_setup import note_wrapped

COMPILER: Any = torch._C._dynamo.eval_frame
# For each loader, its description (None if it cannot be described), and the number of ranks when it was described.
DESCRIBED = WeakKeyDictionary[Any, tuple[Loader | None, int]]()


def install(note_process: Callable[..., None], job: str) -> None:
    """Watch this process from now on; `note_process` adds facts to its process.json, `job` is the path of job.json."""
    OBSERVER.begin(note_process, job)
    # This comes first, because `hidden_from_compiler` then sets a stricter rule for one function of this module.
    _hide_hooks_from_compiler()
    _watch_optimizers()
    _watch_scalers()
    _watch_backward()
    _watch_loaders()
    _watch_messages()
    _watch_wrapping()
    _watch_host_work()
    _ablate(read_job(Path(job)).observe)
    for mark in (OBSERVER.mark_step, OBSERVER.mark_training, OBSERVER.mark_values):
        hidden_from_compiler(mark)


def hidden_from_compiler(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what `method` does, such that torch.compile compiles neither it nor what it calls.

    `torch.compiler.disable` does the same, but would import torch._dynamo into every script.
    """
    if hasattr(COMPILER, "set_code_exec_strategy"):
        skip = COMPILER._FrameAction.SKIP
        code = getattr(method, "__code__")  # noqa: B009 - a method has it, a callable in general has not
        COMPILER.set_code_exec_strategy(code, COMPILER._FrameExecStrategy(skip, skip))
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


def _call(plain: Callable[..., Any], arguments: Any, options: Any, report_end: Callable[[bool], None]) -> Any:
    """Call a function, and report its end: True if it returned, False if it raised."""
    done = False
    try:
        result = plain(*arguments, **options)
        done = True
    finally:
        report_end(done)
    return result


def _watch_optimizers() -> None:
    """Watch `step` of every optimizer, by replacing the function with which PyTorch wraps it to call its own hooks."""
    base: Any = torch.optim.Optimizer
    begins = hidden_from_compiler(OBSERVER.update_begins)
    ends = hidden_from_compiler(OBSERVER.update_ends)
    wrap = base.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        plain = wrap(step)

        @functools.wraps(plain)
        def watched(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                result = plain(*arguments, **options)
                OBSERVER.updated_in_graph = arguments[0]  # torch.compile sets this after each run of the graph
                return result
            closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
            begins(callable(closure))
            updated = None
            try:
                result = plain(*arguments, **options)
                updated = arguments[0]
            finally:
                ends(updated)
            return result

        return watched

    base.profile_hook_step = staticmethod(profile_hook_step)
    for member in vars(torch.optim).values():
        if isinstance(member, type) and issubclass(member, base) and "step" in vars(member):
            optimizer_class: Any = member
            optimizer_class.step = profile_hook_step(optimizer_class.step)
            optimizer_class.step.hooked = True


def _watch_scalers() -> None:
    """Watch gradient scalers, because an update that they skip ends a step, too."""
    begins = hidden_from_compiler(OBSERVER.update_begins)
    ends = hidden_from_compiler(OBSERVER.update_ends)

    def step(plain: Callable[..., Any], scaler: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        OBSERVER.process.updates.has_scaler |= scaler.is_enabled()
        begins(callable(options.get("closure", arguments[0] if arguments else None)))
        all_arguments = (scaler, optimizer, *arguments)
        return _call(plain, all_arguments, options, lambda done: ends(optimizer if done else None))

    replace(torch.amp.GradScaler, "step", step)


def _watch_backward() -> None:
    """Watch `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad`."""
    begins = hidden_from_compiler(OBSERVER.backward_begins)
    ends = hidden_from_compiler(OBSERVER.backward_ends)
    gradients_end = hidden_from_compiler(OBSERVER.gradients_end)

    # This and `watched` above do themselves what `_call` does, because they run in each step.
    def watched_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*arguments: Any, **options: Any) -> None:
            if is_compiling():
                plain(*arguments, **options)
                return
            begins(arguments[0] if arguments else options.get("tensors"))
            done = False
            try:
                plain(*arguments, **options)
                done = True
            finally:
                ends(done)

        return backward

    def grad(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        begins(None, True)
        return _call(plain, arguments, options, lambda _: gradients_end())

    substitute(torch.autograd, "backward", watched_backward)
    replace(torch.autograd, "grad", grad)


def _watch_loaders() -> None:
    """Watch the iterators of PyTorch's loaders and of their subclasses, such as torchdata's."""
    _watch_making_of_iterators()
    _watch_batches()
    _watch_end_of_workers()


def _watch_making_of_iterators() -> None:
    base_iterator = dataloader._BaseDataLoaderIter
    describe = hidden_from_compiler(_describe)
    asks_sampler = hidden_from_compiler(OBSERVER.process.sampling_begins)
    gets_samples = hidden_from_compiler(OBSERVER.process.sampling_ends)
    asks_iterator = hidden_from_compiler(OBSERVER.iterator_asked)
    gets_iterator = hidden_from_compiler(OBSERVER.iterator_given)
    watched: set[type] = {dataloader.DataLoader}

    def iterate(plain: Callable[..., Any], loader: Any, is_plain: bool) -> Any:
        if not asks_iterator(describe(loader), is_plain):
            return plain(loader)
        try:
            return plain(loader)
        finally:
            gets_iterator()

    def iterate_plain(plain: Callable[..., Any], loader: Any) -> Any:
        return iterate(plain, loader, True)

    def iterate_other(plain: Callable[..., Any], loader: Any) -> Any:
        return iterate(plain, loader, False)

    def watch_subclass(loader_class: type) -> None:
        """Watch `__iter__` of a subclass that defines its own, such as torchdata's, from its next pass on."""
        for ancestor in loader_class.__mro__:
            if ancestor in watched or not issubclass(ancestor, dataloader.DataLoader):
                continue
            defined = vars(ancestor).get("__iter__")
            if isinstance(defined, FunctionType):
                watched.add(ancestor)
                if not isgeneratorfunction(defined):  # a call of a generator function runs none of its code yet
                    replace(ancestor, "__iter__", iterate_other)

    def ask_sampler(plain: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Make or reset the base class's part of an iterator, which does little more than ask for the sampler's."""
        is_timed = asks_sampler()
        try:
            plain(*arguments, **options)
        finally:
            if is_timed:
                gets_samples()

    def begin(plain: Callable[..., Any], iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        watch_subclass(type(loader))
        ask_sampler(plain, iterator, loader, *arguments, **options)
        iterator._multicard_loader = describe(loader)
        if OBSERVER.process.replay is not None:
            iterator._multicard_kept = OBSERVER.process.replay.kept_of(loader)

    replace(dataloader.DataLoader, "__iter__", iterate_plain)
    replace(base_iterator, "__init__", begin)
    replace(base_iterator, "_reset", ask_sampler)


def _watch_batches() -> None:
    base_iterator = dataloader._BaseDataLoaderIter
    process = OBSERVER.process
    asks = hidden_from_compiler(OBSERVER.batch_asked)
    gets = hidden_from_compiler(OBSERVER.batch_given)
    take = hidden_from_compiler(Replay.take)
    drop_samples = hidden_from_compiler(samples_asked)
    note = hidden_from_compiler(note_index)
    asks_sampler = hidden_from_compiler(OBSERVER.process.sampling_begins)
    gets_samples = hidden_from_compiler(OBSERVER.process.sampling_ends)

    # These run for each batch, of which a step may accumulate many.
    def watched_next(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(iterator: Any) -> Any:
            if is_compiling():
                return plain(iterator)
            drawn = asks(iterator)
            if drawn is None:
                batch = plain(iterator)
                drop_samples(iterator)
                return batch
            batch = None
            given = False
            try:
                replay = process.replay
                batch = plain(iterator) if replay is None else take(replay, plain, iterator, drawn)
                given = True
            finally:
                gets(iterator, drawn, batch, given)
            return batch

        return next_batch

    def watched_next_index(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_index(iterator: Any) -> Any:
            """Note the index that a data set is asked for. It shows the samples of a batch, whatever it is like."""
            if is_compiling():
                return plain(iterator)
            if asks_sampler():
                try:
                    index = plain(iterator)
                finally:
                    gets_samples()
            else:
                index = plain(iterator)
            note(iterator, index)
            return index

        return next_index

    substitute(base_iterator, "__next__", watched_next)
    substitute(ReplayedPass, "__next__", watched_next)
    substitute(base_iterator, "_next_index", watched_next_index)


def _watch_end_of_workers() -> None:
    """Watch how long the end of a pass waits until workers have stopped, unless they stay for the next pass."""
    ends = hidden_from_compiler(OBSERVER.workers_end)
    ended = hidden_from_compiler(OBSERVER.workers_ended)
    begins_work = hidden_from_compiler(OBSERVER.process.work_begins)
    ends_work = hidden_from_compiler(OBSERVER.process.work_ends)

    def shut_down(plain: Callable[..., Any], iterator: Any) -> None:
        # Workers that have stopped before, or that never started, are not waited for.
        if not OBSERVER.process.is_recording or getattr(iterator, "_shutdown", True):
            plain(iterator)
            return
        OBSERVER.process.loading_cpu.look()
        ends_pass = ends(iterator)
        begins_work()
        try:
            plain(iterator)
        finally:
            ends_work(STOPPING, host_work.LOADER)
            if ends_pass:
                ended()

    replace(dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", shut_down)


def _describe(loader: Any) -> Loader | None:
    """Return the description of a loader, which may be any object; None if it cannot be described.

    A loader is described once. Later calls only read its length again, unless it had none. It is described again if the
    number of ranks has changed, or if it could not be described.
    """
    ranks = world_size()
    earlier, ranks_then = read_or_none(lambda: DESCRIBED.get(loader)) or (None, None)
    if earlier is not None and ranks_then == ranks:
        if earlier.length is None:
            return earlier
        return earlier._replace(length=read_or_none(lambda: len(loader)))
    description = read_or_none(lambda: loader_of(loader, ranks))
    with contextlib.suppress(TypeError):  # the loader has no hash
        DESCRIBED[loader] = description, ranks
    return description


def _watch_messages() -> None:
    """Count the messages between two ranks, such as those of a pipeline. PyTorch itself counts only collectives."""
    if not dist.is_available():
        return

    def message(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        messages[MESSAGES] += 1
        return plain(*arguments, **options)

    for name in BETWEEN_TWO:
        replace(dist.ProcessGroup, name, message)


def _watch_wrapping() -> None:
    """Note models that are wrapped in DistributedDataParallel or DataParallel."""

    # The model may come by the keyword `module`, as from Lightning.
    def wrap(plain: Callable[..., Any], wrapped: Any, /, *arguments: Any, **options: Any) -> None:
        plain(wrapped, *arguments, **options)
        note_wrapped(wrapped)

    for wrapper in (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel):
        replace(wrapper, "__init__", wrap)


def _watch_host_work() -> None:
    """Watch collections of garbage, `torch.save`, starts of loader workers, and collectives that Python code calls.

    Ends of loader workers and samplers are watched with loaders, compilations once the rank is recorded.
    """
    begins = hidden_from_compiler(OBSERVER.process.work_begins)
    ends = hidden_from_compiler(OBSERVER.process.work_ends)

    def watch(owner: Any, name: str, kind: str, function: str, *others: Any) -> None:
        # Lists of objects may be long, and may contain themselves.
        has_tensors = kind == COLLECTIVE and "object" not in name

        def call(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            begins()
            try:
                return plain(*arguments, **options)
            finally:
                ends(kind, function, (*arguments, *options.values()) if has_tensors else ())

        replace(owner, name, call, *others)

    def automatic(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            begins()
        else:
            ends(GARBAGE, AUTOMATIC)

    # A collection that `gc.collect` makes is within its call, which alone counts.
    watch(gc, "collect", GARBAGE, COLLECT)
    gc.callbacks.append(automatic)
    watch(torch, "save", SAVING, SAVE, torch.serialization)
    watch(dataloader._MultiProcessingDataLoaderIter, "__init__", STARTING, host_work.LOADER)
    if dist.is_available():
        for name in COLLECTIVES:
            if hasattr(dist, name):
                plain = getattr(dist, name)
                watch(dist, name, COLLECTIVE, name, dist.distributed_c10d)
                _compile_as_before(plain, getattr(dist, name))


def _compile_as_before(plain: Callable[..., Any], replaced: Callable[..., Any]) -> None:
    """Have Dynamo put its own function in the place of a collective that was replaced, as it does for the original.

    It does so by itself if the module with its functions is imported later.
    """
    functional = sys.modules.get("torch.distributed._functional_collectives")
    remaps: dict[Any, Any] = getattr(functional, "traceable_collective_remaps", {})
    if plain in remaps:
        remaps[replaced] = remaps[plain]


def _ablate(job: ObservedJob) -> None:
    """Have the run go without the parts that job.json names."""
    parts = job.ablate
    if COMMUNICATION in parts:
        leave_out_communication(lambda: OBSERVER.process.loop.step > 0)
    if LOADER not in parts:
        return
    # Number of the first step that gets kept batches.
    first_replayed = max(1, job.warmup_steps - 1)
    replay = Replay(lambda: OBSERVER.process.loop.step >= first_replayed)
    OBSERVER.process.replay = replay

    def begin_pass(plain: Callable[..., Any], loader: Any) -> Any:
        kept = replay.kept_of(loader)
        return ReplayedPass(kept, _describe(loader)) if kept.is_full else plain(loader)

    replace(dataloader.DataLoader, "__iter__", begin_pass)


def _hide_hooks_from_compiler() -> None:
    """Have torch.compile skip the functions of this module and of `replace`, but still compile what they call."""
    skip = getattr(COMPILER, "skip_code", None)
    if skip is None:  # newer releases have it in torch._dynamo, whose import takes seconds
        leave_alone = COMPILER._FrameExecStrategy(COMPILER._FrameAction.SKIP, COMPILER._FrameAction.DEFAULT)

        def skip(code: CodeType) -> None:
            COMPILER.set_code_exec_strategy(code, leave_alone)

    files = (__file__, replace.__code__.co_filename)
    waiting: list[Any] = [function.__code__ for function in globals().values() if isinstance(function, FunctionType)]
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, CodeType) and constant.co_filename in files:
            skip(constant)
            waiting += constant.co_consts  # among them the code of functions defined inside this one
