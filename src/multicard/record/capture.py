"""Open the profiled window, and name ranges for the trace of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.profilers import PROFILERS
from multicard.record.clock import wait_for

LONGEST_WAIT = timedelta(minutes=30)  # the limit of gloo for its collectives
MOST_WAITS = 10  # more than a rank ever waits at one barrier
LONGEST_PROBLEM = 300  # characters


class RankLeft(Exception):
    """Raised in a rank that waits at a barrier for another one that has ended."""


class HostBarrier:
    """A barrier of all ranks in the store by which they found each other, so without any collective.

    Every rank makes as many barriers, in the same order, after the process group is up.
    """

    barriers = 0  # number of barriers that this process has made

    def __init__(self, store: dist.Store) -> None:
        HostBarrier.barriers += 1
        self._store = dist.PrefixStore(f"multicard/{HostBarrier.barriers}", store)
        self._waits = 0  # number of times that this rank has waited
        self._ranks = dist.get_world_size()

    def wait(self) -> None:
        """Wait until all ranks wait here; raise `RankLeft` if one of them has left."""
        self._waits += 1
        if self._store.add(f"arrived {self._waits}", 1) == self._ranks:
            self._store.set(f"all {self._waits}", "")
        self._store.wait([f"all {self._waits}"])
        # Read after every wait, since a rank that leaves wakes those that wait. The store may be gone with a rank that
        # had it. Then all ranks were here, and this was the last barrier of that rank.
        with suppress(dist.DistNetworkError):
            if self._store.add("left", 0):
                raise RankLeft

    def gather(self, name: str, text: str) -> list[str]:
        """Return the texts of all ranks, in their order; `name` must not have been used before."""
        self._store.set(f"{name} {dist.get_rank()}", text)
        self.wait()
        return [self._store.get(f"{name} {rank}").decode() for rank in range(self._ranks)]

    def leave(self) -> None:
        """Release the others, now and later: this rank waits no more."""
        self._store.add("left", 1)
        for later_wait in range(self._waits + 1, self._waits + MOST_WAITS + 1):
            self._store.set(f"all {later_wait}", "")


class Capture:
    """Names ranges for the profiler that records this process, and opens its window.

    Where the profiler fails, training goes on, and the profiler has only to end what it has begun. A full disk
    (`UserError`) stays an error: other files need the space too. `problem` is why there is no trace of this rank, None
    if there is one.
    """

    def __init__(
        self,
        profiler: str,
        folder: Path,
        rank: int,
        devices: Sequence[torch.device],
        barrier: HostBarrier | None = None,
    ):
        self.problem: str | None = None
        self._session = PROFILERS[profiler].session(folder, rank, devices[0])
        self._rank = rank
        self._devices = devices
        self._barrier = barrier

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a range, unless the profiler has failed."""
        return nullcontext() if self.problem else self._or_without(lambda: self._session.range(name))

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs, from the same moment to the same moment on every rank.

        Ranks wait for each other on the host: a barrier of NCCL is an all-reduce on the GPU, which a trace would show
        among those of the training, as long as the profilers of the ranks are apart.
        """
        wait_for(self._devices)
        self._wait_for_ranks()
        with self._or_without(self._session.recording):
            # A profiler of all ranks begins when the first of them opens its window; none may be early.
            self._wait_for_ranks()
            if self.problem is None:
                self._attempt(lambda: self._session.mark(f"rank:{self._rank}"))
            yield
            wait_for(self._devices)
            self._wait_for_ranks()
        self._wait_for_ranks()  # until every rank has written its trace

    def _wait_for_ranks(self) -> None:
        if self._barrier is not None:
            self._barrier.wait()

    @contextmanager
    def _or_without(self, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Run the block in a context, or without it if the context fails; an error of the block is raised."""
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
        """Do something by the profiler; keep why it failed."""
        try:
            action()
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.problem = self.problem or text[:LONGEST_PROBLEM]
