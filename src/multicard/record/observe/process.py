"""The process of a rank: its devices, its barrier with the others, and how it ends."""

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

BEFORE_LIMIT_S = 3.0  # a rank begins so long before the job's time limit to write the steps so far
LIMIT_S = 60.0  # a process may take so long to end once it has left its record


def devices_of(optimizer: Any, stated: Mapping[str, Any]) -> list[torch.device]:
    """Return the devices that a rank computes on: those of its parameters, or the current GPU if these are elsewhere.

    The only rank of a job on several GPUs computes on all that it has had memory on: replicas of its parameters come
    and go in every step. A program of multicard's own computes on those that `rank_devices` gives.
    """
    if not stated["is_user_program"]:
        return visible.rank_devices(SimpleNamespace(**stated))
    groups = getattr(optimizer, "param_groups", None) or []
    devices = [parameter.device for group in groups for parameter in group["params"]]
    used = [device for device in devices if device.type == "cuda"]
    may_use_others = stated["device"] == "cuda" and torch.cuda.is_initialized()
    if may_use_others and not used:
        used = [torch.device("cuda", torch.cuda.current_device())]
    drives_all_gpus = stated["ranks"] == 1 and stated["devices"] > 1
    if may_use_others and drives_all_gpus:
        used += _gpus_with_memory()
    without_duplicates = list(dict.fromkeys(used))
    return without_duplicates or [torch.device("cpu")]


def _gpus_with_memory() -> list[torch.device]:
    """Return the GPUs on which this process has had memory."""
    gpus = [torch.device("cuda", number) for number in range(len(visible.visible_gpus()))]
    return [gpu for gpu in gpus if peak_memory(gpu, reset=False).reserved]


def make_barrier() -> HostBarrier | None:
    """Return a barrier in the store of the ranks' process group, over a connection of its own; None without a group."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    store = distributed_c10d._get_default_store()  # PyTorch has no public way to it
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        store = dist.TCPStore(store.host, store.port, is_master=False, timeout=LONGEST_WAIT)
    return HostBarrier(store)


def shared_number(path: Path) -> memoryview:
    """Return an array of one number, 0 at first, in shared memory: others can read it in the file at any time."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")


def leave_now(code: int) -> NoReturn:
    """Exit without Python's own end, which would take the process group down and may wait for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def after_limit(leave: Callable[[], NoReturn]) -> Timer:
    """Have a process that goes on for longer than `LIMIT_S` leave in this way; return the timer, to cancel that."""
    timer = Timer(LIMIT_S, leave)
    timer.daemon = True
    timer.start()
    return timer


def before_time_limit(job: Path, time_limit_s: float | None, write: Callable[[], None]) -> Timer:
    """Have a thread write what there is shortly before a job is ended at its time limit; return its timer.

    Nothing could do so later: a signal without a handler ends a process at once, and with a handler of ours the process
    would outlive a signal that arrives while it waits for other ranks.

    `job`: path of job.json, which was written when the job started. Without a limit nothing is written.
    """

    def attempt() -> None:
        with contextlib.suppress(Exception):  # the training thread goes on meanwhile
            write()

    wait_s = 0.0
    if time_limit_s is not None:
        write_at = job.stat().st_mtime + time_limit_s - BEFORE_LIMIT_S
        wait_s = max(0.0, write_at - time.time())
    timer = Timer(wait_s, attempt)
    timer.daemon = True
    if time_limit_s is not None:
        timer.start()
    return timer


def is_capturing() -> bool:
    """Return True while a CUDA graph is captured, in which nothing runs and nothing can be timed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def error_of_exit() -> BaseException | None:
    """Return the error that ends this process; None if it ends without one.

    Python keeps one that nobody caught; multiprocessing runs its exit handlers while the error is on its way, and
    torch.multiprocessing exits with 1 because of one.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error
