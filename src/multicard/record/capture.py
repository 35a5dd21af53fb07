"""The profiled window, and the named ranges that a trace shows of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.profilers import PROFILERS


class Capture:
    """Names ranges for the profiler that records this process, and opens its window.

    Parameters
    ----------
    profiler
        Name of an entry of `PROFILERS`.
    folder
        Where a profiler inside the process leaves its trace.
    """

    def __init__(self, profiler: str, folder: Path, rank: int, device: torch.device):
        self._session, self._rank, self._device = PROFILERS[profiler].session(folder, rank, device), rank, device
        self._group: dist.ProcessGroup | None = None
        self.range = self._session.range

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs, from the same moment to the same moment on every rank.

        Ranks meet on the host, in a process group of their own: a barrier of NCCL is an all-reduce on the GPU, which a
        trace would show among those of the training, as long as the profilers of the ranks are apart.
        """
        if dist.is_initialized() and self._group is None:
            self._group = dist.new_group(backend="gloo")
        self._finish()
        self._meet()
        with self._session.recording():
            # A profiler of all ranks begins when the first of them opens its window; none may be early.
            self._meet()
            self._session.mark(f"rank:{self._rank}")
            yield
            self._finish()
            self._meet()
        self._meet()  # until every rank has written its trace

    def _finish(self) -> None:
        """Wait for what is queued on the GPU."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _meet(self) -> None:
        """Wait for the other ranks."""
        if self._group is not None:
            dist.barrier(self._group)
