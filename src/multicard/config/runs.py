"""The runs of an experiment. Scenarios expand into runs, and scenarios that need the same run share it."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from multicard.config.experiment import Experiment
from multicard.core.files import read_object
from multicard.core.prepared import PROVENANCE
from multicard.core.system import read_or_none
from multicard.core.text import counted
from multicard.profilers import PROFILERS
from multicard.programs import PROGRAMS
from multicard.programs.machine import Machine
from multicard.programs.program import Inputs, Program
from multicard.runs.parameters import JobParameters, flat, nested, run_id


@dataclass(frozen=True)
class Run:
    """One job to run. `Run.of` makes it when an experiment is planned, and computes its id."""

    id: str
    parameters: JobParameters
    # Definitions of the data set and the model of the run, by the parameter that names each: `dataset`, `model`.
    inputs: Inputs = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, parameters: JobParameters, experiment: Experiment) -> "Run":
        """Return the run with these parameters, and with the data set and model that the experiment defines for them.

        A data set or model that the experiment does not define is left out.
        """
        inputs = {}
        for parameter in PROGRAMS[parameters.workload].inputs:
            definitions = getattr(experiment, f"{parameter}s")
            name = getattr(parameters, parameter)
            if name in definitions:
                inputs[parameter] = definitions[name]
        return cls(run_id(parameters), parameters, inputs)

    @property
    def program(self) -> Program[Any]:
        """The program that the run trains."""
        return PROGRAMS[self.parameters.workload]

    def unsupported_reason(self, machine: Machine) -> str | None:
        """Return why the run cannot run on `machine`; None if it can."""
        p = self.parameters
        if reason := self.program.checks.unsupported_reason(p, machine, self.inputs):
            return reason
        if p.devices % p.nodes:
            return f"{counted(p.devices, 'device')} cannot be shared equally by {p.nodes} nodes"
        if reason := _compiler_missing(p, machine) or _hardware_missing(p, machine):
            return reason
        if p.profiler in PROFILERS and p.profiler not in machine.profilers:
            return f"needs {PROFILERS[p.profiler].program} on the PATH, not found"
        return None

    def data_error(self, prepared: Path | None = None) -> str | None:
        """Return that the run's data set has too few samples, and which parameters would fit; None if it has enough.

        `prepared`: folder of the prepared data set. If the number of samples is stated neither there nor by the
        definition of the data set, nothing is known, and None is returned.
        """
        samples = _prepared_samples(prepared / PROVENANCE) if prepared else None
        dataset = self.inputs.get("dataset")
        if samples is None and dataset is not None:
            samples = self.program.inputs["dataset"].sample_count(dataset)
        return None if samples is None else self.program.checks.data_error(self.parameters, samples)

    def config_error(self) -> str | None:
        """Return why the run cannot run on any machine; None if it could run on some machine.

        Reasons are parameters that need GPUs in a run on CPUs, a data set or model of another program, and those of
        the run's program.
        """
        p = self.parameters
        if p.memory_snapshot and p.device != "cuda":
            return f"memory_snapshot: records the memory of GPUs, found device: {p.device}, expected cuda"
        for parameter, definition in self.inputs.items():
            if not isinstance(definition, self.program.inputs[parameter].definition):
                what = parameter.replace("dataset", "data set")
                name = getattr(p, parameter)
                return f"the workload {self.program.name} cannot use the {what} {name} (source: {definition.source})"
        return self.program.checks.config_error(p, self.inputs)

    def crowded_cpus(self, machine: Machine) -> str | None:
        """Return that the ranks and loader workers of the run share the CPUs of `machine`, and how many workers fit.

        None if each has a CPU of its own, if the run has no workers, and if the run cannot run for lack of devices. A
        cluster refuses such runs, see `unsupported_reason`; elsewhere they run, but measure how they share CPUs.
        """
        p = self.parameters
        if not p.loader_workers or p.cpus_per_node <= machine.cpus or _hardware_missing(p, machine):
            return None
        for_workers = max(0, machine.cpus - p.ranks_per_node * p.threads)
        fitting = for_workers // p.ranks_per_node
        ranks = counted(p.ranks_per_node, "rank")
        return (
            f"{ranks} with loader workers ask for {p.cpus_per_node} CPUs, {machine.cpus} found, so they may wait for "
            f"each other; {counted(fitting, 'worker')} per rank would fit"
        )

    def device_memory_bytes(self) -> int | None:
        """Return an estimate of the most bytes of memory that training takes on one device; None if there is none."""
        return self.program.resources(self.parameters, self.inputs).device_memory_bytes

    def exceeds_memory(self, machine: Machine) -> bool:
        """Return True if `device_memory_bytes` is more than the memory of the smallest GPU of `machine`.

        False for runs on CPUs, and if the estimate or the memory of the GPUs is unknown.
        """
        if self.parameters.device != "cuda" or machine.gpu_memory_bytes is None:
            return False
        return (self.device_memory_bytes() or 0) > machine.gpu_memory_bytes


def _compiler_missing(p: JobParameters, machine: Machine) -> str | None:
    """Return what torch.compile lacks on `machine`; None if it lacks nothing, or if the run does not use it."""
    if p.compiled and not machine.compiler:
        return "torch.compile needs a C++ compiler, none found"
    if p.compiled and p.device == "cuda" and machine.triton:
        return f"torch.compile on GPUs needs {machine.triton}"
    return None


def _hardware_missing(p: JobParameters, machine: Machine) -> str | None:
    """Return which GPUs, CPUs or nodes a run lacks on `machine`; None if it lacks none."""
    hidden = f": {machine.hidden_gpus}" if p.device == "cuda" and machine.hidden_gpus else ""
    if p.device == "cuda" and machine.gpus == 0:
        return f"needs a CUDA GPU, none found{hidden}"
    if p.nodes > machine.nodes:
        if machine.nodes == 1:
            return f"needs a Slurm allocation of {p.nodes} nodes"
        return f"needs {p.nodes} nodes, {machine.nodes} found"
    devices_found = machine.gpus if p.device == "cuda" else machine.cpus
    if p.devices_per_node > devices_found:
        on_each = " on each node" if p.nodes > 1 else ""
        return f"needs {counted(p.devices_per_node, 'device')}{on_each}, {devices_found} found{hidden}"
    if machine.runs_ask_for_cpus and p.cpus_per_node > machine.cpus:
        return f"needs {p.cpus_per_node} CPUs of a node for its ranks and loader workers, {machine.cpus} found"
    return None


def _prepared_samples(provenance: Path) -> int | None:
    """Return the number of training samples that a provenance file states; None if it cannot be read or states none."""
    try:
        changed_ns = provenance.stat().st_mtime_ns
    except OSError:
        return None
    return _samples_in(provenance, changed_ns)


@cache
def _samples_in(provenance: Path, changed_ns: int) -> int | None:
    """Return the number of training samples that a provenance file states; None if it states none.

    Thousands of runs share a data set, so the result is cached. `changed_ns`, the time of the file's last change, is
    part of the key of the cache, because a data set may be prepared again while this process runs.
    """
    facts = read_or_none(lambda: read_object(provenance))
    samples = (facts or {}).get("train_samples")
    return samples if isinstance(samples, int) else None


def expand(experiment: Experiment) -> dict[str, list[Run]]:
    """Return the runs of each scenario, by its name; see `expand_scenario`.

    Equal parameters make equal ids. A run with the same id in two scenarios is one job.
    """
    return {name: expand_scenario(experiment, name) for name in experiment.scenarios}


def distinct(scenarios: Mapping[str, list[Run]]) -> dict[str, Run]:
    """Return the runs of all scenarios by id; a run that several scenarios share is there once."""
    return {run.id: run for runs in scenarios.values() for run in runs}


def expand_scenario(experiment: Experiment, name: str) -> list[Run]:
    """Return the runs of one scenario, each once, in the order of its combinations, and repeats within a combination.

    In a run on which a parameter has no effect, the parameter has its default.

    Raises `ValidationError` if its parameters do not suit its program.
    """
    repeats_of_combinations = combinations(experiment, name).values()
    runs = itertools.chain.from_iterable(repeats_of_combinations)
    return list({run.id: run for run in runs}.values())


def combinations(experiment: Experiment, name: str) -> dict[tuple[Any, ...], list[Run]]:
    """Return the repeats of each combination of a scenario's varied values, in the order of the values.

    If repeats are added until comparisons are decided, these are the fewest repeats that the scenario states, with
    those that `with_added_repeats` has added.

    The key of a combination has a value for each of `Scenario.varied`, in its order. Two combinations may have the same
    runs, because a varied parameter may have no effect in combination with the other values.

    Raises `ValidationError` if its parameters do not suit its program.
    """
    scenario = experiment.scenarios[name]
    model = PROGRAMS[experiment.workload(name)].parameters
    # The defaults for all scenarios may include parameters that this program does not have.
    defaults = {key: value for key, value in experiment.fixed.stated().items() if key in model.model_fields}
    fixed = flat(defaults) | flat(scenario.fixed.stated())
    repeats = range(1, scenario.repeats.least + 1)
    runs: dict[tuple[Any, ...], list[Run]] = {}
    for combination in itertools.product(*scenario.varied.values()):
        varied = dict(zip(scenario.varied, combination, strict=True))
        stated = fixed | varied
        effective = {key: value for key, value in stated.items() if model.applies(key, stated)}
        runs[combination] = [_repeat(experiment, model, effective, number) for number in repeats]
    return runs


def _repeat(experiment: Experiment, model: type[JobParameters], values: Mapping[str, Any], number: int) -> Run:
    """Return one repeat of a combination. `values`: of the parameters, by their flat names; the others have defaults.

    Raises `ValidationError` if the values do not suit the program.
    """
    parameters = model.model_validate(nested({**values, "repeat": number}))
    return Run.of(parameters, experiment)
