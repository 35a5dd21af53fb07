"""End a launcher when it gets a signal, or when the pipeline that started it ends; but let it clean up first."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psutil

from multicard.core.signals import DeferredSignals, installed_handler

LOOK_S = 1.0  # seconds between two looks at another process


@contextmanager
def deferred_signals() -> Iterator[DeferredSignals]:
    """Defer SIGINT, SIGTERM and SIGHUP while a block runs, except where an inner block delivers them.

        with deferred_signals() as signals:
            start()
            with signals.delivered(end_process):
                wait()
            clean_up()

    A signal that comes during `start()` is held until `wait()` begins. A signal that comes during `wait()` interrupts
    it by the exception of `end_process`, so `clean_up()` belongs in a `finally`. A signal that comes during
    `clean_up()` ends the process when the block ends, by the exception of `end_process`. This replaces an exception by
    which the block ends, since its caller may catch that and go on.

    Such blocks may be nested. The inner block yields the object of the outer block, and a signal that is still held
    when the inner block ends is treated as the outer block treats signals at that place.

    In a thread other than the main one this does nothing, because Python handles signals in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield DeferredSignals()
        return
    outer = installed_handler()
    if outer is not None:
        with outer.deferred():
            yield outer
        return
    signals = DeferredSignals()
    try:
        with signals.installed():
            yield signals
    finally:
        signals.deliver(end_process)


def end_process(number: int) -> NoReturn:
    """Raise `KeyboardInterrupt` for SIGINT, else `SystemExit` with 128 + `number`, the code that a shell reports."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def end_with_process(pid: int) -> None:
    """Send SIGTERM to this process once the process `pid`, which waits for this one, has ended, even by SIGKILL.

    A thread looks for `pid` every second. Linux can signal a process when its parent ends (prctl), but `pid` need not
    be the parent: a shell may stand between the two.

    `pid`: 0 if there is no process to watch. Inside a container, a process outside of it has the id 0, too.
    """
    if pid == 0:
        return

    def watch() -> None:
        try:
            process = psutil.Process(pid)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(LOOK_S)
        except psutil.NoSuchProcess:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
