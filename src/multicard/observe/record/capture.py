"""Open the profiled window of a rank's profiler, and name ranges in the trace of this window."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.observe.record.clock import wait_for
from multicard.profilers import PROFILERS

LONGEST_WAIT = timedelta(minutes=30)  # a rank waits no longer for the others; gloo has the same limit for collectives
MOST_WAITS = 10  # more than the number of times that a rank ever waits at one `HostBarrier`
LONGEST_PROBLEM = 300  # characters that `Capture.problem` keeps of an error


class RankLeft(Exception):
    """Raised in a rank that waits at a barrier which another rank has left for good."""


class HostBarrier:
    """A barrier of all ranks on the host: it uses keys in the store of their process group, and no collective.

    All ranks must make the same number of barriers in the same order, because a barrier's number is part of its keys.
    They must make them after the process group is initialized.
    """

    barriers = 0  # number of barriers that this process has made

    def __init__(self, store: "dist.Store") -> None:
        HostBarrier.barriers += 1
        self._store = dist.PrefixStore(f"multicard/{HostBarrier.barriers}", store)
        self._waits = 0  # number of times that this rank has waited
        self._ranks = dist.get_world_size()

    def wait(self) -> None:
        """Wait until all ranks wait here; raise `RankLeft` if any rank has called `leave`."""
        self._waits += 1
        if self._store.add(f"arrived {self._waits}", 1) == self._ranks:
            self._store.set(f"all {self._waits}", "")
        self._store.wait([f"all {self._waits}"])
        # The wait also ends when a rank leaves, so the key "left" is read after each one. Reading it fails if the rank
        # whose process holds the store has ended. That rank did so after its last wait, for which all ranks were here.
        with suppress(dist.DistNetworkError):
            if self._store.add("left", 0):
                raise RankLeft

    def gather(self, name: str, text: str) -> list[str]:
        """Wait until every rank has called this with its text; return all texts, in the order of the ranks.

        Raises `RankLeft` as `wait` does. `name` must be the same on all ranks, and new in each call.
        """
        self._store.set(f"{name} {dist.get_rank()}", text)
        self.wait()
        return [self._store.get(f"{name} {rank}").decode() for rank in range(self._ranks)]

    def leave(self) -> None:
        """Leave for good: all ranks that wait here now, or do so later, get `RankLeft` instead of waiting."""
        self._store.add("left", 1)
        for later_wait in range(self._waits + 1, self._waits + MOST_WAITS + 1):
            self._store.set(f"all {later_wait}", "")


class Capture:
    """Names ranges for the profiler that records this process, and opens the window in which it records.

    If the profiler fails, training goes on, and `problem` says why this rank has no trace. It is None as long as the
    profiler has not failed. After a failure no range is begun, and what the profiler has begun is ended. A `UserError`,
    such as a full disk, is raised nevertheless, because other files need the space, too.
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
        """Return a context that shows its block as a range in the trace; it does nothing if the profiler has failed."""
        return nullcontext() if self.problem else self._or_without(lambda: self._session.range(name))

    @contextmanager
    def window(self) -> Iterator[None]:
        """Record while the block runs. All ranks begin and end to record at the same moments.

        Ranks wait for each other on the host, because a barrier of NCCL is an all-reduce on the GPU. The trace would
        show it among the all-reduces of the training, and it would last until all ranks' profilers have started.
        """
        wait_for(self._devices)
        self._wait_for_ranks()
        with self._or_without(self._session.recording):
            # A profiler that records all ranks together begins when the first rank opens its window. No rank trains
            # before all windows are open.
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
        """Run the block in the context that `make` returns, or without a context if making or entering it fails.

        An error of the block is raised. An error of the context becomes `problem`.
        """
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
        """Call a function of the profiler; keep its error as `problem`, if that is the first. Raises a `UserError`."""
        try:
            action()
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.problem = self.problem or text[:LONGEST_PROBLEM]
