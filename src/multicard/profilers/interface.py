"""What a profiler says of itself.

An entry is a module of this package with an instance named `PROFILER`. Training processes import these modules too, so
they need the standard library and `core/` only, and import torch inside functions.
"""

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from multicard.core.errors import TraceError

if TYPE_CHECKING:
    import torch


class Availability(NamedTuple):
    """Whether a profiler can be used on this machine, and how that is known.

    `caveat`: why it may record too little of a job. `auto` leaves it out then; who states it gets it.
    """

    usable: bool
    why: str = ""
    caveat: str | None = None


class Session:
    """A profiler's part inside a training process. This one does nothing."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Show the block as a range of that name in the trace."""
        return nullcontext()

    def mark(self, name: str) -> None:
        """Put a name into the trace of this process."""

    def recording(self) -> AbstractContextManager[object]:
        """Record while the block runs. Ranks enter it together and leave it together, with no work queued."""
        return nullcontext()


class Profiler:
    """How a job is recorded, and what comes of it."""

    name: ClassVar[str]  # value of the parameter `profiler`
    description: ClassVar[str]
    program: ClassVar[str | None] = None  # that must be on the PATH; None where PyTorch is enough
    environment: ClassVar[Mapping[str, str]] = {}  # variables that the job needs to be recorded
    node_file: ClassVar[str | None] = None  # left on every node by a program that runs the job as its child (`wrap`)
    rank_file: ClassVar[str | None] = None  # left of every `rank` by one that records inside the ranks (`session`)
    exportable: ClassVar[tuple[str, ...]] = ()  # suffixes of what it leaves, of which `export` makes a readable file
    readable: ClassVar[tuple[str, ...]] = ()  # suffixes of the files that its reader takes
    # What the content of such files begins with, after blanks: a file is opened by it if its suffix is another.
    exportable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    readable_beginnings: ClassVar[tuple[bytes, ...]] = ()
    # Module with a function `read(path)` that gives the `multicard.trace.model.Trace` of a file; None where no activity
    # tables are made of it. One that `refuses_large` files does not if it is called as `read(path, large=True)`.
    reader: ClassVar[str | None] = None
    refuses_large: ClassVar[bool] = False

    def is_installed(self) -> bool:
        """Whether its program is on the PATH."""
        return self.program is None or shutil.which(self.program) is not None

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Whether it can be used here for jobs on `device` (cpu, cuda), and how that is known or what is missing.

        `python`: the interpreter of the job, if not this one.
        """
        return Availability(True) if self.is_installed() else Availability(False, f"no {self.program} on the PATH")

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Command that runs `command`, whose processes compute on `device` (cpu, cuda), and leaves `file`."""
        return command

    def failure(self, output: str) -> str | None:
        """The line of a job's output in which it says that it failed itself; None where there is none."""
        return None

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Give its part inside a rank, which leaves its file in `folder`."""
        return Session()

    def check(self, file: Path) -> None:
        """Raise `TraceError` unless the file was left."""
        if not file.exists():
            raise TraceError(f"{self.name} left no {file.name}")

    def export(self, file: Path, folder: Path) -> Path:
        """Make a readable file, in `folder`, of the one that was left; give that file itself if it is readable.

        Raises `TraceError` if nothing readable can be made of it. Raises `UserError` if there is no space for it.
        """
        return file
