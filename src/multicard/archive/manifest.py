"""The manifest of an archive of recorded runs, and the only names that its members may have."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, ARCHIVED_TABLES, EPOCHS, MACHINES, RUN, STEPS
from multicard.core.text import printable
from multicard.experiment.config import ARCHIVE

MANIFEST = "manifest.json"
FORMAT = 3  # of the manifest and of the members' names; a change that a reader must know of counts it up

RUN_ID = r"[a-z0-9][A-Za-z0-9_.+-]{0,199}"
# The files of a run, its record last as when it was made.
FILES = (
    STEPS, EPOCHS, *(f"{ACTIVITY}/{table}.parquet" for table in ARCHIVED_TABLES), f"{ACTIVITY}/{ACTIVITY_INDEX}", RUN,
)  # fmt: skip
MEMBER = re.compile(
    rf"runs/(?P<run>{RUN_ID})/(?P<file>{'|'.join(map(re.escape, FILES))})"
    rf"|{MACHINES}/(?P<machine>[0-9]{{1,4}}-(?:cpu|cuda)\.json)"
)

LONGEST = 200  # characters of a name from an archive in a message
LARGEST_BYTES = 1 << 28  # of one member: steps of 64 ranks, 10 000 each, take half of it


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Member(_StrictModel):
    """One file of the archive."""

    name: Annotated[str, Field(max_length=400)]
    bytes: Annotated[int, Field(ge=0, le=LARGEST_BYTES)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RecordedRun(_StrictModel):
    """One run of the archive; its parameters show whether it is the run that a configuration asks for."""

    run: Annotated[str, Field(pattern=f"^{RUN_ID}$")]
    outcome: str
    parameters: dict[str, Any]


class Manifest(_StrictModel):
    """The first member of an archive.

    `experiment` is the configuration that was run, without the places of data, models and results.
    """

    format: Literal[FORMAT]
    multicard: str
    experiment: dict[str, Any]
    runs: list[RecordedRun]
    files: list[Member]

    @model_validator(mode="after")
    def _names_are_those_of_runs(self) -> "Manifest":
        runs = {run.run for run in self.runs}
        if len(runs) < len(self.runs):
            raise ValueError("it lists a run twice")
        names = {file.name for file in self.files}
        if len(names) < len(self.files):
            raise ValueError("it lists a file twice")
        for name in names:
            place = MEMBER.fullmatch(name)
            if place is None or not (place["machine"] or place["run"] in runs):
                raise ValueError(f"it lists {printable(name, LONGEST)}, which is no file of a run")
        for run in runs:
            for record in FILES:
                if f"runs/{run}/{record}" not in names:
                    raise ValueError(f"it lists no runs/{run}/{record}")
        return self


def check_suffix(path: Path) -> None:
    """Refuse a name that is not that of an archive."""
    if not path.name.endswith(ARCHIVE):
        raise UserError(f"{path}: expected a name that ends in {ARCHIVE}")
