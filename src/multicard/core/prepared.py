"""Folders of prepared data sets and models: their names, and a check that a file has not changed."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from multicard.core.files import sha256

PROVENANCE = "provenance.json"


# Cached, because the many runs of an experiment have only a few definitions.
@cache
def folder_name(name: str, definition: Any) -> str:
    """Return the name of the folder in which a data set or model is prepared: its name and a digest of its definition.

    Two configurations that define a name differently have different folders. Two that define it alike share a folder.
    The field `download` is left out of the digest, because it does not change what is prepared.

    >>> from multicard.programs.models import Model
    >>> folder_name("tiny", Model(architecture="tiny"))
    'tiny-69a8bd36'
    """
    stated = definition.model_dump(mode="json", exclude={"download"})
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
    return f"{name}-{digest[:8]}"


def is_unchanged(path: Path, size: int, checksum: str | None) -> bool:
    """Return whether a file has the size in bytes and the SHA-256 that were recorded; None: no checksum was."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    return checksum is None or sha256(path) == checksum
