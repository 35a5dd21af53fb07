"""What cannot be written ends a job in one line, without an outcome; what a script says of a disk is the script's."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ran, refusal
from multicard.core.files import atomic_write, is_full, report_unwritable
from multicard.launch import attempts
from multicard.launch.job import refuse_job, run_job
from multicard.launch.judge import profiler_failure
from multicard.launch.supervise import Ended
from multicard.profilers import PROFILERS
from multicard.programs.script.parameters import ScriptParameters

NO_SPACE = os.strerror(errno.ENOSPC)


def program(code: str) -> ScriptParameters:
    """A job that runs this code and trains nothing."""
    command = [sys.executable, "-c", code]
    return ScriptParameters(command=command, launcher="command", device="cpu", profiler="none", devices=1)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system in memory, which needs the rights for it."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk {len(folders)}"
        folder.mkdir()
        mounted = ran("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (f"warning: cache: {NO_SPACE}", f"warning: cache: {NO_SPACE}"),
        (f"OSError: [Errno 28] {NO_SPACE}: '/scratch/cache/x'", f"OSError: [Errno 28] {NO_SPACE}: '/scratch/cache/x'"),
    ],
)
def test_a_script_that_speaks_of_a_full_disk_has_its_own_outcome(says: str, message: str, tmp_path: Path) -> None:
    record = run_job(program(f"import sys; print({says!r}); sys.exit(4)"), None, tmp_path / "run", 60)
    assert record.outcome == "failed"
    assert (record.reason.code, record.reason.exit_code) == ("exited", 4)
    assert record.reason.message == message
    assert (tmp_path / "run" / "run.json").exists()


def test_a_script_whose_own_cache_is_on_a_full_disk_fails_with_what_it_says(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    cache = mounted("size=100k") / "cache"
    code = f"open({str(cache)!r}, 'wb').write(bytes(1 << 20))"
    record = run_job(program(code), None, tmp_path / "run", 60)
    assert record.outcome == "failed"
    assert NO_SPACE in record.reason.message


def test_a_run_folder_on_a_full_disk_is_named(mounted: Callable[..., Path]) -> None:
    disk = mounted("size=3M")
    assert not is_full(disk)
    # It leaves enough for what it prints.
    fills = (
        f"file = open({str(disk / 'ballast')!r}, 'wb', buffering=0)\ntry:\n    while True: file.write(bytes(4096))\n"
        "except OSError as error:\n    file.truncate(file.tell() - 65536)\n    raise SystemExit(str(error))\n"
    )
    said = refusal(lambda: run_job(program(fills), None, disk / "run", 60))
    assert is_full(disk)
    assert said == f"{disk / 'run'}: cannot be written: {NO_SPACE}; free space and start again"
    assert not (disk / "run" / "run.json").exists()


def test_a_job_that_prints_more_than_the_disk_holds_ends_with_one_line(mounted: Callable[..., Path]) -> None:
    folder = mounted("size=1M") / "run"
    endless = "while True: print('x' * 1000)"
    said = refusal(lambda: run_job(program(endless), None, folder, 60))
    assert said == f"{folder / 'log.txt'}: cannot be written: {NO_SPACE}; free space and start again"
    assert [path.name for path in folder.iterdir() if path.is_file() and path.name != "log.txt"] == [".lock"]


@pytest.mark.parametrize("refuses", [False, True])
def test_results_that_are_read_only_are_said_in_one_line(refuses: bool, mounted: Callable[..., Path]) -> None:
    disk = mounted("size=3M")
    (disk / "run").mkdir()
    (disk / "run" / ".lock").touch()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    p = program("pass")
    said = refusal(lambda: refuse_job(p, disk / "run", "no GPU") if refuses else run_job(p, None, disk / "run", 60))
    assert said == (
        f"{disk / 'run' / '.lock'}: cannot be written: Read-only file system; make its folder writable, or choose "
        "another one, and start again"
    )


@pytest.mark.parametrize("code", ["EROFS", "EACCES", "EDQUOT", "EIO", "ESTALE", "ENAMETOOLONG"])
def test_every_error_of_a_file_system_is_one_line(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error stands for that of a real file system: root may write anywhere, and no disk here fails."""
    number = getattr(errno, code)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(attempts.tempfile, "mkdtemp", fail)
    said = refusal(lambda: run_job(program("pass"), None, tmp_path / "run", 60))
    assert said.startswith(f"{tmp_path / 'run'}: cannot be written: {os.strerror(number)}; ")
    assert said.endswith(" and start again")
    monkeypatch.undo()
    monkeypatch.setattr("multicard.core.files.tempfile.mkstemp", fail)
    with pytest.raises(Exception, match=os.strerror(number)) as caught, atomic_write(tmp_path / "a.csv"):
        pass
    assert str(caught.value).startswith(f"{tmp_path / 'a.csv'}: cannot be written: ")


def test_a_path_that_is_too_long_is_said_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)
    said = refusal(lambda: run_job(program("pass"), None, folder, 60))
    assert said == f"{folder}: cannot be written: File name too long; choose a shorter path and start again"


def test_an_error_of_another_file_is_not_taken_for_a_failed_write(tmp_path: Path) -> None:
    other = OSError(errno.EACCES, os.strerror(errno.EACCES), "/elsewhere/data")
    with pytest.raises(PermissionError) as caught, report_unwritable(tmp_path / "run"):
        raise other
    assert caught.value is other


def test_of_a_profiler_without_space_for_its_temporary_files_that_is_said(
    tmp_path: Path, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(1, False, 1.0, profiler_failure="it exited with 1 before it had started the job")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plain = f"nsys: {ended.profiler_failure}"
    assert profiler_failure(PROFILERS["nsys"], ended, tmp_path / "log.txt") == plain
    monkeypatch.setattr(tempfile, "tempdir", str(mounted("size=64k")))
    said = profiler_failure(PROFILERS["nsys"], ended, tmp_path / "log.txt")
    assert said == f"{plain}; the disk of its temporary files (TMPDIR) is full"
    assert profiler_failure(PROFILERS["nsys"], Ended(1, False, 1.0), tmp_path / "log.txt") is None
