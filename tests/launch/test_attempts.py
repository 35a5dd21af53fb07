"""One attempt at a time, where the file system has locks, and none that leaves its temporary folder."""

import errno
import fcntl
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from multicard.launch.attempts import scratch_in


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):  # the second finds what a killed first one may leave
        with scratch_in(tmp_path) as scratch:
            assert scratch.is_dir()


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_told_to_end_twice_ends_once_and_leaves_no_temporary_folder(
    tmp_path: Path, first: signal.Signals
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    ended = []
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised, scratch_in(tmp_path):
        try:
            signal.raise_signal(first)
        finally:  # as of what the launcher has started
            signal.raise_signal(signal.SIGINT)
            ended.append("all")
    assert ended == ["all"]
    assert raised.type is KeyboardInterrupt if first == signal.SIGINT else raised.value.code == 128 + first
    assert not list(tmp_path.glob(".scratch-*"))
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_whoever_is_told_to_end_while_it_cleans_up_does_so_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*arguments: Any, remove: Any = shutil.rmtree, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(*arguments, **options)

    with pytest.raises(KeyboardInterrupt), scratch_in(tmp_path) as scratch:
        (scratch / "part").touch()
        monkeypatch.setattr(shutil, "rmtree", told)
    assert not scratch.exists()


def test_a_thread_has_its_folder_too_and_leaves_the_signals_to_the_main_thread(tmp_path: Path) -> None:
    seen: list[Path] = []

    def work() -> None:
        with scratch_in(tmp_path / "thread") as scratch:
            seen.append(scratch)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(seen) == 2
    ended = []
    with pytest.raises(KeyboardInterrupt), scratch_in(tmp_path / "main"):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            ended.append("all")
    assert ended == ["all"]
    assert not list(tmp_path.rglob(".scratch-*"))
