"""The process of a rank: its devices, its barrier with the others, and how it ends."""

import contextlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from multicard.core.job_file import ObservedJob
from multicard.observe.ranks import has_process_group
from multicard.observe.record import visible
from multicard.observe.record.capture import LONGEST_WAIT, HostBarrier
from multicard.observe.record.recorder import peak_memory

BEFORE_LIMIT_S = 3.0  # a rank begins to write the steps so far when so many seconds of the job's time limit are left
LIMIT_S = 60.0  # a process may take so many seconds to end, or to wait for its GPUs before it ends


def devices_of(optimizer: Any, job: ObservedJob, has_marked_training: bool = False) -> list[torch.device]:
    """Return the devices that a rank computes on, without duplicates.

    A rank computes on the GPUs of the optimizer's parameters. If there are none, it computes on the current GPU if the
    job is on GPUs and the process has initialized CUDA, else on the CPU.

    If the job has several GPUs but a single rank, replicas of the parameters come and go on the other GPUs in every
    step. So all GPUs on which this process has had memory are added. Where the program has marked the begin of its
    training, there are no replicas yet, and all GPUs of the job are assumed.

    `optimizer`: the one whose update ends a step; None if a backward pass or a mark is the first boundary.
    """
    drives_all_gpus = job.ranks == 1 and job.devices > 1
    if drives_all_gpus and job.device == "cuda" and has_marked_training:
        return visible.rank_devices(job)
    groups = getattr(optimizer, "param_groups", None) or []
    devices = [parameter.device for group in groups for parameter in group["params"]]
    used = [device for device in devices if device.type == "cuda"]
    may_use_others = job.device == "cuda" and torch.cuda.is_initialized()
    if may_use_others and not used:
        used = [torch.device("cuda", torch.cuda.current_device())]
    if may_use_others and drives_all_gpus:
        used += _gpus_with_memory()
    without_duplicates = list(dict.fromkeys(used))
    return without_duplicates or [torch.device("cpu")]


def _gpus_with_memory() -> list[torch.device]:
    """Return the GPUs on which PyTorch has reserved memory in this process at any time."""
    gpus = [torch.device("cuda", number) for number in range(len(visible.visible_gpus()))]
    return [gpu for gpu in gpus if peak_memory(gpu, reset=False).reserved]


def make_barrier() -> HostBarrier | None:
    """Return a barrier in the store of the ranks' process group; None if there is no group.

    A `TCPStore` gets a connection of the barrier's own, which waits for `LONGEST_WAIT` at most.
    """
    if not has_process_group():
        return None
    store = dist.distributed_c10d._get_default_store()  # PyTorch has no public way to it
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        store = dist.TCPStore(store.host, store.port, is_master=False, timeout=LONGEST_WAIT)
    return HostBarrier(store)


def shared_number(path: Path) -> memoryview:
    """Return an array of one 64-bit integer, 0 at first. Others can read its current value in the file at any time."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")


def leave_now(code: int) -> NoReturn:
    """Exit at once, without Python's finalization: it would destroy the process group, and may wait for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def after_limit(leave: Callable[[], NoReturn]) -> Timer:
    """Call `leave`, on another thread, after `LIMIT_S` seconds; return the timer, which can be cancelled."""
    timer = Timer(LIMIT_S, leave)
    timer.daemon = True
    timer.start()
    return timer


def before_time_limit(job: Path, time_limit_s: float, write: Callable[[], None]) -> Timer:
    """Call `write`, on another thread, `BEFORE_LIMIT_S` seconds before the job's time limit; return the timer.

    At the time limit itself it would be too late. A signal without a handler ends a process at once. With a handler,
    the process would survive a signal that arrives while it waits for other ranks.

    `job`: path of job.json, which was written when the job started. `time_limit_s`: seconds from then on.
    An error of `write` is ignored.
    """

    def attempt() -> None:
        with contextlib.suppress(Exception):  # the training thread may change the steps in the meantime
            write()

    write_at = job.stat().st_mtime + time_limit_s - BEFORE_LIMIT_S
    timer = Timer(max(0.0, write_at - time.time()), attempt)
    timer.name = "multicard time limit"
    timer.daemon = True
    timer.start()
    return timer


def is_capturing() -> bool:
    """Return True while a CUDA graph is captured on the current stream: nothing runs then, and nothing can be timed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def error_of_exit() -> BaseException | None:
    """Return the error that ends this process; None if it ends without one.

    Python keeps an error that nobody caught as `sys.last_value`. In a process of multiprocessing, exit handlers run
    while the error is still being handled (`sys.exc_info`). A process of torch.multiprocessing that has an error exits
    with 1 while it handles that error, which is then the context of the `SystemExit`.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error
