"""End what is told to end: a pipeline with all that it has started, a launcher once it has cleaned up."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import psutil

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ON_SLURM = (
    "Cancelling the Slurm jobs. Snakemake ends after its next look at the queue, in at most three minutes; until then "
    "this directory stays locked."
)


def end_as_by_ctrl_c(on_slurm: bool = False) -> threading.Event:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, to this process and to its descendants in its session.

    Snakemake ends its jobs on Ctrl-C only: on SIGTERM it waits for them, possibly for hours, and on SIGHUP it leaves
    them running. A signal that is ignored (`nohup`) stays ignored. A second signal would interrupt the cleaning up,
    and leave jobs queued: it only says how to stop at once.

    Parameters
    ----------
    on_slurm
        Jobs run in Slurm: say what takes so long.

    Returns
    -------
    threading.Event
        Set when the pipeline is told to end.
    """
    ending = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        if ending.is_set():
            if number == signal.SIGINT:
                os.write(2, f"Still ending. To stop at once, and leave jobs behind: kill -9 {os.getpid()}\n".encode())
            return
        ending.set()
        if on_slurm:
            print(ON_SLURM, file=sys.stderr, flush=True)
        if number != signal.SIGINT:  # which a terminal sends to all of them
            session = os.getsid(0)
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if os.getsid(process.pid) == session:
                        process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    return ending


class _Told:
    """The signal that told this process to end, and whether it was obeyed."""

    number: int | None = None
    obeyed = False
    put_off = False

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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _told is not None:
        with _putting_off(_told, True):
            yield
        return
    told = _told = _Told()
    told.put_off = True
    before = {number: signal.getsignal(number) for number in ENDING}
    changed = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Obey, in this part of an `undisturbed` block, a signal that has come or comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _putting_off(_told, False):
        yield


@contextlib.contextmanager
def _putting_off(told: _Told, put_off: bool) -> Iterator[None]:
    before, told.put_off = told.put_off, put_off
    told.obey()
    try:
        yield
    finally:
        told.put_off = before
        told.obey()
