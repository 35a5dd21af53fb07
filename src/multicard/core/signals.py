"""Signals that ask this process to end, held back while it must not be interrupted."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Act = Callable[[int], None]


def _do_nothing(_number: int) -> None:
    pass


class DeferredSignals:
    """Handler of SIGINT, SIGTERM and SIGHUP that holds the first of them until the process is ready to act on it.

    A process may be asked to end more than once: by the terminal, by Snakemake and by Slurm. The first signal counts.
    While signals are deferred, which they are at first, it is held; `deliver` hands it to an action. Signals that come
    after the action was taken go to `repeat`, so that none of them interrupts the cleaning up that the first one began.

    Used by launchers (`multicard.launch.ending`), by the pipeline (`multicard.workflow.signals`), and by commands that
    wait for a pipeline (`multicard.cli._pipeline`).

    >>> signals = DeferredSignals(repeat=lambda number: print("again", number))
    >>> signals.receive(15)
    >>> signals.deliver(lambda number: print("end by", number))
    end by 15
    >>> signals.receive(2)
    again 2
    """

    def __init__(self, repeat: Act = _do_nothing) -> None:
        self.first: int | None = None  # number of the first signal that came
        self._repeat = repeat
        self._act: Act | None = None  # None while signals are deferred
        self._has_acted = False

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        """Handle a signal: act on it, or hold it."""
        if self._has_acted:
            self._repeat(number)
            return
        if self.first is None:
            self.first = number
        self._act_once()

    def deliver(self, act: Act) -> None:
        """From now on, call `act` with the number of the first signal: at once if it is held, else when it comes."""
        self._act = act
        self._act_once()

    @contextmanager
    def delivered(self, act: Act) -> Iterator[None]:
        """Deliver to `act` while the block runs, which `act` may end by an exception."""
        with self._acting_by(act):
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold signals while the block runs, even inside a block in which they are delivered."""
        with self._acting_by(None):
            yield

    @contextmanager
    def _acting_by(self, act: Act | None) -> Iterator[None]:
        # Python delivers signals to the main thread alone; another one must not change how that is interrupted.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = self._act
        try:
            self._act = act
            self._act_once()
            yield
        finally:
            self._act = before
            self._act_once()

    def _act_once(self) -> None:
        if self.first is None or self._act is None or self._has_acted:
            return
        # Before the action: it may be interrupted by another signal, which is then a repeated one.
        self._has_acted = True
        self._act(self.first)

    def install(self) -> Callable[[], None]:
        """Become the handler of the signals in the main thread; return a function that restores the handlers before.

        A signal that is ignored, as under `nohup`, stays ignored. So does one whose handler is not Python's: it could
        not be restored.
        """
        handlers = {number: signal.getsignal(number) for number in ENDING}
        replaced = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
        for number in replaced:
            signal.signal(number, self.receive)

        def restore() -> None:
            for number, handler in replaced.items():
                signal.signal(number, handler)

        return restore

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Be the handler of the signals while the block runs."""
        restore = self.install()
        try:
            yield
        finally:
            restore()


def installed_handler() -> DeferredSignals | None:
    """Return the object that handles the signals of this process, if one was installed."""
    for number in ENDING:
        handler = signal.getsignal(number)
        # A bound method knows its object, so the table of handlers is the only state that the process has.
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, DeferredSignals):
            return owner
    return None
