"""What a rank computes on, by what it meets the others, and how its process ends."""

import contextlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from multicard.record import visible
from multicard.record.capture import LONGEST_WAIT, HostBarrier
from multicard.record.recorder import peak_memory

BEFORE_LIMIT_S = 3.0  # of a job, that a rank may take to write the steps so far
LIMIT_S = 60.0  # that a process may take to end once it has left its record


def devices_of(optimizer: Any, stated: Mapping[str, Any]) -> list[torch.device]:
    """Devices that a rank computes on: those of its parameters, or the current GPU if these are elsewhere.

    The only rank of a job on several GPUs computes on all that it has had memory on: replicas of its parameters come
    and go in every step. A program of multicard's own computes on those that `rank_devices` gives.
    """
    if not stated["is_user_program"]:
        return visible.rank_devices(SimpleNamespace(**stated))
    groups = getattr(optimizer, "param_groups", None) or []
    used = [parameter.device for group in groups for parameter in group["params"] if parameter.device.type == "cuda"]
    on_gpus = stated["device"] == "cuda" and torch.cuda.is_initialized()
    if not used and on_gpus:
        used = [torch.device("cuda", torch.cuda.current_device())]
    if on_gpus and stated["ranks"] == 1 < stated["devices"]:
        gpus = [torch.device("cuda", number) for number in range(len(visible.visible_gpus()))]
        used += [gpu for gpu in gpus if peak_memory(gpu, reset=False).reserved]
    return list(dict.fromkeys(used)) or [torch.device("cpu")]


def make_barrier() -> HostBarrier | None:
    """Barrier of the ranks in the store of their process group, over a connection of its own; None without a group."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    store = distributed_c10d._get_default_store()  # PyTorch has no public way to it
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        store = dist.TCPStore(store.host, store.port, is_master=False, timeout=LONGEST_WAIT)
    return HostBarrier(store)


def shared_number(path: Path) -> memoryview:
    """A number, 0 at first, that others can read in a file without being told."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")


def leave_now(code: int) -> NoReturn:
    """Exit without Python's own end, which would take the process group down and may wait for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def after_limit(leave: Callable[[], NoReturn]) -> Timer:
    """Have a process that goes on for longer than `LIMIT_S` leave in this way; that can be cancelled."""
    timer = Timer(LIMIT_S, leave)
    timer.daemon = True
    timer.start()
    return timer


def before_time_limit(job: Path, time_limit_s: float | None, write: Callable[[], None]) -> Timer:
    """Have a thread write what there is shortly before a job is ended at its time limit; that is to be cancelled.

    Nothing could do so later: a signal that nobody handles ends a process at once, and a handler of ours would have it
    outlive one that arrives while it waits for other ranks.

    `job`: its job.json, which was written when it started. Without a limit nothing is written.
    """

    def attempt() -> None:
        with contextlib.suppress(Exception):  # the training thread goes on meanwhile
            write()

    left_s = 0.0 if time_limit_s is None else job.stat().st_mtime + time_limit_s - BEFORE_LIMIT_S - time.time()
    timer = Timer(max(0.0, left_s), attempt)
    timer.daemon = True
    if time_limit_s is not None:
        timer.start()
    return timer


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing can be timed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def error_of_exit() -> BaseException | None:
    """The error that ends this process.

    Python keeps one that nobody caught; multiprocessing runs its exit handlers while the error is on its way, and
    torch.multiprocessing exits with 1 because of one.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error
