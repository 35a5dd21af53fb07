"""End a launcher that is told to end, or whose pipeline has ended, once it has cleaned up."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import psutil

LOOK_S = 1.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Told:
    """The signal that told this process to end, and whether it was obeyed."""

    number: int | None = None
    obeyed = False
    put_off = True

    def come(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self.obey()

    def obey(self) -> None:
        if self.number is None or self.obeyed or self.put_off:
            return
        self.obeyed = True
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + self.number)


_told: _Told | None = None


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put off SIGINT, SIGTERM and SIGHUP until the block is left, or to an `interruptible` block in it.

    What tells a launcher to end may come more than once: from the terminal, from Snakemake and from Slurm. The first
    raises `KeyboardInterrupt` or `SystemExit`; any other does nothing, so that none interrupts the cleaning up. A
    signal that is ignored (`nohup`) stays ignored. Such blocks may be nested. In a thread other than the main one, to
    which no signal comes, this does nothing.
    """
    global _told
    if _told is not None or threading.current_thread() is not threading.main_thread():
        with _putting_off(True):
            yield
        return
    told = _told = _Told()
    found = {number: signal.getsignal(number) for number in ENDING}
    changed = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in changed:
            signal.signal(number, told.come)
        yield
    finally:
        _told = None
        for number, handler in changed.items():
            signal.signal(number, handler)
    told.put_off = False
    told.obey()


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Obey, in this part of an `undisturbed` block, a signal that has come or comes."""
    return _putting_off(False)


@contextlib.contextmanager
def _putting_off(put_off: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = _told
    before, told.put_off = told.put_off, put_off
    told.obey()
    try:
        yield
    finally:
        told.put_off = before
        told.obey()


def end_with(parent: int) -> None:
    """Have this process get SIGTERM when another one, that waits for it, has ended, even by SIGKILL.

    A signal that Linux sends at a parent's death reaches children only, and a shell may stand between.

    `parent`: its process id; 0, as a container shows a process outside, for none.
    """
    if parent == 0:
        return

    def watch() -> None:
        try:
            process = psutil.Process(parent)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(LOOK_S)
        except psutil.NoSuchProcess:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
