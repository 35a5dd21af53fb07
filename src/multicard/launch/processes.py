"""A command and all processes that it starts, whatever these do to get away from it."""

import codecs
import contextlib
import io
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from multicard.launch import keeper

READ_BYTES = 1 << 16
JOB_MARK = "MULTICARD_JOB"
# The keeper may take so long to end all processes.
CLOSE_S = 15.0


class ProcessTree:
    """A command and all that it starts, made and ended by `multicard.launch.supervise.run`.

    `multicard.launch.keeper` keeps the processes together. They carry a mark in their environment too, by which they
    are found if something killed the keeper.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path | None, grace_s: float):
        self._mark = uuid.uuid4().hex
        self._status, keeper_status = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(keeper_status), str(grace_s), *command],
                cwd=folder,
                env={**environment, JOB_MARK: self._mark},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[keeper_status],
                start_new_session=True,
            )
        finally:
            os.close(keeper_status)
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._held_open = self._keeper.stdin
        self._output = self._keeper.stdout
        # Exit code of the command, negative for a signal; None while it runs.
        self.exit_code: int | None = None

    def wait(self, limit_s: float) -> None:
        """Wait until the command has exited; what it started may go on. Raise `TimeoutError` after the limit."""
        if self.exit_code is not None:
            return
        ready, _, _ = select.select([self._status], [], [], limit_s)
        if not ready:
            raise TimeoutError
        code = os.read(self._status, 64)
        # Without a code, something killed the keeper before the command had exited.
        self.exit_code = int(code) if code else self._keeper.wait()

    def output(self) -> Iterator[str]:
        """Yield what the processes print as it comes, with line feeds for all ends of lines."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        while content := os.read(self._output.fileno(), READ_BYTES):
            yield decoder.decode(content)
        yield decoder.decode(b"", final=True)

    def end(self) -> None:
        """Have the keeper end all processes, without waiting for it."""
        with contextlib.suppress(BrokenPipeError):
            self._held_open.close()

    def close(self) -> None:
        """End all processes that are left, and wait for them."""
        self.end()
        # A process that hangs in the kernel may never end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(CLOSE_S)
        self._keeper.kill()
        self._keeper.wait()
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        os.close(self._status)

    def processes(self) -> list[psutil.Process]:
        """Return the living processes but the keeper, each with its environment in `info`, which may be None.

        This looks at every process of the machine, and so takes milliseconds.
        """
        try:
            descendants = {process.pid for process in psutil.Process(self._keeper.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            descendants = set()
        members = [
            process
            for process in psutil.process_iter(["environ"])
            if process.pid in descendants or variable_of(process, JOB_MARK) == self._mark
        ]
        return [process for process in members if process.pid != self._keeper.pid and not has_ended(process)]


def end_processes(find: Callable[[], list[psutil.Process]], grace_s: float) -> None:
    """End the processes that `find` returns, by SIGTERM; `grace_s` later those that it still returns, by SIGKILL."""
    processes = find()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in {*alive, *find()}:
        with contextlib.suppress(psutil.Error):
            process.kill()


def has_ended(process: psutil.Process) -> bool:
    """True if a process has ended, whether or not its parent knows."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:  # a process of another user, such as one started by sudo
        return False


def variable_of(process: psutil.Process, name: str) -> str | None:
    """Return an environment variable of a process from `ProcessTree.processes`, None if it has none of that name."""
    return (process.info["environ"] or {}).get(name)
