"""The manifest of an archive of recorded runs, the only names that its members may have, and its configuration."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, model_validator

from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, ARCHIVED_TABLES, EPOCHS, MACHINES, RUN, STEPS
from multicard.core.text import printable
from multicard.experiment.config import ARCHIVE, Experiment
from multicard.experiment.datasets import SOURCES, Strict
from multicard.experiment.load import check

MANIFEST = "manifest.json"
# Number of the format of the manifest and of the members' names; a change that a reader must know of counts it up.
Format = Literal[4]
FORMAT: Format = 4

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

PLACES = {"folder", "path", "download", "results"}  # keys that say where something lies or comes from
UNKNOWN_PLACE = "recorded"  # replaces the paths of data, which an archive does not contain


class Member(Strict):
    """One file of the archive."""

    name: str = Field(max_length=400)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Strict):
    """The first member of an archive.

    `experiment` is the configuration that was run, without the places of data, models and results.
    """

    format: Format
    multicard: str
    experiment: dict[str, Any]
    files: Annotated[list[Member], FailFast()]  # only the first fault is told, and there may be millions

    @property
    def runs(self) -> list[str]:
        """Ids of the runs."""
        matches = (MEMBER.fullmatch(file.name) for file in self.files)
        return list(dict.fromkeys(match["run"] for match in matches if match and match["run"]))

    @model_validator(mode="after")
    def _names_are_those_of_runs(self) -> "Manifest":
        names = {file.name for file in self.files}
        if len(names) < len(self.files):
            raise ValueError("it lists a file twice")
        for name in names:
            if not MEMBER.fullmatch(name):
                raise ValueError(f"it lists {printable(name, LONGEST)}, which is no file of a run")
        for run in self.runs:
            for file in FILES:
                if f"runs/{run}/{file}" not in names:
                    raise ValueError(f"it lists no runs/{run}/{file}")
        return self


def check_suffix(path: Path) -> None:
    """Refuse a name that is not that of an archive."""
    if not path.name.endswith(ARCHIVE):
        raise UserError(f"{path}: expected a name that ends in {ARCHIVE}")


def configuration_of(experiment: Experiment) -> dict[str, Any]:
    """The configuration as JSON: all that it states, without the places of data and results.

    What a scenario states is kept where it equals a default too: it may override what all scenarios share, or what its
    workload takes for granted.
    """
    stated = experiment.model_dump(mode="json", exclude_unset=True)
    for section in ("datasets", "models"):
        entries = getattr(experiment, section).items()
        stated[section] = {
            name: _without_places(entry.model_dump(mode="json", exclude_defaults=True)) for name, entry in entries
        }
    return _without_places(stated)


def _without_places(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in PLACES}


def experiment_of(manifest: Manifest, archive: Path) -> Experiment:
    """The configuration of the runs in an archive; it expands into the same runs. `archive` is named in messages.

    Raises `UserError` if it is no configuration of this version, one line per fault.
    """
    try:
        return configured(manifest.experiment)
    except UserError as error:
        lines = [f"{archive}: {MANIFEST}: {printable(line, LONGEST)}" for line in str(error).splitlines()]
        raise UserError(*lines) from None


def configured(stated: dict[str, Any]) -> Experiment:
    """The configuration that an archive states; its data sets lie nowhere.

    Raises `UserError` if it is none, one line per fault.
    """
    datasets = stated.get("datasets")
    if isinstance(datasets, dict):
        stated = stated | {"datasets": {name: _placed(entry) for name, entry in datasets.items()}}
    return check(stated, "experiment", outside=False)


def _placed(dataset: Any) -> Any:
    """A data set with something in the place of where it lies."""
    if not isinstance(dataset, dict) or dataset.get("source") not in list(SOURCES):
        return dataset
    fields = SOURCES[dataset["source"]].model_fields
    return {name: UNKNOWN_PLACE for name in PLACES if name in fields and fields[name].is_required()} | dataset
