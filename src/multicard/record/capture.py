"""The profiled window, and the named ranges that a trace shows of it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.core.files import atomic_write
from multicard.profilers.nsys import CAPTURE_RANGE


class Capture:
    """Names ranges for the profiler that watches this process, and opens its window.

    Parameters
    ----------
    profiler
        `nsys`: the job runs under `nsys profile`, ranges are NVTX; `kineto`: PyTorch's own profiler, one file
        per rank; `none`: ranges cost nothing.
    folder
        Where a profiler inside the process leaves its trace.
    """

    def __init__(self, profiler: str, folder: Path, rank: int, device: torch.device):
        self.profiler, self.folder, self.rank, self.device = profiler, folder, rank, device

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Show the block as a range of that name in the trace."""
        if self.profiler == "nsys":
            torch.cuda.nvtx.range_push(name)
            try:
                yield
            finally:
                torch.cuda.nvtx.range_pop()
        elif self.profiler == "kineto":
            with torch.profiler.record_function(name):
                yield
        else:
            yield

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs, from the same moment to the same moment on every rank."""
        self._barrier()
        if self.profiler == "nsys":
            with self._nsys_window():
                yield
        elif self.profiler == "kineto":
            with self._kineto_window():
                yield
        else:
            yield
            self._barrier()

    @contextmanager
    def _nsys_window(self) -> Iterator[None]:
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        else:
            torch.cuda.nvtx.range_push(CAPTURE_RANGE)
        # nsys begins when the first rank opens its window; none may be early.
        self._barrier()
        torch.cuda.nvtx.mark(f"rank:{self.rank}")
        yield
        if on_gpu:
            torch.cuda.synchronize()
        self._barrier()
        if on_gpu:
            torch.cuda.profiler.stop()
        else:
            torch.cuda.nvtx.range_pop()

    @contextmanager
    def _kineto_window(self) -> Iterator[None]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # One cycle only: the warning that the next would clear it says nothing here, and keeping all events
        # (acc_events) would have Python build every one of them.
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        with torch.profiler.profile(activities=activities) as profile:
            self._barrier()
            with torch.profiler.record_function(f"rank:{self.rank}"):
                pass
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self._barrier()
        with atomic_write(self.folder / f"rank{self.rank}.json.gz") as temporary:
            profile.export_chrome_trace(str(temporary))
        self._barrier()

    def _barrier(self) -> None:
        if dist.is_initialized():
            dist.barrier()
