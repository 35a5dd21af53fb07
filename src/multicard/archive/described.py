"""The experiment that an archive of recorded runs describes, as a configuration again."""

from pathlib import Path
from typing import Any

from multicard.archive.manifest import MANIFEST, Manifest, shown
from multicard.archive.pack import PLACES
from multicard.core.errors import UserError
from multicard.experiment.config import Experiment
from multicard.experiment.datasets import SOURCES
from multicard.experiment.load import check

UNKNOWN_PLACE = "recorded"  # stands where data lie, which an archive does not tell and nobody asks


def experiment_of(manifest: Manifest, archive: Path) -> Experiment:
    """The configuration whose runs an archive holds; it expands into the same runs. `archive` is named in messages.

    Raises
    ------
    UserError
        If it is no configuration of this version, one line per fault.
    """
    told = manifest.experiment
    datasets = told.get("datasets")
    if isinstance(datasets, dict):
        told = told | {"datasets": {name: _placed(entry) for name, entry in datasets.items()}}
    try:
        return check(told, "experiment", outside=False)
    except UserError as error:
        raise UserError(*(f"{archive}: {MANIFEST}: {shown(line)}" for line in str(error).splitlines())) from None


def _placed(dataset: Any) -> Any:
    """A data set with something in the place of where it lies."""
    if not isinstance(dataset, dict) or dataset.get("source") not in list(SOURCES):
        return dataset
    fields = SOURCES[dataset["source"]].model_fields
    return {name: UNKNOWN_PLACE for name in PLACES if name in fields and fields[name].is_required()} | dataset
