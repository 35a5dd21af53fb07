"""Nsight Systems: its command lines, its versions, and its part inside a rank.

nsys may exit with 0 although it failed: `nsys profile` does so, and leaves no report, if its importer is missing. So
every step here is checked by the file that it should have made.
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
from multicard.profilers.nsys_export import check_database, export_report, why_without_nsys

if TYPE_CHECKING:
    import torch

# Name of the NVTX range that starts the recording when it begins, and stops it when it ends.
CAPTURE_RANGE = "profiled_window"

VERSION_LIMIT_S = 30.0
EXPORT_LIMIT_S = 3600.0
PRINT_TORCH_LOCATION = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
# The release of Nsight Systems that came with each CUDA toolkit. An older nsys was made for an older CUDA, and may not
# record all of this one. Sources: `nsight_systems` in the version.json of the toolkits 11.8, 13.2 and 13.3; the version
# of Debian's package for 12.5 (2024.2.3~12.5.0); for 13.4 the packages that cuda-toolkit-13-4 installs, which the
# release notes of Amazon's machine images of 2026-09-28 list; for the others the name of the folder that the toolkit
# installs (cuda-X.Y/nsight-systems-…).
WITH_CUDA = {
    (11, 8): (2022, 4, 2), (12, 1): (2023, 1, 2), (12, 2): (2023, 2, 3), (12, 3): (2023, 3, 3), (12, 4): (2023, 4, 4),
    (12, 5): (2024, 2, 3), (12, 6): (2024, 4, 2), (12, 8): (2024, 6, 2), (12, 9): (2025, 1, 3), (13, 0): (2025, 3, 2),
    (13, 1): (2025, 5, 2), (13, 2): (2025, 6, 3), (13, 3): (2026, 1, 3), (13, 4): (2026, 3, 2),
}  # fmt: skip
# Takes the place of the CUDA version for a torch that was built for CPUs. The NVTX functions of such a torch raise an
# error.
BUILT_WITHOUT_CUDA = ""
NO_NVTX = "torch has no NVTX, since it was built without CUDA"
# The messages of nsys 2023.4 when it cannot start its agent, cannot connect to it, or loses the connection.
FAILURE = re.compile(r"^Agent launcher failed\..*|^.*: Throw in function .*|^Connection to Agent lost\..*", re.M)


class Nsys(Profiler):
    """Records one report per node, which has all ranks of the node."""

    name = "nsys"
    description = "Nsight Systems"
    program = "nsys"
    # By default nsys ignores a capture range whose name is not a registered NVTX string; PyTorch registers no names.
    environment: ClassVar = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    node_file = "report.nsys-rep"
    # Before nsys 2021.4 reports were named .qdrep.
    exportable = (".nsys-rep", ".qdrep")
    exportable_beginnings = (b"NVIDIA Tegra Profiler Report",)
    readable = (".sqlite",)
    readable_beginnings = (b"SQLite format 3\0",)
    reader = "multicard.trace.nsys_sqlite"

    def availability(self, device: str, python: str | None = None) -> Availability:
        """Return whether nsys can be used: it must print its version, and torch must have NVTX, to mark ranges.

        A torch that is not found, or does not state its CUDA version, counts as one with NVTX. On GPUs there is a
        caveat if nsys is older than the nsys that came with torch's CUDA version.
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
        """Return the version that the nsys on the PATH prints; None if it fails, or takes over `VERSION_LIMIT_S`."""
        answer = ask(["nsys", "--version"], VERSION_LIMIT_S)
        line = re.search(r"^NVIDIA Nsight Systems version (\S.*)$", answer.output, re.M)
        return line[1].strip() if line and answer.problem is None else None

    def wrap(self, command: list[str], file: Path, device: str) -> list[str]:
        """Return a command that runs `command` and its children, and records the profiled window into `file`."""
        options = _if_supported("profile", "--discard-environment=true")
        if device == "cuda":
            # By default nsys records a whole CUDA graph as one event. With "node" it records every kernel in the graph.
            options += ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]
            # When nsys times CUDA events, it adds dependencies between streams, so that kernels overlap less.
            options += _if_supported("profile", "--cuda-event-trace=false")
        else:
            options += ["--trace=nvtx"]
        # On recent Linux kernels, nsys 2022.4 hangs for ever if it samples the CPU or its context switches.
        options += ["--sample=none", "--cpuctxsw=none"]
        # The window is an NVTX range and not cudaProfilerStart and Stop, because a script may call these itself. When
        # the range ends, nsys only stops recording, and does not end the job.
        options += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE_RANGE}", "--capture-range-end=stop"]
        # nsys exits after the job's first process, and does not wait for or kill others that are left. The launcher
        # ends these.
        options += ["--wait=primary", "--kill=none"]
        return ["nsys", "profile", *options, "--force-overwrite=true", f"--output={file}", *command]

    def failure(self, output: str) -> str | None:
        """Return the first line about a failure of nsys's agent, which the job cannot cause; None if there is none."""
        line = FAILURE.search(output)
        return line and line[0]

    def session(self, folder: Path, rank: int, device: "torch.device") -> Session:
        """Return a session whose `recording` opens the window in which the nsys that wraps the job records."""
        return NsysSession()

    def check(self, file: Path) -> None:
        """Raise `TraceError` if `nsys profile` left no report, or an empty one."""
        if file.is_file() and file.stat().st_size > 0:
            return
        if file.with_suffix(".qdstrm").exists():
            raise TraceError("nsys left an unprocessed .qdstrm and no report: its importer is missing or failed")
        raise TraceError("nsys left no report")

    def export(self, file: Path, folder: Path, limit_s: float = EXPORT_LIMIT_S) -> Path:
        """Export a report to a SQLite database in `folder`; the database appears only once it has passed its checks.

        The payloads of NVTX events, in which NCCL states the sizes of its messages, are exported if this nsys can do
        so. The report may also hold the environments of all processes on the machine that nsys could read, because an
        old nsys cannot leave them out (see `wrap`). `export_report` removes them, and all payloads except NCCL's, from
        the database. They cannot be removed from the report.

        Without nsys, a database that is there already is checked and returned.

        Raises `TraceError` if nsys is missing and there is no database, if nsys fails or takes more than `limit_s`
        seconds, or if the database does not hold a trace. Raises `UserError` if the database cannot be written, as on a
        full disk; the report stays as it is.
        """
        database = folder / f"{file.stem}.sqlite"
        if self.is_installed():
            export_report(file, database, _if_supported("export", "--include-blobs=true"), limit_s)
        elif database.exists():
            # The database was made by an nsys on another machine.
            check_database(database)
        else:
            raise TraceError(why_without_nsys(file))
        return database


