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
        self.range = self._session.range

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs, from the same moment to the same moment on every rank."""
        _barrier()
        with self._session.recording():
            # A profiler of all ranks begins when the first of them opens its window; none may be early.
            _barrier()
            self._session.mark(f"rank:{self._rank}")
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            _barrier()
        _barrier()  # until every rank has written its trace


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
