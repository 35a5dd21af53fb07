"""What the thread of a training loop did, from an account that is written by hand and from the kernel's own."""

import threading
import time
from pathlib import Path

import pytest

from multicard.core.cpu_time import PROC
from multicard.record.thread_time import ThreadTime


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "thread-self").mkdir()
    return tmp_path / "thread-self" / "schedstat"


def test_intervals_add_up_and_what_lies_between_does_not_count(account: Path) -> None:
    meter = ThreadTime(account.parents[1])
    for before, after in ((1, 4), (100, 101)):  # seconds of waiting so far
        account.write_text(f"7 {before}000000000 3\n")
        meter.start()
        account.write_text(f"8 {after}000000000 5\n")
        meter.stop()
    meter.stop()
    record = meter.record()
    assert record is not None and record["waited_for_cpu_s"] == pytest.approx(4.0)


def test_another_thread_ends_no_interval_and_without_an_account_there_is_none(account: Path) -> None:
    account.write_text("7 0 3\n")
    meter = ThreadTime(account.parents[1])
    meter.start()
    other = threading.Thread(target=meter.stop)
    other.start()
    other.join()
    assert meter.record() is None
    account.unlink()
    meter.start()
    meter.stop()
    assert meter.record() is None


@pytest.mark.skipif(not (PROC / "thread-self" / "schedstat").exists(), reason="the kernel keeps no such account")
def test_who_sleeps_neither_runs_nor_waits_for_a_cpu() -> None:
    meter = ThreadTime()
    meter.start()
    time.sleep(0.1)
    sum(range(100_000))
    meter.stop()
    record = meter.record()
    assert record is not None and record["ran_s"] > 0 and record["waited_for_cpu_s"] >= 0
    asleep = record["wall_s"] - record["ran_s"] - record["waited_for_cpu_s"]
    assert asleep >= 0.1 - 1e-3, "however long it waits to be woken, it has slept so long"
