"""Hold signals that ask this process to end, while it must not be interrupted."""

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
    """Handler of SIGINT, SIGTERM and SIGHUP that holds the first of these signals until the process can act on it.

    A process may get several such signals: from the terminal, Snakemake and Slurm. Only the first one counts. At first,
    signals are deferred: the first one is held, and later ones are dropped. `deliver` then calls an action with the
    first one. Signals that come after that go to `repeat`, so that they do not interrupt the cleaning up which the
    first one began.

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
        """Handle a signal: act on it, hold it, or pass it to `repeat` if an earlier one was acted on."""
        if self._has_acted:
            self._repeat(number)
            return
        if self.first is None:
            self.first = number
        self._act_once()

    def deliver(self, act: Act) -> None:
        """Call `act` with the number of the first signal: now if it has come already, else when it comes."""
        self._act = act
        self._act_once()

    @contextmanager
    def delivered(self, act: Act) -> Iterator[None]:
        """Deliver the first signal to `act` while the block runs; `act` may end the block by an exception."""
        with self._acting_by(act):
            yield

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold signals while the block runs, even if it is inside a block of `delivered`."""
        with self._acting_by(None):
            yield

    @contextmanager
    def _acting_by(self, act: Act | None) -> Iterator[None]:
        # Python handles signals in the main thread only. A block of another thread must not change how the main thread
        # is interrupted.
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
        # This is set before the action, so that a signal that interrupts the action goes to `repeat`.
        self._has_acted = True
        self._act(self.first)

    def install(self) -> Callable[[], None]:
        """Become the handler of the signals; return a function that restores the earlier handlers. Main thread only.

        A signal that is ignored stays ignored, as SIGHUP under `nohup`. A signal whose handler was not set by Python
        keeps it, because Python could not restore it.
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
    """Return the `DeferredSignals` that handles the signals of this process; None if none is installed."""
    for number in ENDING:
        handler = signal.getsignal(number)
        # The handler is a method of the object, so the object is found without a global variable.
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, DeferredSignals):
            return owner
    return None
