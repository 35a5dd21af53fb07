"""Folders of prepared data sets and models: their names, their provenance, and a check that no file has changed."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import read_object, sha256

PROVENANCE = "provenance.json"


# Cached, because the many runs of an experiment have only a few definitions.
@cache
def folder_name(name: str, definition: Any) -> str:
    """Return the name of the folder in which a data set or model is prepared: its name and a digest of its definition.

    Two configurations that define a name differently have different folders. Two that define it alike share a folder.
    The field `download` is left out of the digest, because it does not change what is prepared.

    >>> from multicard.experiment.models import Model
    >>> folder_name("tiny", Model(architecture="tiny"))
    'tiny-69a8bd36'
    """
    stated = definition.model_dump(mode="json", exclude={"download"})
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def read_prepared(folder: Path, what: str) -> dict[str, Any]:
    """Read the provenance.json of a prepared data set or model; `what`: words for it in a message.

    The file is written last. Raises `UserError` if it is missing: then `folder` was not prepared, or not to the end.
    """
    if not (folder / PROVENANCE).is_file():
        raise UserError(f"{folder}: found no {PROVENANCE}, expected a prepared {what}")
    return read_object(folder / PROVENANCE)


def read_unchanged(folder: Path, what: str, location: str | None = None) -> dict[str, Any]:
    """Read the provenance.json of a prepared data set or model, and check the files and trees of files that it lists.

    `what`: words for the data set or model in a message. `location`: key of the provenance under which it states the
    folder of the files; None if the files are in `folder`.

    Raises `UserError` for the first file that is missing or has changed.
    """
    facts = read_prepared(folder, what)
    for entry in facts["files"]:
        path = Path(facts[location] if location else folder, entry["name"])
        if not is_unchanged(path, entry):
            raise UserError(f"{path}: missing or changed since it was prepared; delete {folder} to prepare it again")
    return facts


def is_unchanged(path: Path, entry: dict[str, Any]) -> bool:
    """Return whether a file or a tree of files is as its entry in a manifest or provenance states.

    A file is compared by its size, and by its checksum if the entry has one. The entry of a tree has the key `files`.
    The files of a tree lie two levels below `path`, and only their number and their total size are compared: every rank
    does this, and reading a hundred thousand files would take longer than some runs.
    """
    if "files" in entry:
        sizes = [file.stat().st_size for file in path.glob("*/*")]
        return (len(sizes), sum(sizes)) == (entry["files"], entry["bytes"])
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return "sha256" not in entry or sha256(path) == entry["sha256"]
