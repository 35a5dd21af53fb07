"""End a launcher when it gets a signal or its pipeline has ended, but only after it has cleaned up."""

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

LOOK_S = 1.0


@contextmanager
def deferred_signals() -> Iterator[DeferredSignals]:
    """Defer SIGINT, SIGTERM and SIGHUP in a block, but where it lets them `end_process`.

        with deferred_signals() as signals:
            start()
            with signals.delivered(end_process):
                wait()
            clean_up()

    A signal that was not delivered ends the process when the block is left. Such blocks may be nested: an inner one
    continues with the signals of the outer one. In a thread other than the main one, to which no signal comes, this
    does nothing.
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
    with signals.installed():
        yield signals
    signals.deliver(end_process)


def end_process(number: int) -> NoReturn:
    """End this process as the signal `number` would, by `KeyboardInterrupt` or `SystemExit` with a shell's code."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def end_with_process(pid: int) -> None:
    """Have this process get SIGTERM when another one, which waits for it, has ended, even by SIGKILL.

    The signal that Linux can send at a parent's death reaches children only, and a shell may stand between the two.

    `pid`: of the process that waits; 0, as a container shows a process outside of it, for none.
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
