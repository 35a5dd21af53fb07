"""Keep PyTorch's history of allocations; when memory runs out, find what held it, and save a snapshot.

PyTorch writes the snapshot itself, for its viewer; nothing here reads one. See "Understanding CUDA Memory Usage" in its
documentation.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multicard.core.files import atomic_write
from multicard.core.layout import MEMORY_SNAPSHOT, PROGRESS, rank_file
from multicard.core.reasons import MemoryHeld
from multicard.record.memory_held import Forwards, live, owned, sum_up
from multicard.record.observe.ranks import rank_of_process
from multicard.record.out_of_memory import GpuMemory

# Allocations and releases that the history holds, a few steps of a large model; the oldest go first. Each takes some
# 1 kB with its stack, in memory and in the file.
MOST_ENTRIES = 50_000


class MemoryHistory:
    """The history of this process's GPU memory, from when it starts to use a GPU.

    Begun by the observer, before there are steps: most processes that run out of memory do so in their first step.
    """

    def __init__(self) -> None:
        self._snapshots: Snapshots | None = None  # None unless the job asks for a history, and CUDA has started

    def begin(self, job: Callable[[], dict[str, Any]]) -> None:
        """Begin with CUDA, if the job asks for it; `job` returns the content of job.json."""
        # A start of CUDA here would break scripts that fork.
        torch.cuda._lazy_call(lambda: _guarded(lambda: self._start(job())))

    def _start(self, job: dict[str, Any]) -> None:
        if not job["observe"].get("memory_snapshot"):
            return
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MOST_ENTRIES)
        snapshots = Snapshots(Path(job["scratch"]))
        # PyTorch's type stubs lack the function.
        attach: Callable[..., None] = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009
        attach(snapshots.ran_out)
        self._snapshots = snapshots

    def held(self, error: BaseException, memory: GpuMemory | None) -> MemoryHeld | None:
        """Return what held the memory when an error was raised; see `Snapshots.held`. None without a history."""
        return None if self._snapshots is None else self._snapshots.held(error, memory)


class Snapshots:
    """What held the GPU memory when it ran out, and PyTorch's snapshot of that in a file of the folder `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._held: MemoryHeld | None = None  # when PyTorch's allocator last failed

    def ran_out(self, gpu: int, wanted: int, _limit: int, _free: int) -> None:
        """PyTorch's allocator has no memory and is about to raise; whatever is alive at this moment still is."""
        _guarded(lambda: self._take(gpu, wanted))

    def _take(self, gpu: int, wanted_bytes: int | None) -> None:
        self._held = None  # an earlier error was caught by the script
        modules = live(nn.Module)
        owners = owned(modules, live(torch.optim.Optimizer))
        snapshot = torch.cuda.memory._snapshot()
        free, total = torch.cuda.mem_get_info(gpu)
        held = replace(sum_up(snapshot, gpu, free, total, owners, Forwards(modules)), wanted_bytes=wanted_bytes)
        self._held = held
        with atomic_write(self._scratch / rank_file(MEMORY_SNAPSHOT, rank_of_process())) as temporary:
            torch.cuda.memory._dump_snapshot(str(temporary))
        self._held = replace(held, snapshot=MEMORY_SNAPSHOT)

    def held(self, error: BaseException, memory: GpuMemory | None) -> MemoryHeld | None:
        """Return what held the memory when an error was raised because it ran out, as `memory_held.sum_up` does.

        None if it ran out on the host. `memory`, of the fullest GPU, decides that for an error that is not from
        PyTorch's allocator.
        """
        if not isinstance(error, torch.cuda.OutOfMemoryError):
            if memory is None or not memory.is_scarce:
                return None
            gpu = memory.gpu
            _guarded(lambda: self._take(gpu, None))
        return self._held


def _guarded(function: Callable[[], None]) -> None:
    """Call a function, and report its failure, which must not be one of the script."""
    try:
        function()
    except Exception as error:
        print(f"{PROGRESS}  no memory snapshot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


HISTORY = MemoryHistory()
