"""PyTorch's own profiler (Kineto), which records inside each rank."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.core.files import atomic_write
from multicard.profilers.interface import Profiler, Session

if TYPE_CHECKING:
    import torch


class Kineto(Profiler):
    """One Chrome trace per rank."""

    name = "kineto"
    description = "PyTorch's profiler"
    rank_file = "rank{rank}.json.gz"
    readable = (".json", ".json.gz")
    readable_beginnings = (b"{", b"[", b"\xef\xbb\xbf", b"\x1f\x8b")  # of JSON, with a byte order mark, and of gzip
    reader = "multicard.trace.kineto"
    refuses_large = True

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Record this process's CPU operators, and on a GPU its kernels."""
        return KinetoSession(folder / self.rank_file.format(rank=rank), device)


class KinetoSession(Session):
    """Ranges are PyTorch's `record_function`."""

    def __init__(self, file: Path, device: "torch.device"):
        from torch import autograd, profiler

        self._file, self._device, self._profiler, self._autograd = file, device, profiler, autograd

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a user annotation."""
        return self._profiler.record_function(name)

    def mark(self, name: str) -> None:
        """Leave an empty range of that name."""
        with self.range(name):
            pass

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs, then write the trace.

        Raises `RuntimeError` if a profiler of PyTorch records already, which this one would end.
        """
        # One that is enabled on this thread, and one that is on any.
        if self._autograd._profiler_enabled() or getattr(self._autograd.profiler, "_is_profiler_enabled", False):
            raise RuntimeError(
                "PyTorch's profiler is in use already, by the script itself; `profiler: none` leaves it alone"
            )
        activities = [self._profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(self._profiler.ProfilerActivity.CUDA)
        # One cycle only: the warning that the next would clear it says nothing here, and keeping all events
        # (acc_events) would have Python build every one of them.
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        with self._profiler.profile(activities=activities) as profile:
            yield
        with atomic_write(self._file) as temporary:
            profile.export_chrome_trace(str(temporary))


PROFILER = Kineto()
