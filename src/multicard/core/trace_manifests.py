"""captured.json and exported.json, in the folder `trace` of a run: which files the profiler left, and readable ones.

`launch` writes the first when the job has ended. `trace.export` writes the second when it has made readable files of
those that the first lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.core.values import JsonObject


@dataclass(frozen=True)
class TraceFile:
    """A file in the folder of a run's trace, as a manifest lists it."""

    name: str
    bytes: int
    # The checksum of its content, in hexadecimal digits.
    sha256: str
    # The number of the node that the file is from; None if the job ran on one node, or if the file is that of a rank.
    node: int | None = None

    @classmethod
    def of(cls, path: Path, node: int | None = None) -> "TraceFile":
        """Return the entry of a file that exists."""
        return cls(**described(path), node=node)

    def as_json(self) -> JsonObject:
        """Return the entry as manifests have it: without `node` if that is None."""
        entry: JsonObject = {"name": self.name, "bytes": self.bytes, "sha256": self.sha256}
        return entry if self.node is None else entry | {"node": self.node}


@dataclass(frozen=True)
class Captured:
    """The content of captured.json."""

    # The name of the profiler that was used.
    profiler: str
    # The reason why there are no files; None if there are some.
    missing: str | None
    files: tuple[TraceFile, ...] = ()

    def write(self, folder: Path) -> None:
        """Write captured.json into the folder of a trace."""
        entries = [file.as_json() for file in self.files]
        write_json(folder / CAPTURED, {"profiler": self.profiler, "missing": self.missing, "files": entries})


@dataclass(frozen=True)
class Exported:
    """The content of exported.json."""

    # The name of the profiler that was used.
    profiler: str
    # The reason why there are no readable files; None if there are some.
    missing: str | None
    files: tuple[TraceFile, ...]
    # The checksum of the captured.json whose files were exported.
    captured_sha256: str

    def write(self, folder: Path) -> None:
        """Write exported.json into the folder of a trace."""
        content = {
            "profiler": self.profiler,
            "missing": self.missing,
            "files": [file.as_json() for file in self.files],
            "captured_sha256": self.captured_sha256,
        }
        write_json(folder / EXPORTED, content)


def read_captured(folder: Path) -> Captured:
    """Read captured.json from the folder of a trace. Raises `UserError` if it is missing, or not such a manifest."""
    path = folder / CAPTURED
    values = _values_of(path, ("profiler", "missing", "files"))
    return Captured(values["profiler"], values["missing"], _files(values, path))


def read_exported(folder: Path) -> Exported:
    """Read exported.json from the folder of a trace. Raises `UserError` if it is missing, or not such a manifest."""
    path = folder / EXPORTED
    values = _values_of(path, ("profiler", "missing", "files", "captured_sha256"))
    return Exported(values["profiler"], values["missing"], _files(values, path), values["captured_sha256"])


def _values_of(path: Path, needed: Sequence[str]) -> Mapping[str, Any]:
    values = read_object(path)
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{path}: found no {', '.join(missing)}, expected a list of the files of a trace")
    return values


def _files(values: Mapping[str, Any], path: Path) -> tuple[TraceFile, ...]:
    try:
        return tuple(TraceFile(**entry) for entry in values["files"])
    except TypeError:
        raise UserError(f"{path}, files: expected entries with name, bytes and sha256") from None
