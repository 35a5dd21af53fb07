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
    # JSON, JSON after a byte order mark, and gzip.
    readable_beginnings = (b"{", b"[", b"\xef\xbb\xbf", GZIP_MAGIC)
    reader = "multicard.trace.kineto"
    refuses_large = True

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Record this process's CPU operators, and on a GPU its kernels."""
        return KinetoSession(folder / self.rank_file.format(rank=rank), device)


class KinetoSession(Session):
    """Records this rank into `file`; ranges are PyTorch's `record_function`."""

    def __init__(self, file: Path, device: "torch.device"):
        from torch import autograd, profiler

        self._file = file
        self._device = device
        self._profiler = profiler
        self._autograd = autograd

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
        is_enabled_on_this_thread = self._autograd._profiler_enabled()
        is_enabled = getattr(self._autograd.profiler, "_is_profiler_enabled", False)
        if is_enabled_on_this_thread or is_enabled:
            raise RuntimeError(
                "PyTorch's profiler is in use already, by the script itself; `profiler: none` leaves it alone"
            )
        activities = [self._profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(self._profiler.ProfilerActivity.CUDA)
        # PyTorch warns that the next cycle clears the events, but there is only one. Its remedy, to keep all events
        # (acc_events), would have Python build every one of them.
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        with self._profiler.profile(activities=activities) as profile:
            yield
        with atomic_write(self._file) as temporary:
            profile.export_chrome_trace(str(temporary))


PROFILER = Kineto()
