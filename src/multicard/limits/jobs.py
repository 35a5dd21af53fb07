"""Which loaders, and which steps without one, are measured: those of an experiment's vision runs, each kind once."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from multicard.core.prepared import PROVENANCE
from multicard.experiment.prepared import folder_name
from multicard.experiment.runs import Run
from multicard.experiment.workload import preparer

# What a loader's rate depends on beside the number of its workers, and what the time of a step without one does.
OF_LOADER = (
    "device", "dataset", "image_size", "loader", "prefetch_factor", "persistent_workers", "pin_memory", "threads",
)  # fmt: skip
OF_STEP = (
    "device", "image_size", "model", "width_mult", "precision", "layout", "tf32", "compile", "cuda_graphs",
    "fused_optimizer", "threads",
)  # fmt: skip

Job = dict[str, Any]


def loaders(runs: Iterable[Run], device: str) -> list[Job]:
    """Loaders of the vision runs on a kind of device: the `parameters` of a run, its `data`, numbers of `workers`.

    `batch_size` is what a process loads at once. Synthetic data have no loader.
    """
    found: dict[tuple[Any, ...], Job] = {}
    for run, data in _loading(runs, device):
        p = run.parameters
        parameters = {name: getattr(p, name) for name in OF_LOADER} | {"batch_size": p.batch_of_rank}
        job = {"parameters": parameters, "data": str(data), "workers": set()}
        found.setdefault((*parameters.values(), data), job)["workers"].add(p.workers_of_rank)
    return [job | {"workers": sorted(job["workers"])} for job in found.values()]


def steps(runs: Iterable[Run], device: str) -> list[Job]:
    """Parameters of the vision runs on a kind of device that a step without a loader depends on.

    `batch_size` is that of one device.
    """
    found = {}
    for run in _vision(runs, device):
        p = run.parameters
        parameters = {name: getattr(p, name) for name in OF_STEP} | {"batch_size": p.batch_of_device}
        found[tuple(parameters.values())] = parameters
    return list(found.values())


def prepare_data(runs: Iterable[Run], device: str, resources: Path) -> None:
    """Prepare the data sets of the loaders, unless that was done.

    Raises
    ------
    UserError
        If the user's files are not what they should be.
    """
    for run, folder in _loading(runs, device):
        if not (folder / PROVENANCE).is_file():
            definition = run.inputs["dataset"]
            preparer(definition).prepare(run.parameters.dataset, definition, folder, resources)


def _vision(runs: Iterable[Run], device: str) -> Iterator[Run]:
    return (run for run in runs if run.parameters.workload == "vision" and run.parameters.device == device)


def _loading(runs: Iterable[Run], device: str) -> Iterator[tuple[Run, Path]]:
    """Vision runs that load data, and the folder of these."""
    for run in _vision(runs, device):
        definition = run.inputs["dataset"]
        if definition.source != "synthetic":
            yield run, Path("data", folder_name(run.parameters.dataset, definition))
