"""Nsight Systems: its command lines, its versions, and its part inside a rank.

An exit code of 0 proves nothing: without its importer `nsys profile` exits with 0 and leaves no report. So every
step here is judged by the file that it should have made.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from multicard.core.errors import TraceError
from multicard.core.system import ask, version_of
from multicard.profilers.interface import Availability, Profiler, Session
from multicard.profilers.nsys_export import check_database, export_report

if TYPE_CHECKING:
    import torch

# The range that opens the capture, and whose end closes it.
CAPTURE_RANGE = "profiled_window"

VERSION_LIMIT_S = 30.0
EXPORT_LIMIT_S = 3600.0
PRINT_TORCH_LOCATION = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
# The release of Nsight Systems that came with each CUDA toolkit; those before it were made for an older CUDA. Sources:
# `nsight_systems` in the version.json of the toolkits 11.8, 13.2 and 13.3, the version of Debian's package for 12.5
# (2024.2.3~12.5.0), for the others the folder nsight-systems-X that the toolkit installs (cuda-X.Y/nsight-systems-…).
WITH_CUDA = {
    (11, 8): (2022, 4, 2), (12, 1): (2023, 1, 2), (12, 2): (2023, 2, 3), (12, 3): (2023, 3, 3), (12, 4): (2023, 4, 4),
    (12, 5): (2024, 2, 3), (12, 6): (2024, 4, 2), (12, 8): (2024, 6, 2), (12, 9): (2025, 1, 3), (13, 0): (2025, 3, 2),
    (13, 1): (2025, 5, 2), (13, 2): (2025, 6, 3), (13, 3): (2026, 1, 3),
}  # fmt: skip
# Stands for the version of CUDA of a torch that was built for CPUs, whose functions for NVTX raise an error.
BUILT_WITHOUT_CUDA = ""
NO_NVTX = "torch has no NVTX, since it was built without CUDA"
# The messages of nsys 2023.4 if it cannot start its agent, cannot reach it, or loses it.
FAILURE = re.compile(r"^Agent launcher failed\..*|^.*: Throw in function .*|^Connection to Agent lost\..*", re.M)


class Nsys(Profiler):
    """Records one report per node, of all its ranks."""

    name = "nsys"
    description = "Nsight Systems"
    program = "nsys"
    # The range name that opens the capture is not a registered string in PyTorch.
    environment: ClassVar = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    node_file = "report.nsys-rep"
    # Before nsys 2021.4 reports were named .qdrep.
    exportable = (".nsys-rep", ".qdrep")
    exportable_beginnings = (b"NVIDIA Tegra Profiler Report",)
    readable = (".sqlite",)
    readable_beginnings = (b"SQLite format 3\0",)
    reader = "multicard.trace.nsys_sqlite"

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Return whether nsys prints its version, and torch has NVTX, which names the ranges that nsys records.

        On GPUs there is a caveat if nsys is older than the CUDA of torch.
        """
        if not self.is_installed():
            return Availability(False, "no nsys on the PATH")
        version = self.version()
        if version is None:
            return Availability(False, "the nsys on the PATH does not work: nsys --version prints no version")
        cuda = cuda_of_torch(python)
        if cuda == BUILT_WITHOUT_CUDA:
            return Availability(False, NO_NVTX)
        age = older_than_cuda(version, cuda) if device == "cuda" else None
        return Availability(True, f"nsys {version} is on the PATH", age and f"nsys {age}")

    def version(self) -> str | None:
        """Return the version of the nsys on the PATH; None if there is none that prints it in time."""
        answer = ask(["nsys", "--version"], VERSION_LIMIT_S)
        line = re.search(r"^NVIDIA Nsight Systems version (\S.*)$", answer.output, re.M)
        return line[1].strip() if line and answer.problem is None else None

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Return a command that runs `command` and its children, and records the profiled window into `file`."""
        options = _if_supported("profile", "--discard-environment=true")
        if device == "cuda":
            # Unless told otherwise, nsys records a CUDA graph as one event, and not every kernel in it.
            options += ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]
            # Timing CUDA events adds dependencies between streams, and so hides overlap.
            options += _if_supported("profile", "--cuda-event-trace=false")
        else:
            options += ["--trace=nvtx"]
        # On recent kernels, sampling the CPU and its context switches hangs nsys 2022.4 for good.
        options += ["--sample=none", "--cpuctxsw=none"]
        # The window is an NVTX range, since cudaProfilerStart and Stop may be the script's own. Its end must not end
        # the job.
        options += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}", "--capture-range-end=stop"]
        # What the job leaves running neither holds nsys nor is ended by it: the launcher ends it, and records that.
        options += ["--wait=primary", "--kill=none"]
        return ["nsys", "profile", *options, "--force-overwrite=true", f"--output={file}", *command]

    def failure(self, output: str) -> str | None:
        """Return the line about a failure of nsys's agent, which is no fault of the job."""
        line = FAILURE.search(output)
        return line and line[0]

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Open the window in which the nsys around the job records."""
        return NsysSession()

    def check(self, file: Path) -> None:
        """Raise `TraceError` unless `nsys profile` left a report."""
        if file.is_file() and file.stat().st_size > 0:
            return
        if file.with_suffix(".qdstrm").exists():
            raise TraceError("nsys left an unprocessed .qdstrm and no report: its importer is missing or failed")
        raise TraceError("nsys left no report")

    def export(self, file: Path, folder: Path, limit_s: float = EXPORT_LIMIT_S) -> Path:
        """Export a report to SQLite; the database appears only when it passed its checks.

        NVTX's payloads, in which NCCL states the sizes of its messages, are exported if this nsys can. An nsys that
        cannot discard environments records those of every process on the machine that it may read, not of the job
        alone. They are removed from the database, and so are all payloads but NCCL's; from the report they cannot be.

        Raises `TraceError` if nsys is missing, fails, or leaves a database that does not hold a trace. Raises
        `UserError` if there is no space for the database: the report is none the worse for it.
        """
        database = folder / f"{file.stem}.sqlite"
        if self.is_installed():
            export_report(file, database, _if_supported("export", "--include-blobs=true"), limit_s)
        elif database.exists():
            # It was exported on another machine.
            check_database(database)
        else:
            raise TraceError(f"cannot export {file.name}: nsys is not on the PATH")
        return database


class NsysSession(Session):
    """Ranges are NVTX, of the kind that ends by its handle: those of push and pop would cross the script's own."""

    def __init__(self) -> None:
        from torch.cuda import nvtx

        self._nvtx = nvtx

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Show the block as an NVTX range."""
        opened = self._nvtx.range_start(name)
        try:
            yield
        finally:
            self._nvtx.range_end(opened)

    def mark(self, name: str) -> None:
        """Leave an NVTX mark."""
        self._nvtx.mark(name)

    def recording(self) -> AbstractContextManager[object]:
        """Open the capture that `wrap` told nsys to wait for."""
        return self.range(CAPTURE_RANGE)


PROFILER = Nsys()


def older_than_cuda(version: str, cuda: str | None) -> str | None:
    """Return, in words, that this version of nsys is older than the CUDA of torch; None if it is not, or unknown.

    >>> older_than_cuda("2023.4.4.54-234433681190v0", "13.0")
    '2023.4.4.54 is older than 2025.3.2, which came with CUDA 13.0; torch uses 13.0'
    """
    nsys_version = version_of(version)
    cuda_version = (version_of(cuda) or ())[:2] if cuda else ()
    # A CUDA that is newer than this table had at least the nsys of the last one in it.
    toolkits = [toolkit for toolkit in WITH_CUDA if toolkit <= cuda_version]
    if not nsys_version or not toolkits:
        return None
    toolkit = max(toolkits)
    needed = WITH_CUDA[toolkit]
    if nsys_version[:3] >= needed:
        return None
    age = f"{_dotted(nsys_version)} is older than {_dotted(needed)}"
    return f"{age}, which came with CUDA {_dotted(toolkit)}; torch uses {cuda}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def cuda_of_torch(python: str | None = None) -> str | None:
    """Return the version of CUDA that torch was built for, without importing it.

    `BUILT_WITHOUT_CUDA` if it was built for CPUs, None if there is no torch, or its version is not stated.

    `python`: the interpreter whose torch is meant, if not this one's.
    """
    if python in (None, sys.executable):
        spec = importlib.util.find_spec("torch")
        torch_path = (spec and spec.origin) or ""
    else:
        torch_path = "".join(ask([python, "-c", PRINT_TORCH_LOCATION], VERSION_LIMIT_S).lines[-1:])
    if not torch_path:
        return None
    try:
        text = Path(torch_path).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    cuda = re.search(r"^cuda\b[^=\n]*= (?:['\"]([\d.]+)['\"]|None$)", text, re.M)
    return (cuda[1] or BUILT_WITHOUT_CUDA) if cuda else None


def _if_supported(command: str, option: str) -> list[str]:
    """Return the option in a list, which is empty if the nsys on the PATH does not list it in the command's help."""
    name = re.escape(option.partition("=")[0])
    help_text = ask(["nsys", command, "--help"], VERSION_LIMIT_S).output
    return [option] if re.search(rf"^\s*(-\w, *)?{name}(?![\w-])", help_text, re.M) else []
