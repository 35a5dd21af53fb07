"""Which loaders are measured: those of an experiment's runs, each kind once.

A workload says whether they can be, and what they depend on: `loader_parameters`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from multicard.core.prepared import PROVENANCE
from multicard.experiment.prepared import folder_name
from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS, preparer

Job = dict[str, Any]


def loaders(runs: Iterable[Run], device: str) -> list[Job]:
    """Loaders of the runs on a kind of device: the `parameters` of a run, its `data`, numbers of `workers`.

    `batch_size` is what a process loads at once. `on_cpus`: as `Workload.loads_on_cpus`. Synthetic data have no loader.
    """
    found: dict[tuple[Any, ...], Job] = {}
    for run, data in _loading(runs, device):
        p = run.parameters
        work = WORKLOADS[p.workload]
        parameters = work.loader_job(p)
        job = {"parameters": parameters, "data": str(data), "workers": set(), "on_cpus": work.loads_on_cpus(p)}
        found.setdefault((*parameters.values(), data), job)["workers"].add(p.workers_of_rank)
    return [job | {"workers": sorted(job["workers"])} for job in found.values()]


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


def _loading(runs: Iterable[Run], device: str) -> Iterator[tuple[Run, Path]]:
    """Runs whose loaders can be measured and have data to load, and the folder of these."""
    for run in runs:
        p = run.parameters
        if WORKLOADS[p.workload].loader_parameters and p.device == device:
            definition = run.inputs["dataset"]
            if definition.source != "synthetic":
                yield run, Path("data", folder_name(p.dataset, definition))
