"""Keep PyTorch's history of allocations; when memory runs out, find what held it, and save a snapshot.

PyTorch writes the file of the snapshot, for its own viewer; nothing in this project reads the file. See "Understanding
CUDA Memory Usage" in its documentation.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from multicard.core.files import atomic_write
from multicard.core.job_file import JobFile
from multicard.core.layout import MEMORY_SNAPSHOT, PROGRESS, rank_file
from multicard.core.reasons import MemoryHeld
from multicard.observe.ranks import rank_of_process
from multicard.observe.record.memory_held import Forwards, live, owned, sum_up
from multicard.observe.record.out_of_memory import GpuMemory

# The history holds no more allocations and releases than this, which are a few steps of a large model. The oldest are
# dropped first. Each takes about 1 kB with its stack, in memory and in the file.
MOST_ENTRIES = 50_000


class MemoryHistory:
    """The history of this process's GPU memory, from the start of CUDA in this process.

    The observer begins it before there are steps, because most processes that run out of memory do so in their first
    step.
    """

    def __init__(self) -> None:
        self._snapshots: Snapshots | None = None  # None unless the job asks for a history, and CUDA has started

    def begin(self, job: Callable[[], JobFile]) -> None:
        """Begin the history when CUDA starts in this process, if the job asks for a history.

        `job` returns the content of job.json.
        """
        # `_lazy_call` calls the function when CUDA starts, or now if it has started. To start CUDA here would break
        # scripts that fork.
        torch.cuda._lazy_call(lambda: _guarded(lambda: self._start(job())))

    def _start(self, job: JobFile) -> None:
        if not job.observe.memory_snapshot:
            return
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MOST_ENTRIES)
        snapshots = Snapshots(job.scratch)
        # PyTorch's type stubs lack the function.
        attach: Callable[..., None] = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009
        attach(snapshots.ran_out)
        self._snapshots = snapshots

    def held(self, error: BaseException, memory: GpuMemory | None) -> MemoryHeld | None:
        """Return what held the memory when `error` was raised; see `Snapshots.held`. None if there is no history."""
        return None if self._snapshots is None else self._snapshots.held(error, memory)


class Snapshots:
    """Finds out what holds the GPU memory when it runs out, and saves PyTorch's snapshot of it in `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        # What held the memory when it last ran out. None before that, and if finding it out failed.
        self._held: MemoryHeld | None = None

    def ran_out(self, gpu: int, wanted: int, _limit: int, _free: int) -> None:
        """Called by PyTorch's allocator just before it raises for lack of memory, while all tensors are still alive.

        `gpu`: CUDA index; `wanted`: bytes of the allocation that failed.
        """
        _guarded(lambda: self._take(gpu, wanted))

    def _take(self, gpu: int, wanted_bytes: int | None) -> None:
        self._held = None  # if it has a value, that is of an earlier error, which the script caught
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
        """Return what held the memory of a GPU when `error`, which means that memory ran out, was raised.

        For an error of PyTorch's allocator this was found out by `ran_out`. For any other error, `memory`, that of the
        fullest GPU, decides. If it is scarce, this method finds out what holds the memory of that GPU now. If it is not
        scarce, or None, memory ran out on the host, and the result is None. It is also None if finding out failed.
        """
        if not isinstance(error, torch.cuda.OutOfMemoryError):
            if memory is None or not memory.is_scarce:
                return None
            gpu = memory.gpu
            _guarded(lambda: self._take(gpu, None))
        return self._held


def _guarded(function: Callable[[], None]) -> None:
    """Call a function. If it raises, print the error, because the observer's errors must not end the script."""
    try:
        function()
    except Exception as error:
        print(f"{PROGRESS}  no memory snapshot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


HISTORY = MemoryHistory()
