"""Folders of prepared data sets and models: their names, their provenance, and checks that nothing has changed."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import read_object, sha256

PROVENANCE = "provenance.json"


# The runs of an experiment share a few definitions.
@cache
def folder_name(name: str, definition: Any) -> str:
    """Return the name of the folder in which a data set or model is prepared: its name and a digest of its definition.

    Configurations that define a name differently do not overwrite each other's data, and those that agree share one
    folder. `download` is left out: it does not change what is prepared.

    >>> from multicard.experiment.models import Model
    >>> folder_name("tiny", Model(architecture="tiny"))
    'tiny-69a8bd36'
    """
    stated = definition.model_dump(mode="json", exclude={"download"})
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def read_prepared(folder: Path, what: str) -> dict[str, Any]:
    """Read the provenance.json of a prepared data set or model.

    It is written last. Raises `UserError` if there is none, so that `folder` holds no prepared `what`.
    """
    if not (folder / PROVENANCE).is_file():
        raise UserError(f"{folder}: found no {PROVENANCE}, expected a prepared {what}")
    return read_object(folder / PROVENANCE)


def read_unchanged(folder: Path, what: str, location: str | None = None) -> dict[str, Any]:
    """Read the provenance.json of a prepared data set or model, and check the files and trees of files that it lists.

    They are in `folder`, or in the folder that the key `location` of the provenance names.

    Raises `UserError` at the first one that is missing or not what was prepared.
    """
    facts = read_prepared(folder, what)
    for entry in facts["files"]:
        path = Path(facts[location] if location else folder, entry["name"])
        if not is_unchanged(path, entry):
            raise UserError(f"{path}: missing or changed since it was prepared; delete {folder} to prepare it again")
    return facts


def is_unchanged(path: Path, entry: dict[str, Any]) -> bool:
    """Return whether a file or a tree of files is as its entry in a provenance states: by size, and checksum if stated.

    Of a tree, whose entry has `files`, their number and total size are compared: every rank does this, and reading a
    hundred thousand files would take longer than some runs.
    """
    if "files" in entry:
        sizes = [file.stat().st_size for file in path.glob("*/*")]
        return (len(sizes), sum(sizes)) == (entry["files"], entry["bytes"])
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return "sha256" not in entry or sha256(path) == entry["sha256"]
