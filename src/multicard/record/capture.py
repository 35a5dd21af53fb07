"""The profiled window, and the named ranges that a trace shows of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.profilers import PROFILERS
from multicard.record.clock import wait_for

LONGEST_WAIT = timedelta(minutes=30)  # as for collectives of gloo
MOST_WAITS = 10  # of a rank at one barrier, and more
LONGEST_PROBLEM = 300  # characters


class RankLeft(Exception):
    """Another rank has ended, and comes to no barrier any more."""


class HostBarrier:
    """Barrier of all ranks in the store by which they found each other, so without any collective.

    Every rank makes as many, in the same order, after the process group is up.
    """

    made = 0

    def __init__(self, store: dist.Store) -> None:
        HostBarrier.made += 1
        self._store, self._waits = dist.PrefixStore(f"multicard/{HostBarrier.made}", store), 0
        self._ranks = dist.get_world_size()

    def wait(self) -> None:
        """Wait until all ranks are here; `RankLeft` if one of them has left."""
        self._waits += 1
        if self._store.add(f"arrived {self._waits}", 1) == self._ranks:
            self._store.set(f"all {self._waits}", "")
        self._store.wait([f"all {self._waits}"])
        # Asked after every wait, so that leaving wakes those who wait. The rank that has the store may have ended
        # since, where that is not torchrun's: all were here, so this was its last barrier.
        with suppress(dist.DistNetworkError):
            if self._store.add("left", 0):
                raise RankLeft

    def gather(self, name: str, text: str) -> list[str]:
        """Give all ranks the texts of all, under a name that was not used before."""
        self._store.set(f"{name} {dist.get_rank()}", text)
        self.wait()
        return [self._store.get(f"{name} {rank}").decode() for rank in range(self._ranks)]

    def leave(self) -> None:
        """Wait no more, and let the others know who wait for this rank."""
        self._store.add("left", 1)
        for more in range(1, MOST_WAITS + 1):
            self._store.set(f"all {self._waits + more}", "")


class Capture:
    """Names ranges for the profiler that records this process, and opens its window.

    Where the profiler fails, training goes on, and nothing more is asked of it but to end what it has begun. A full
    disk (`UserError`) stays an error: other files need the space too. `problem` is why there is no trace of this rank.
    """

    def __init__(
        self,
        profiler: str,
        folder: Path,
        rank: int,
        devices: Sequence[torch.device],
        barrier: HostBarrier | None = None,
    ):
        self._session, self._rank = PROFILERS[profiler].session(folder, rank, devices[0]), rank
        self._devices, self._barrier = devices, barrier
        self.problem: str | None = None

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a range, if it can be."""
        return nullcontext() if self.problem else self._forgiving(lambda: self._session.range(name))

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs, from the same moment to the same moment on every rank.

        Ranks wait for each other on the host: a barrier of NCCL is an all-reduce on the GPU, which a trace would show
        among those of the training, as long as the profilers of the ranks are apart.
        """
        wait_for(self._devices)
        self._meet()
        with self._forgiving(self._session.recording):
            # A profiler of all ranks begins when the first of them opens its window; none may be early.
            self._meet()
            if self.problem is None:
                self._attempt(lambda: self._session.mark(f"rank:{self._rank}"))
            yield
            wait_for(self._devices)
            self._meet()
        self._meet()  # until every rank has written its trace

    def _meet(self) -> None:
        if self._barrier is not None:
            self._barrier.wait()

    @contextmanager
    def _forgiving(self, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Run the block in a context, or without it where it cannot be entered; an error of the block stays one."""
        stack = ExitStack()
        self._attempt(lambda: stack.enter_context(make()))
        try:
            yield
        except BaseException as error:
            with suppress(Exception):
                stack.__exit__(type(error), error, error.__traceback__)
            raise
        self._attempt(stack.close)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.problem = self.problem or text[:LONGEST_PROBLEM]
