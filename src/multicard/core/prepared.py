"""What the preparation of data and models leaves in a folder, and whether it is still there."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import read_object, sha256

PROVENANCE = "provenance.json"

Entry = Mapping[str, Any]


def read_prepared(folder: Path, what: str) -> dict[str, Any]:
    """Read provenance.json, which is written last.

    Raises
    ------
    UserError
        If there is none, so that `folder` holds no prepared `what`.
    """
    if not (folder / PROVENANCE).is_file():
        raise UserError(f"{folder}: found no {PROVENANCE}, expected a prepared {what}")
    return read_object(folder / PROVENANCE)


def is_unchanged(path: Path, entry: Entry) -> bool:
    """Tell whether a file has still the size of its entry, and the checksum where the entry states one."""
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return "sha256" not in entry or sha256(path) == entry["sha256"]


def refuse_changed(
    folder: Path, place: Path, entries: Iterable[Entry], unchanged: Callable[[Path, Entry], bool] = is_unchanged
) -> None:
    """Check what was prepared in `folder`, whose entries name files in `place`.

    Raises
    ------
    UserError
        At the first file that is missing or not the one that was prepared.
    """
    for entry in entries:
        path = place / entry["name"]
        if not unchanged(path, entry):
            raise UserError(f"{path}: missing or changed since it was prepared; delete {folder} to prepare it again")
