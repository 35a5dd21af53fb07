"""A command and all processes that it starts, including those that detach from it or change their environment."""

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
# Environment variable that all processes of a tree get; its value is different for each tree.
JOB_MARK = "MULTICARD_JOB"
# Seconds that `close` waits for the keeper to end all processes. After that it kills the keeper.
CLOSE_S = 15.0


class ProcessTree:
    """A command and all processes that it starts; made and ended by `multicard.launch.supervise.run`.

    `multicard.launch.keeper` runs the command, and all processes stay descendants of the keeper. They also have the
    variable `JOB_MARK`, so that they are found even if something has killed the keeper.
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
        """Wait until the command has exited; processes that it started may still run.

        Raises `TimeoutError` if it has not exited after `limit_s` seconds.
        """
        if self.exit_code is not None:
            return
        ready, _, _ = select.select([self._status], [], [], limit_s)
        if not ready:
            raise TimeoutError
        code = os.read(self._status, 64)
        # If the keeper wrote no code, something killed it before the command had exited. Then its own code is used.
        self.exit_code = int(code) if code else self._keeper.wait()

    def output(self) -> Iterator[str]:
        """Yield the output of all processes in pieces, as it comes; each line in it ends with a line feed only."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        while content := os.read(self._output.fileno(), READ_BYTES):
            yield decoder.decode(content)
        yield decoder.decode(b"", final=True)

    def end(self) -> None:
        """Make the keeper end all processes, and return at once."""
        with contextlib.suppress(BrokenPipeError):
            self._held_open.close()

    def close(self) -> None:
        """End all processes that are left, and wait up to `CLOSE_S` seconds for that."""
        self.end()
        # A process that hangs in the kernel may never end, and the keeper waits for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(CLOSE_S)
        self._keeper.kill()
        self._keeper.wait()
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        os.close(self._status)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the tree that have not ended, without the keeper.

        `info["environ"]` of each is its environment, or None if that cannot be read. This looks at every process of the
        machine, and so takes milliseconds.
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
    """Send SIGTERM to the processes that `find` returns, then SIGKILL to all that are left.

    SIGKILL follows after `grace_s` seconds, or sooner if all have ended. `find` is called again before it, so that
    processes that were started meanwhile are killed as well.
    """
    processes = find()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in {*alive, *find()}:
        with contextlib.suppress(psutil.Error):
            process.kill()


def has_ended(process: psutil.Process) -> bool:
    """True if a process has ended, even if it is a zombie because its parent has not waited for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:  # a process of another user, such as one started by sudo
        return False


def variable_of(process: psutil.Process, name: str) -> str | None:
    """Return an environment variable of a process from `ProcessTree.processes`.

    None if the process does not have the variable, or if its environment could not be read.
    """
    return (process.info["environ"] or {}).get(name)
