"""One attempt at a time, where the file system has locks."""

import errno
import fcntl
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
