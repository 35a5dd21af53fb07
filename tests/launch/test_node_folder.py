"""A folder on a node is removed with its process, or by the next one there if that was killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from multicard.launch.node_folder import node_folder

PROCESS = """
import sys
from multicard.launch.node_folder import node_folder
with node_folder() as folder:
    (folder / "report").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_of_a_killed_process_is_removed_and_that_of_one_at_work_is_not(temporary: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", PROCESS], **pipes) as killed,
        subprocess.Popen([sys.executable, "-c", PROCESS], **pipes) as at_work,
    ):
        left, live = (Path(process.stdout.readline().strip()) for process in (killed, at_work))
        killed.kill()
        killed.wait()
        assert left.is_dir()
        with node_folder(settled_s=0.0) as own:
            assert not left.exists()
            assert live.is_dir() and own.is_dir()
        at_work.communicate("")
    assert list(temporary.glob("multicard-*")) == []


def test_what_is_no_folder_of_a_job_or_was_just_made_stays(temporary: Path) -> None:
    others = temporary / "multicard-notes"
    others.mkdir()
    new = temporary / "multicard-new"
    new.mkdir()
    (new / ".owner").touch()  # which its process is about to lock
    with node_folder():
        pass
    assert {path.name for path in temporary.iterdir()} == {"multicard-notes", "multicard-new"}


def test_a_process_without_locks_has_a_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    with node_folder() as folder:
        assert folder.is_dir()
    assert not folder.exists()
