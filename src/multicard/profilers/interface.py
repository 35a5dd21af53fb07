"""The interface of a profiler; the entries are listed in `multicard.profilers`.

An entry is a module of this package with an instance named `PROFILER`. Training processes import these modules too, so
they need the standard library and `core/` only, and import torch inside functions.
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
    """An answer to whether a profiler can be used on this machine, and why.

    `caveat`: why it may record too little of a job. `profiler: auto` does not choose it then, but it can be named.
    """

    usable: bool
    why: str = ""
    caveat: str | None = None


class Session:
    """The part of a profiler inside a training process, made by `Profiler.session`. This one does nothing."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a range of that name in the trace."""
        return nullcontext()

    def mark(self, name: str) -> None:
        """Put a name into the trace of this process."""

    def recording(self) -> AbstractContextManager[object]:
        """Record while the block runs. Ranks enter it together and leave it together, with no work queued."""
        return nullcontext()


class Profiler:
    """A way to record a job, and to make a readable file of what was recorded.

    A profiler either wraps the job, as a program that runs it as its child (`wrap`, `node_file`), or records inside
    each rank (`session`, `rank_file`).
    """

    # The value of the parameter `profiler`.
    name: ClassVar[UsedProfiler]
    description: ClassVar[str]
    # The program that must be on the PATH; None if PyTorch is enough.
    program: ClassVar[str | None] = None
    # Variables that the job needs to be recorded.
    environment: ClassVar[Mapping[str, str]] = {}
    # The file that is left on every node, or for every `{rank}`; None for the other way of recording.
    node_file: ClassVar[str | None] = None
    rank_file: ClassVar[str | None] = None
    # Suffixes of files that `export` makes readable, and of files that the reader takes.
    exportable: ClassVar[tuple[str, ...]] = ()
    readable: ClassVar[tuple[str, ...]] = ()
    # How the content of such files begins, after blanks: it decides if the suffix is another one.
    exportable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    readable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    # A module with a function `read(path)` that returns a `multicard.trace.model.Trace`; None if no activity tables are
    # made of the files.
    reader: ClassVar[str | None] = None
    # True if `read` refuses files that unpack to very much unless it is called as `read(path, large=True)`.
    refuses_large: ClassVar[bool] = False

    def is_installed(self) -> bool:
        """True if its program is on the PATH, or it needs none."""
        return self.program is None or shutil.which(self.program) is not None

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Return whether it can be used here for jobs on `device` (cpu, cuda).

        `python`: the interpreter of the job, if not this one.
        """
        if self.is_installed():
            return Availability(True)
        return Availability(False, f"no {self.program} on the PATH")

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Return a command that runs `command`, whose processes compute on `device` (cpu, cuda), and leaves `file`."""
        return command

    def failure(self, output: str) -> str | None:
        """Return the line of a job's output that shows that the profiler itself failed; None if there is none."""
        return None

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Return its part inside a rank, which leaves its file in `folder`."""
        return Session()

    def check(self, file: Path) -> None:
        """Raise `TraceError` unless the file was left."""
        if not file.exists():
            raise TraceError(f"{self.name} left no {file.name}")

    def export(self, file: Path, folder: Path) -> Path:
        """Make a readable file, in `folder`, of the one that was left; return that file itself if it is readable.

        Raises `TraceError` if nothing readable can be made of it. Raises `UserError` if there is no space for it.
        """
        return file
