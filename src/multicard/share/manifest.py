"""The manifest of an archive of recorded runs: the names that members may have, and the configuration of the runs."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import FailFast, Field, model_validator

from multicard.config.experiment import ARCHIVE, Experiment
from multicard.config.load import check
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, ARCHIVED_TABLES, EPOCHS, MACHINES, RUN, STEPS
from multicard.core.text import printable
from multicard.programs.datasets import SOURCES, Strict

MANIFEST = "manifest.json"
# Number of the format of the manifest and of the members' names. Any change that a reader must know of raises it.
Format = Literal[4]
FORMAT: Format = 4

RUN_ID = r"[a-z0-9][A-Za-z0-9_.+-]{0,199}"
# The files of a run. The record comes last, as when a run writes its files.
FILES = (
    STEPS, EPOCHS, *(f"{ACTIVITY}/{table}.parquet" for table in ARCHIVED_TABLES), f"{ACTIVITY}/{ACTIVITY_INDEX}", RUN,
)  # fmt: skip
MEMBER = re.compile(
    rf"runs/(?P<run>{RUN_ID})/(?P<file>{'|'.join(map(re.escape, FILES))})"
    rf"|{MACHINES}/(?P<machine>[0-9]{{1,4}}-(?:cpu|cuda)\.json)"
)
# A message shows at most this many characters of a text from an archive.
LONGEST = 200

# Keys whose values are where something is or comes from. They are left out of an archive.
PLACES = {"folder", "path", "download", "results"}
# Stands in for where data sets are, because an archive leaves that out and a configuration requires it.
UNKNOWN_PLACE = "recorded"


class Member(Strict):
    """One file of the archive."""

    name: str = Field(max_length=400)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


# A configuration, or a section of one, as JSON, with the keys of a configuration file, which `Experiment` validates.
ConfigurationJson: TypeAlias = dict[str, Any]


class Manifest(Strict):
    """The first member of an archive.

    `multicard` is the version that wrote the archive. `experiment` is the configuration that was run, without where
    data, models and results are.
    """

    format: Format
    multicard: str
    experiment: ConfigurationJson
    # Validation stops at the first fault, because there may be millions and only the first one is reported.
    files: Annotated[list[Member], FailFast()]

    @property
    def runs(self) -> list[str]:
        """Ids of the runs, each once, in the order of the files."""
        matches = (MEMBER.fullmatch(file.name) for file in self.files)
        return list(dict.fromkeys(match["run"] for match in matches if match and match["run"]))

    @model_validator(mode="after")
    def _names_are_those_of_runs(self) -> "Manifest":
        """Raise `ValueError` if a file is listed twice, has no name that `MEMBER` allows, or a run lacks a file."""
        names = {file.name for file in self.files}
        if len(names) < len(self.files):
            raise ValueError("it lists a file twice")
        for name in names:
            if not MEMBER.fullmatch(name):
                raise ValueError(f"it lists {printable(name, LONGEST)}, which is not a file of a run")
        for run in self.runs:
            for file in FILES:
                if f"runs/{run}/{file}" not in names:
                    raise ValueError(f"it does not list runs/{run}/{file}")
        return self


def check_suffix(path: Path) -> None:
    """Raise `UserError` if the name of a file does not end in `ARCHIVE`."""
    if not path.name.endswith(ARCHIVE):
        raise UserError(f"{path}: expected a name that ends in {ARCHIVE}")


def configuration_of(experiment: Experiment) -> ConfigurationJson:
    """Return the configuration as JSON: all that it states, except where data, models and results are.

    A value that a scenario states is kept even if it equals a default, because it may override a value that all
    scenarios share, or a default of the scenario's program.
    """
    stated = experiment.model_dump(mode="json", exclude_unset=True)
    for section in ("datasets", "models"):
        entries = getattr(experiment, section).items()
        stated[section] = {
            name: _without_places(entry.model_dump(mode="json", exclude_defaults=True)) for name, entry in entries
        }
    return _without_places(stated)


def _without_places(section: ConfigurationJson) -> ConfigurationJson:
    """Return a section without its own keys in `PLACES`; sections inside it are unchanged."""
    return {key: value for key, value in section.items() if key not in PLACES}


def experiment_of(manifest: Manifest, archive: Path) -> Experiment:
    """Return the configuration of the runs in an archive, which expands into the same runs.

    `archive`: the path of the archive, for messages.

    Raises `UserError` with a line for each fault if this version of multicard does not accept the configuration.
    """
    try:
        return configured(manifest.experiment)
    except UserError as error:
        lines = [f"{archive}: {MANIFEST}: {printable(line, LONGEST)}" for line in str(error).splitlines()]
        raise UserError(*lines) from None


def configured(stated: ConfigurationJson) -> Experiment:
    """Return the configuration that an archive states, with `UNKNOWN_PLACE` for where its data sets are.

    Raises `UserError` with a line for each fault if it is not a valid configuration.
    """
    datasets = stated.get("datasets")
    if isinstance(datasets, dict):
        stated = stated | {"datasets": {name: _placed(entry) for name, entry in datasets.items()}}
    # Without `outside` it is not checked whether data, models and the results folder are there.
    return check(stated, "experiment", outside=False)


def _placed(dataset: Any) -> Any:
    """Return a data set with `UNKNOWN_PLACE` for each required key of `PLACES` that it lacks.

    If this is not a data set of a known source, return it unchanged: `check` reports it.
    """
    if not isinstance(dataset, dict) or dataset.get("source") not in list(SOURCES):
        return dataset
    fields = SOURCES[dataset["source"]].model_fields
    return {name: UNKNOWN_PLACE for name in PLACES if name in fields and fields[name].is_required()} | dataset