class NsysSession(Session):
    """Records ranges as NVTX start/end ranges, which are ended by their handle.

    Push/pop ranges of a thread must be nested, but the ranges here may overlap those of the script.
    """

    def __init__(self) -> None:
        from torch.cuda import nvtx

        self._nvtx = nvtx

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Record the block as an NVTX range."""
        opened = self._nvtx.range_start(name)
        try:
            yield
        finally:
            self._nvtx.range_end(opened)

    def mark(self, name: str) -> None:
        """Record an NVTX mark."""
        self._nvtx.mark(name)

    def recording(self) -> AbstractContextManager[object]:
        """Record while the block runs: nsys records from the start to the end of this range (see `wrap`)."""
        return self.range(CAPTURE_RANGE)


PROFILER = Nsys()


def older_than_cuda(version: str, cuda: str | None) -> str | None:
    """Return a sentence that this nsys is older than the one that came with torch's CUDA version.

    None if nsys is not older, if one of the versions is not known, or if CUDA is older than all in `WITH_CUDA`.

    If CUDA is newer than all in `WITH_CUDA`, nsys must be newer than all there, because every toolkit so far came with
    another release of nsys than the toolkit before it.

    >>> older_than_cuda("2023.4.4.54-234433681190v0", "13.0")
    '2023.4.4.54 is older than 2025.3.2, which came with CUDA 13.0; torch uses 13.0'
    >>> older_than_cuda("2026.3.2.476", "13.9")
    '2026.3.2.476 came with CUDA 13.4; torch uses 13.9'
    """
    nsys_version = version_of(version)
    cuda_version = (version_of(cuda) or ())[:2] if cuda else ()
    # For a CUDA version that is not in the table, the nsys of the next older version is compared.
    toolkits = [toolkit for toolkit in WITH_CUDA if toolkit <= cuda_version]
    if not nsys_version or not toolkits:
        return None
    toolkit = max(toolkits)
    needed = WITH_CUDA[toolkit]
    is_newest_known = nsys_version[:3] == max(WITH_CUDA.values())
    if is_newest_known and cuda_version > max(WITH_CUDA):
        return f"{_dotted(nsys_version)} came with CUDA {_dotted(toolkit)}; torch uses {cuda}"
    if nsys_version[:3] >= needed:
        return None
    age = f"{_dotted(nsys_version)} is older than {_dotted(needed)}"
    return f"{age}, which came with CUDA {_dotted(toolkit)}; torch uses {cuda}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def cuda_of_torch(python: str | None = None) -> str | None:
    """Return the CUDA version that torch was built for, read from torch's version.py without importing torch.

    `BUILT_WITHOUT_CUDA` if torch was built for CPUs; None if there is no torch, or if the file does not state it.

    `python`: path of the interpreter whose torch is meant; None for this process's.
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
    """Return a list with the option; an empty list if the help of this nsys command does not name the option."""
    name = re.escape(option.partition("=")[0])
    help_text = ask(["nsys", command, "--help"], VERSION_LIMIT_S).output
    return [option] if re.search(rf"^\s*(-\w, *)?{name}(?![\w-])", help_text, re.M) else []
