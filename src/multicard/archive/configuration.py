"""The configuration in an archive of recorded runs: written from the experiment, and read as one again."""

from pathlib import Path
from typing import Any

from multicard.archive.manifest import LONGEST, MANIFEST, Manifest
from multicard.core.errors import UserError
from multicard.core.text import printable
from multicard.experiment.config import Experiment
from multicard.experiment.datasets import SOURCES, Dataset
from multicard.experiment.load import check
from multicard.experiment.models import Model

PLACES = {"folder", "path", "download", "results", "recorded"}  # keys that say where something lies or comes from
UNKNOWN_PLACE = "recorded"  # in place of the paths of data, which an archive does not contain


def configuration_of(experiment: Experiment) -> dict[str, Any]:
    """The configuration as JSON: all that it states, without the places of data and results.

    What a scenario states is kept where it equals a default too: it may override what all scenarios share, or what its
    workload takes for granted.
    """
    stated = experiment.model_dump(mode="json", exclude_unset=True)
    for section in ("datasets", "models"):
        stated[section] = {name: kind_of(entry) for name, entry in getattr(experiment, section).items()}
    return _without_places(stated)


def kind_of(entry: Dataset | Model) -> dict[str, Any]:
    """What a data set or model is, wherever it lies, as JSON: only what differs from the defaults."""
    return _without_places(entry.model_dump(mode="json", exclude_defaults=True))


def _without_places(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in PLACES}


def experiment_of(manifest: Manifest, archive: Path) -> Experiment:
    """The configuration of the runs in an archive; it expands into the same runs. `archive` is named in messages.

    Raises
    ------
    UserError
        If it is no configuration of this version, one line per fault.
    """
    stated = manifest.experiment
    datasets = stated.get("datasets")
    if isinstance(datasets, dict):
        stated = stated | {"datasets": {name: _placed(entry) for name, entry in datasets.items()}}
    try:
        return check(stated, "experiment", outside=False)
    except UserError as error:
        lines = [f"{archive}: {MANIFEST}: {printable(line, LONGEST)}" for line in str(error).splitlines()]
        raise UserError(*lines) from None


def _placed(dataset: Any) -> Any:
    """A data set with something in the place of where it lies."""
    if not isinstance(dataset, dict) or dataset.get("source") not in list(SOURCES):
        return dataset
    fields = SOURCES[dataset["source"]].model_fields
    return {name: UNKNOWN_PLACE for name in PLACES if name in fields and fields[name].is_required()} | dataset
