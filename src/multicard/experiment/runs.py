"""Scenarios expand into runs; two scenarios that need the same run share it."""

import itertools
from dataclasses import dataclass

from multicard.experiment.config import Experiment
from multicard.experiment.datasets import Text
from multicard.experiment.llm_parameters import LlmParameters
from multicard.experiment.machine import Machine
from multicard.experiment.models import Model
from multicard.experiment.parameters import JobParameters, run_id
from multicard.experiment.vision_parameters import VisionParameters
from multicard.experiment.workloads import WORKLOADS
from multicard.profilers import PROFILERS

# NF4 quantizes 64 weights with one scale, and 256 scales with one factor: a rank's share is a multiple of both.
NF4_BLOCK = 64 * 256


@dataclass(frozen=True)
class Run:
    """One concrete job.

    `model`: the definition of the language model that it tunes, of the workload llm.
    """

    id: str
    parameters: JobParameters
    model: Model | None = None

    def obstacle(self, machine: Machine) -> str | None:
        """Why the run cannot run on `machine`, or None when it can."""
        p = self.parameters
        own = _vision_obstacle(p, machine) if isinstance(p, VisionParameters) else self._llm_obstacle(machine)
        if own:
            return own
        if p.devices % p.nodes:
            return f"{_counted(p.devices, 'device')} cannot be shared equally by {p.nodes} nodes"
        if p.compile and not machine.compiler:
            return "torch.compile needs a C++ compiler, none found"
        if p.device == "cuda" and machine.gpus == 0:
            return "needs a CUDA GPU, none found"
        if p.nodes > machine.nodes:
            if machine.nodes == 1:
                return f"needs a Slurm allocation of {p.nodes} nodes"
            return f"needs {p.nodes} nodes, {machine.nodes} found"
        found = machine.gpus if p.device == "cuda" else machine.cpus
        if p.devices_per_node > found:
            on_each = " on each node" if p.nodes > 1 else ""
            return f"needs {p.devices_per_node} devices{on_each}, {found} found"
        if p.profiler in PROFILERS and p.profiler not in machine.profilers:
            return f"needs {PROFILERS[p.profiler].program} on the PATH, not found"
        return None

    def _llm_obstacle(self, machine: Machine) -> str | None:
        p, model = self.parameters, self.model
        if machine.torchtune or model is None:
            return machine.torchtune
        if p.technique == "qlora":
            for layer, (rows, width) in model.shape.linear_shapes.items():
                if rows % p.devices or rows * width % (p.devices * NF4_BLOCK):
                    return f"the technique qlora cannot share {layer} of {p.model} among {p.devices} devices"
        return model.absent() if machine.weights_needed else None

    def misfit(self, experiment: Experiment) -> str | None:
        """What about the run fits no machine: its data set or model is not of its kind, or of the wrong shape."""
        p, dataset = self.parameters, experiment.datasets[self.parameters.dataset]
        if isinstance(p, VisionParameters):
            return f"the workload vision cannot train on the texts {p.dataset}" if isinstance(dataset, Text) else None
        if not isinstance(dataset, Text):
            return f"the workload llm cannot train on the pictures {p.dataset}"
        if p.technique == "dpo" and dataset.kind != "preference":
            return f"the technique dpo needs a data set of preferences, {p.dataset} is one of kind {dataset.kind}"
        if p.packed and p.technique == "dpo":
            return "packed: the technique dpo cannot pack its samples"
        if p.compile and p.technique == "qat":
            return "compile: torchtune's recipes of the technique qat cannot compile"
        shape = experiment.models[p.model].shape
        if p.sequence_length > shape.max_sequence:
            return f"sequence_length: {p.sequence_length} is more than the {shape.max_sequence} of the model {p.model}"
        if p.technique == "qat":
            for layer, (_, width) in shape.linear_shapes.items():
                if width % p.qat_group:
                    return f"qat_group: {p.qat_group} does not divide {width}, the width of {layer} in {p.model}"
        return None


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _vision_obstacle(p: VisionParameters, machine: Machine) -> str | None:
    if p.strategy == "single" and p.devices > 1:
        return f"the strategy single uses one device, not {p.devices}"
    if p.strategy in ("single", "dp") and p.nodes > 1:
        return f"the strategy {p.strategy} is one process, which cannot use {p.nodes} nodes"
    if p.strategy == "dp" and (p.device != "cuda" or p.devices < 2):
        return "the strategy dp needs two or more GPUs"
    if p.strategy == "fsdp" and p.layout == "nhwc":
        return "the strategy fsdp cannot split weights in the layout nhwc"
    if p.strategy == "fsdp" and p.fused_optimizer:
        return "the strategy fsdp has no fused optimizer (SGD)"
    if p.strategy == "dp" and (p.compile or p.cuda_graphs):
        return "the strategy dp copies the model in every step, which torch.compile does not support"
    if p.strategy == "fsdp" and p.cuda_graphs:
        return "the strategy fsdp moves weights in every step, CUDA graphs need them in one place"
    if p.scaling == "strong" and p.batch_size % p.devices:
        return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
    if p.cuda_graphs and p.device == "cpu":
        return "CUDA graphs need a GPU"
    if p.cuda_graphs and not machine.compiler:
        return "torch.compile needs a C++ compiler, none found"
    if p.loader == "dali" and not machine.dali:
        return 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
    return None


def expand(experiment: Experiment) -> dict[str, list[Run]]:
    """Runs of each scenario, in the order of its values, repeats innermost.

    Equal parameters give equal runs, so that the same id in two scenarios is one job.
    """
    return {name: expand_scenario(experiment, name) for name in experiment.scenarios}


def distinct(scenarios: dict[str, list[Run]]) -> dict[str, Run]:
    """Runs by id, each once however many scenarios share it."""
    return {run.id: run for runs in scenarios.values() for run in runs}


def expand_scenario(experiment: Experiment, name: str) -> list[Run]:
    """Runs of one scenario.

    Raises
    ------
    ValidationError
        If its parameters do not suit its workload.
    """
    scenario = experiment.scenarios[name]
    workload = WORKLOADS[experiment.workload(name)]
    shared = experiment.fixed.model_dump(exclude_unset=True)
    base = {key: value for key, value in shared.items() if key in workload.model_fields}
    base |= scenario.fixed.model_dump(exclude_unset=True)
    varied = scenario.varied
    runs = []
    for values in itertools.product(*varied.values()):
        for repeat in range(1, scenario.repeats + 1):
            stated = base | dict(zip(varied, values, strict=True)) | {"repeat": repeat}
            parameters = workload.model_validate(stated)
            model = experiment.models.get(parameters.model) if isinstance(parameters, LlmParameters) else None
            runs.append(Run(run_id(parameters), parameters, model))
    return runs
