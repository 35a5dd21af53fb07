"""Scenarios expand into runs; two scenarios that need the same run share it."""

import itertools
from dataclasses import dataclass

from multicard.experiment.config import Experiment
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import VisionParameters, run_id


@dataclass(frozen=True)
class Run:
    """One concrete job."""

    id: str
    parameters: VisionParameters

    def obstacle(self, machine: Machine) -> str | None:
        """Why the run cannot run on `machine`, or None when it can."""
        p = self.parameters
        if p.strategy == "single" and p.devices > 1:
            return f"the strategy single uses one device, not {p.devices}"
        if p.strategy == "dp" and (p.device != "cuda" or p.devices < 2):
            return "the strategy dp needs two or more GPUs"
        if p.scaling == "strong" and p.batch_size % p.devices:
            return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
        if p.cuda_graphs and p.device == "cpu":
            return "CUDA graphs need a GPU"
        if (p.compile or p.cuda_graphs) and not machine.compiler:
            return "torch.compile needs a C++ compiler, none found"
        if p.loader == "dali" and not machine.dali:
            return 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
        if p.device == "cuda" and machine.gpus == 0:
            return "needs a CUDA GPU, none found"
        found = machine.gpus if p.device == "cuda" else machine.cpus
        if p.devices > found:
            return f"needs {p.devices} devices, {found} found"
        if p.profiler == "nsys" and not machine.nsys:
            return "needs nsys on the PATH, not found"
        return None


def expand(experiment: Experiment) -> dict[str, list[Run]]:
    """Runs of each scenario, in the order of its values, repeats innermost.

    Equal parameters give equal runs, so that the same id in two scenarios is one job.
    """
    return {name: _runs(experiment, name) for name in experiment.scenarios}


def distinct(scenarios: dict[str, list[Run]]) -> dict[str, Run]:
    """Runs by id, each once however many scenarios share it."""
    return {run.id: run for runs in scenarios.values() for run in runs}


def _runs(experiment: Experiment, name: str) -> list[Run]:
    scenario = experiment.scenarios[name]
    base = experiment.fixed.model_dump(exclude_unset=True) | scenario.fixed.model_dump(exclude_unset=True)
    varied = scenario.varied
    runs = []
    for values in itertools.product(*varied.values()):
        for repeat in range(1, scenario.repeats + 1):
            stated = base | dict(zip(varied, values, strict=True)) | {"repeat": repeat}
            parameters = VisionParameters.model_validate(stated)
            runs.append(Run(run_id(parameters), parameters))
    return runs
