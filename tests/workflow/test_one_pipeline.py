"""A second pipeline in a folder is refused while the first one lives, and only then."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.core.errors import UserError
from multicard.core.system import start_of
from multicard.workflow import one_pipeline
from multicard.workflow.one_pipeline import HOLDER, Pipeline, announce, lock_folder

PIPELINE = """
import sys
from pathlib import Path
from multicard.workflow.one_pipeline import announce, lock_folder
lock, _ = lock_folder(Path.cwd())
announce(Path.cwd(), lock)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_pipeline_keeps_others_out_until_it_ends_even_by_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PIPELINE], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "started\n"
        if not has_locks:
            monkeypatch.setattr(one_pipeline.FileLock, "acquire", no_locks)
        with pytest.raises(UserError, match=rf"running in this folder \(process {first.pid} on .*; wait for its end"):
            lock_folder(tmp_path)
        first.kill()
        first.wait()
        lock, elsewhere = lock_folder(tmp_path)
        assert elsewhere is None
        lock.release()


def test_a_pipeline_that_ends_by_itself_leaves_no_word(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE], cwd=tmp_path, input="", capture_output=True, text=True, check=True
    )
    assert done.stdout == "started\n"
    assert not (tmp_path / HOLDER).exists()


def test_a_pipeline_that_was_started_on_another_machine_may_be_running(tmp_path: Path) -> None:
    lock, _ = lock_folder(tmp_path)
    announce(tmp_path, lock)
    here = json.loads((tmp_path / HOLDER).read_text())
    assert here[:3] == [socket.gethostname(), os.getpid(), start_of(os.getpid())]
    lock.release()
    (tmp_path / HOLDER).write_text(json.dumps(["login2", *here[1:]]))
    lock, elsewhere = lock_folder(tmp_path)
    lock.release()
    assert elsewhere == Pipeline("login2", *here[1:])


def no_locks(*_: object) -> None:
    raise OSError(38, "Function not implemented")
