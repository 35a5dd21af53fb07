"""Which runs of an experiment come from archives, and what keeps the others from running here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from multicard.archive.configuration import kind_of
from multicard.archive.manifest import Manifest, RecordedRun
from multicard.archive.unpack import is_own, read_manifest
from multicard.core.files import read_json
from multicard.core.layout import CAPTURED, EPOCHS, RUN, STEPS, TRACE
from multicard.experiment.config import Experiment
from multicard.experiment.datasets import Dataset
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run
from multicard.experiment.workload import parameters_of


@dataclass(frozen=True)
class Recorded:
    """Runs that archives hold."""

    archives: dict[str, Path] = field(default_factory=dict)  # by run id, of the runs that are taken from one
    differing: dict[str, str] = field(default_factory=dict)  # by run id, why the run of that name is not taken

    def by_archive(self) -> dict[str, list[str]]:
        """Ids of the runs that are taken from each archive, by its path."""
        runs: dict[str, list[str]] = {}
        for run, archive in self.archives.items():
            runs.setdefault(str(archive), []).append(run)
        return runs


def find_recorded(experiment: Experiment, runs: Mapping[str, Run]) -> Recorded:
    """Look for the runs in the archives that the configuration lists; of several that hold a run the first counts.

    A run is taken if its parameters, its data set and its model are the same. One that this machine made itself is
    never replaced.

    Raises
    ------
    UserError
        If an archive cannot be read.
    """
    found = Recorded()
    for name in experiment.recorded:
        path = Path(name)
        manifest = read_manifest(path)
        for entry in manifest.runs:
            run = runs.get(entry.run)
            if run is None or run.id in found.archives:
                continue
            difference = _difference(entry, manifest, run, experiment)
            if difference is None and is_own(Path(experiment.results) / "runs" / run.id):
                difference = f"{experiment.results} holds another record of it, which is kept"
            if difference is None:
                found.archives[run.id] = path
                found.differing.pop(run.id, None)
            else:
                found.differing.setdefault(run.id, f"not taken from {path}: {difference}")
    return found


def unsupported_reasons(
    experiment: Experiment, runs: Mapping[str, Run], machine: Machine, recorded: Recorded
) -> dict[str, str | None]:
    """Why each run cannot be had here, None where it can: it is recorded, or can run on `machine`."""
    faults: dict[str, str | None] = {}
    if experiment.recorded:  # then a data set may be elsewhere; without, the configuration is refused
        faults = {name: _fault(dataset) for name, dataset in experiment.datasets.items()}
    reasons: dict[str, str | None] = {}
    for run in runs.values():
        if run.id in recorded.archives:
            reasons[run.id] = None
            continue
        dataset = getattr(run.parameters, "dataset", None)
        reason, fault = run.unsupported_reason(machine), faults.get(dataset)
        if reason is None and fault:
            reason = f"no data set {dataset}: {fault}"
        if reason and run.id in recorded.differing:
            reason = f"{reason}; {recorded.differing[run.id]}"
        reasons[run.id] = reason
    return reasons


def has_record(folder: Path, run: Run) -> bool:
    """Whether a run directory holds all that the run leaves, with these parameters, wherever it was measured."""
    if not all((folder / name).exists() for name in (RUN, STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")):
        return False
    try:
        return parameters_of(read_json(folder / RUN)["parameters"]) == run.parameters
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fault(dataset: Dataset) -> str | None:
    try:
        return dataset.missing_files()
    except OSError as error:
        return f"it cannot be looked for: {error.strerror}"


def _difference(entry: RecordedRun, manifest: Manifest, run: Run, experiment: Experiment) -> str | None:
    try:
        same = parameters_of(entry.parameters) == run.parameters
    except (ValidationError, KeyError, TypeError):
        same = False
    if not same:
        return "it ran with other parameters"
    for key, definition in run.inputs.items():
        name = getattr(run.parameters, key)
        there = manifest.experiment.get(f"{key}s")
        theirs = there.get(name) if isinstance(there, dict) else None
        if theirs != kind_of(definition):
            return f"its {key.replace('dataset', 'data set')} {name} is another one"
    return None
