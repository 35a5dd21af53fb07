"""One attempt at a time, where the file system has locks, and none that leaves its temporary folder."""

import errno
import fcntl
import shutil
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from multicard.core.errors import UserError
from multicard.launch.attempts import scratch_in

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_two_processes_never_run_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("of the first")
    with FileLock(tmp_path / ".lock"), pytest.raises(UserError) as refused, scratch_in(tmp_path, wait_s=0.1):
        pass
    assert str(refused.value) == f"{tmp_path}: another process is running this job; wait for it, or end it"
    assert (tmp_path / "run.json").read_text() == "of the first"


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(code, "no locks here")))
        for _ in range(2):  # the second finds what a killed first one may leave
            with scratch_in(tmp_path) as scratch:
                assert scratch.is_dir()


def test_a_snapshot_of_memory_goes_with_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / "memory_snapshot.pickle").touch()
    with scratch_in(tmp_path):
        assert not (tmp_path / "memory_snapshot.pickle").exists()


def test_what_a_process_of_a_killed_attempt_still_writes_goes_with_the_next(tmp_path: Path) -> None:
    killed = tmp_path / ".scratch-killed"
    with scratch_in(tmp_path):
        killed.mkdir()
        (killed / "process.json.7").touch()
    assert not killed.exists()


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("first", ENDING)
def test_whoever_is_told_to_end_twice_ends_once_and_leaves_no_temporary_folder(
    tmp_path: Path, first: signal.Signals
) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    ended = []

    def work() -> None:
        with scratch_in(tmp_path / "thread"):
            ended.append("thread")

    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised, scratch_in(tmp_path / "main"):
        thread = threading.Thread(target=work)  # which leaves the signals to the main thread
        thread.start()
        thread.join()
        try:
            signal.raise_signal(first)
        finally:  # as of what the launcher has started
            signal.raise_signal(signal.SIGINT)
            ended.append("all")
    assert ended == ["thread", "all"]
    assert raised.type is KeyboardInterrupt if first == signal.SIGINT else raised.value.code == 128 + first
    assert not list(tmp_path.rglob(".scratch-*"))
    assert before == [signal.getsignal(number) for number in ENDING]


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
