"""PyTorch's own profiler (Kineto), which records inside each rank."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.core.compressed import GZIP_MAGIC
from multicard.core.files import atomic_write
from multicard.profilers.interface import Profiler, Session

if TYPE_CHECKING:
    import torch


class Kineto(Profiler):
    """Records one Chrome trace per rank."""

    name = "kineto"
    description = "PyTorch's profiler"
    rank_file = "rank{rank}.json.gz"
    readable = (".json", ".json.gz")
    # The beginnings of JSON, of JSON with a byte order mark, and of gzip.
    readable_beginnings = (b"{", b"[", b"\xef\xbb\xbf", GZIP_MAGIC)
    reader = "multicard.trace.kineto"
    refuses_large = True

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Return a session that records this rank's CPU operators, and on a GPU its kernels."""
        return KinetoSession(folder / self.rank_file.format(rank=rank), device)


class KinetoSession(Session):
    """Records this rank, and writes the trace to `file`. Ranges are PyTorch's `record_function`."""

    def __init__(self, file: Path, device: "torch.device"):
        from torch import autograd, profiler

        self._file = file
        self._device = device
        self._profiler = profiler
        self._autograd = autograd

    def range(self, name: str) -> AbstractContextManager[object]:
        """Record the block as a user annotation."""
        return self._profiler.record_function(name)

    def mark(self, name: str) -> None:
        """Record an empty range with this name."""
        with self.range(name):
            pass

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs, then write the trace.

        Raises `RuntimeError` if the script is recording with PyTorch's profiler, because starting another one would end
        that.
        """
        is_enabled_on_this_thread = self._autograd._profiler_enabled()
        is_enabled = getattr(self._autograd.profiler, "_is_profiler_enabled", False)
        if is_enabled_on_this_thread or is_enabled:
            raise RuntimeError(
                "PyTorch's profiler is in use already, by the script itself; `profiler: none` leaves it alone"
            )
        activities = [self._profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(self._profiler.ProfilerActivity.CUDA)
        # PyTorch warns that each cycle of recording clears the events of the one before, but here is only one cycle.
        # The remedy that it names (acc_events) would make Python build an object for every event.
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        with self._profiler.profile(activities=activities) as profile:
            yield
        with atomic_write(self._file) as temporary:
            profile.export_chrome_trace(str(temporary))


PROFILER = Kineto()
