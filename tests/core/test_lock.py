"""Locks keep processes apart while these live, and no longer."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.core.errors import UserError
from multicard.core.lock import lock, locked

HOLD = (
    "import sys; from pathlib import Path; from multicard.core.lock import lock\n"
    "held = lock(Path(sys.argv[1]), 'taken'); print('held', flush=True); sys.stdin.read()\n"
)


def test_a_lock_is_held_until_its_process_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="^" + str(tmp_path) + ": another is at work$"):
        lock(tmp_path, "another is at work")
    holder.kill()
    holder.communicate()
    with locked(tmp_path, "another is at work", wait_s=10):
        pass


def test_what_is_locked_is_a_file_opened_for_writing(tmp_path: Path) -> None:
    # NFS hands only such locks to its server, which keeps machines apart. No NFS is tried here.
    with locked(tmp_path, "taken", wait_s=0):
        [file] = tmp_path.iterdir()
    held = lock(tmp_path, "taken")
    assert stat.S_ISREG(os.fstat(held).st_mode)
    assert os.path.samestat(os.fstat(held), file.stat())
    assert fcntl.fcntl(held, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    os.close(held)


@pytest.mark.parametrize(("code", "granted"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_a_file_system_without_locks_grants_every_one(
    code: int, granted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    if granted:
        os.close(lock(tmp_path, "taken"))
    else:
        with pytest.raises(OSError, match="Input/output error"):
            lock(tmp_path, "taken")
