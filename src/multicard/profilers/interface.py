"""The interface of a profiler; the entries are listed in `multicard.profilers`.

An entry is a module of this package with an instance named `PROFILER`. Training processes import these modules, too. So
these modules import nothing but the standard library and `core/`, and torch only inside functions.
"""

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from multicard.core.errors import TraceError

if TYPE_CHECKING:
    import torch

UsedProfiler = Literal["nsys", "kineto", "none"]


class Availability(NamedTuple):
    """Whether a profiler can be used on this machine, and the reason.

    `why`: the reason, which may be empty for a usable profiler. `caveat`: why a usable profiler may record too little
    of a job; None if it records all. `profiler: auto` does not choose a profiler with a caveat, but a user may name it.
    """

    usable: bool
    why: str = ""
    caveat: str | None = None


class Session:
    """The part of a profiler inside a training process, made by `Profiler.session`. This base class does nothing."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Record the block as a range with this name in the trace."""
        return nullcontext()

    def mark(self, name: str) -> None:
        """Record this name in the trace of this process, at the present time."""

    def recording(self) -> AbstractContextManager[object]:
        """Record while the block runs. All ranks enter and leave it together, each with no work queued on its GPU."""
        return nullcontext()


class Profiler:
    """A way to record a job, and to make files from the recording that a reader can read.

    A profiler either wraps the job: it is a program that runs the job as its child (`wrap`, `node_file`). Or it records
    inside each rank (`session`, `rank_file`).
    """

    # The value of the parameter `profiler`.
    name: ClassVar[UsedProfiler]
    description: ClassVar[str]
    # The program that must be on the PATH; None if PyTorch is enough.
    program: ClassVar[str | None] = None
    # Environment variables that the job needs in order to be recorded.
    environment: ClassVar[Mapping[str, str]] = {}
    # Name of the file that a profiler which wraps the job leaves on every node; None for others.
    node_file: ClassVar[str | None] = None
    # Name, with `{rank}` in it, of the file that a profiler inside the ranks leaves for every rank; None for others.
    rank_file: ClassVar[str | None] = None
    # Suffixes of files from which `export` makes a readable file, and of files that `reader` reads.
    exportable: ClassVar[tuple[str, ...]] = ()
    readable: ClassVar[tuple[str, ...]] = ()
    # How the content of these files begins, after blanks. It identifies files that have another suffix.
    exportable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    readable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    # A module with a function `read(path)` that returns a `multicard.trace.model.Trace`; None if no activity tables are
    # made from the files.
    reader: ClassVar[str | None] = None
    # True if `read` refuses a file that unpacks to very many bytes, unless it is called as `read(path, large=True)`.
    refuses_large: ClassVar[bool] = False

    def is_installed(self) -> bool:
        """True if the profiler's program is on the PATH, or if it needs none."""
        return self.program is None or shutil.which(self.program) is not None

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Return whether the profiler can be used on this machine for jobs on `device` (cpu, cuda).

        `python`: path of the job's interpreter; None for this process's.
        """
        if self.is_installed():
            return Availability(True)
        return Availability(False, f"no {self.program} on the PATH")

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Return a command that runs `command` under the profiler, and writes `file`.

        `device`: what the processes of `command` compute on (cpu, cuda).
        """
        return command

    def failure(self, output: str) -> str | None:
        """Return the first line of a job's output that shows that the profiler itself failed; None without one."""
        return None

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Return the part of the profiler inside this rank, which writes the rank's file to `folder`."""
        return Session()

    def check(self, file: Path) -> None:
        """Raise `TraceError` if the profiler did not leave `file`."""
        if not file.exists():
            raise TraceError(f"{self.name} left no {file.name}")

    def export(self, file: Path, folder: Path) -> Path:
        """Make a file in `folder` from `file`, which the profiler left, that `reader` can read; return its path.

        If `reader` can read `file` itself, return `file`.

        Raises `TraceError` if no readable file can be made, and `UserError` if there is no space for it.
        """
        return file
