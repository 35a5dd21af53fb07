"""Keeps PyTorch's history of allocations, and when memory runs out, what held it and a snapshot for PyTorch's viewer.

PyTorch writes the snapshot itself; nothing here reads one. See "Understanding CUDA Memory Usage" in its documentation.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multicard.core.files import atomic_write
from multicard.core.layout import MEMORY_SNAPSHOT, PROGRESS, rank_file
from multicard.record.memory_held import Forwards, live, owned, sum_up
from multicard.record.observe.ranks import rank_of_process
from multicard.record.out_of_memory import GpuMemory

# Allocations and releases that the history holds, of which the oldest go first: a few steps of a large model. They and
# their stacks take some 1 kB each, and so does the file.
MOST_ENTRIES = 50_000


class MemoryHistory:
    """Of one process, from when it starts to use a GPU: most that run out of memory do so in their first step."""

    def __init__(self) -> None:
        self._scratch: Path | None = None  # None: no history
        self._held: dict[str, Any] | None = None  # when PyTorch's allocator last failed

    def begin(self, job: Callable[[], dict[str, Any]]) -> None:
        """Begin with CUDA, if the job asks for it; `job` gives the content of job.json."""
        torch.cuda._lazy_call(lambda: _guarded(lambda: self._start(job())))  # never starts CUDA, as a fork could not

    def _start(self, job: dict[str, Any]) -> None:
        if not job["observe"].get("memory_snapshot"):
            return
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MOST_ENTRIES)
        torch._C._cuda_attach_out_of_memory_observer(self._ran_out)
        self._scratch = Path(job["scratch"])

    def _ran_out(self, gpu: int, wanted: int, _limit: int, _free: int) -> None:
        """PyTorch's allocator has no memory and is about to raise; whatever is alive at this moment still is."""
        _guarded(lambda: self._take(gpu, {"wanted_bytes": wanted}))

    def _take(self, gpu: int, facts: dict[str, Any]) -> None:
        self._held = None  # of an error that the script caught
        modules = live(nn.Module)
        owners = owned(modules, live(torch.optim.Optimizer))
        snapshot = torch.cuda.memory._snapshot()
        held = sum_up(snapshot, gpu, *torch.cuda.mem_get_info(gpu), owners, Forwards(modules))
        self._held = held | facts
        with atomic_write(self._scratch / rank_file(MEMORY_SNAPSHOT, rank_of_process())) as temporary:
            torch.cuda.memory._dump_snapshot(str(temporary))
        self._held["snapshot"] = MEMORY_SNAPSHOT

    def held(self, error: BaseException, memory: GpuMemory | None) -> dict[str, Any] | None:
        """What held the memory when an error was raised because it ran out; None without a history, or on the host.

        `memory`: of the fullest GPU. It tells of an error that is not from PyTorch's allocator whether it is of a GPU.
        """
        if self._scratch is None:
            return None
        if not isinstance(error, torch.cuda.OutOfMemoryError):
            if memory is None or not memory.is_scarce:
                return None
            _guarded(lambda: self._take(memory.gpu, {}))
        return self._held


def _guarded(function: Callable[[], None]) -> None:
    """Call a function whose failure must not be one of the script."""
    try:
        function()
    except Exception as error:
        print(f"{PROGRESS}  no memory snapshot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


HISTORY = MemoryHistory()
