"""Of several signals that ask a process to end the first counts, once the process is ready for it."""

import contextlib
import os
import signal
import threading

import pytest

from multicard.core.signals import DeferredSignals, installed_handler
from multicard.launch.ending import deferred_signals

FIRST, SECOND = signal.SIGHUP, signal.SIGTERM


class Calls:
    """Notes of the signals that were acted on, and of those that came again."""

    def __init__(self) -> None:
        self.acted: list[int] = []
        self.repeated: list[int] = []
        self.signals = DeferredSignals(repeat=self.repeated.append)


def test_a_signal_is_held_until_it_is_delivered_and_then_acted_on_once() -> None:
    calls = Calls()
    calls.signals.receive(FIRST)
    calls.signals.receive(SECOND)
    assert (calls.acted, calls.repeated) == ([], [])
    with calls.signals.delivered(calls.acted.append):
        assert calls.acted == [FIRST]
        calls.signals.receive(SECOND)
    calls.signals.receive(FIRST)
    assert (calls.acted, calls.repeated) == ([FIRST], [SECOND, FIRST])


def test_a_block_that_defers_holds_signals_inside_a_block_that_delivers_them() -> None:
    calls = Calls()
    with calls.signals.delivered(calls.acted.append):
        with calls.signals.deferred():
            calls.signals.receive(FIRST)
            assert calls.acted == []
        assert calls.acted == [FIRST]


def test_an_action_that_raises_ends_its_block_and_is_not_taken_again() -> None:
    signals = DeferredSignals()

    def end(number: int) -> None:
        raise SystemExit(number)

    signals.receive(FIRST)
    with pytest.raises(SystemExit), signals.delivered(end):
        pytest.fail("the block has begun")
    with signals.delivered(end):
        signals.receive(SECOND)


def test_another_thread_does_not_change_how_the_main_one_is_interrupted() -> None:
    calls = Calls()

    def deliver() -> None:
        with calls.signals.delivered(calls.acted.append):
            calls.signals.receive(FIRST)

    thread = threading.Thread(target=deliver)
    thread.start()
    thread.join()
    assert calls.acted == []


def test_a_signal_that_was_held_ends_the_process_even_if_the_block_raises() -> None:
    with pytest.raises(SystemExit) as ended, contextlib.suppress(ValueError), deferred_signals():
        os.kill(os.getpid(), SECOND)
        raise ValueError
    assert ended.value.code == 128 + SECOND
    with pytest.raises(ValueError, match="no signal"), deferred_signals():
        raise ValueError("no signal")


@pytest.mark.usefixtures("hangup_ends")
def test_handlers_are_restored_and_what_is_ignored_stays_so() -> None:
    before = signal.getsignal(signal.SIGHUP)
    calls = Calls()
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with calls.signals.installed():
            assert installed_handler() is calls.signals
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert (calls.signals.first, signal.getsignal(signal.SIGHUP)) == (signal.SIGHUP, before)
    assert installed_handler() is None
