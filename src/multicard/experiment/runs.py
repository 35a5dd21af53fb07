"""Scenarios expand into runs, which start in shuffled blocks; two scenarios that need the same run share it."""

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from multicard.core.files import read_object
from multicard.core.prepared import PROVENANCE
from multicard.core.system import read_or_none
from multicard.core.text import counted
from multicard.experiment.config import Experiment
from multicard.experiment.machine import Machine
from multicard.experiment.workload import WORKLOADS, Inputs
from multicard.profilers import PROFILERS
from multicard.runs.parameters import JobParameters, flat, nested, run_id


@dataclass(frozen=True)
class Run:
    """One concrete job."""

    id: str
    parameters: JobParameters
    inputs: Inputs = field(default_factory=dict, hash=False)  # what is prepared for it, by the parameter that names it

    @classmethod
    def of(cls, parameters: JobParameters, experiment: Experiment) -> "Run":
        """The run with these parameters, its inputs being those that the experiment defines."""
        sections = {name: getattr(experiment, f"{name}s") for name in WORKLOADS[parameters.workload].inputs}
        names = {name: getattr(parameters, name) for name in sections}
        inputs = {name: sections[name][given] for name, given in names.items() if given in sections[name]}
        return cls(run_id(parameters), parameters, inputs)

    def unsupported_reason(self, machine: Machine) -> str | None:
        """Why the run cannot run on `machine`, or None when it can."""
        p = self.parameters
        if own := WORKLOADS[p.workload].unsupported_reason(p, machine, self.inputs):
            return own
        if p.devices % p.nodes:
            return f"{counted(p.devices, 'device')} cannot be shared equally by {p.nodes} nodes"
        if p.compiled and not machine.compiler:
            return "torch.compile needs a C++ compiler, none found"
        if p.compiled and p.device == "cuda" and machine.triton:
            return f"torch.compile on GPUs needs {machine.triton}"
        hidden = f": {machine.hidden_gpus}" if p.device == "cuda" and machine.hidden_gpus else ""
        if p.device == "cuda" and machine.gpus == 0:
            return f"needs a CUDA GPU, none found{hidden}"
        if p.nodes > machine.nodes:
            if machine.nodes == 1:
                return f"needs a Slurm allocation of {p.nodes} nodes"
            return f"needs {p.nodes} nodes, {machine.nodes} found"
        found = machine.gpus if p.device == "cuda" else machine.cpus
        if p.devices_per_node > found:
            on_each = " on each node" if p.nodes > 1 else ""
            return f"needs {counted(p.devices_per_node, 'device')}{on_each}, {found} found{hidden}"
        if machine.runs_ask_for_cpus and p.cpus_per_node > machine.cpus:
            return f"needs {p.cpus_per_node} CPUs of a node for its ranks and loader workers, {machine.cpus} found"
        if p.profiler in PROFILERS and p.profiler not in machine.profilers:
            return f"needs {PROFILERS[p.profiler].program} on the PATH, not found"
        return None

    def data_error(self, prepared: Path | None = None) -> str | None:
        """Return why the run's data set has too few samples for it, and what would fit; None where it has enough.

        `prepared`: the data set's folder. Where there is none, and the definition does not state their number, no
        reason is known.
        """
        work, dataset = WORKLOADS[self.parameters.workload], self.inputs.get("dataset")
        samples = _prepared_samples(prepared / PROVENANCE) if prepared else None
        if samples is None and dataset is not None:
            samples = work.sample_count(dataset)
        return None if samples is None else work.data_error(self.parameters, samples)

    def config_error(self) -> str | None:
        """What about the run is wrong on every machine: an input is not of its workload's kind, or does not fit."""
        p = self.parameters
        work = WORKLOADS[p.workload]
        if p.memory_snapshot and p.device != "cuda":
            return f"memory_snapshot: records the memory of GPUs, found device: {p.device}, expected cuda"
        if "host" in p.ablated and p.device != "cuda":
            return f"ablate: host needs GPUs, which do without it, found device: {p.device}, expected cuda"
        for name, given in self.inputs.items():
            if not isinstance(given, work.inputs[name]):
                what = name.replace("dataset", "data set")
                return f"the workload {work.name} cannot use the {what} {getattr(p, name)} (source: {given.source})"
        return work.config_error(p, self.inputs)

    def device_memory_bytes(self) -> int | None:
        """Estimate of the most memory that training takes on one device; None where there is no estimate."""
        p = self.parameters
        return WORKLOADS[p.workload].resources(p, self.inputs).device_memory_bytes

    def exceeds_memory(self, machine: Machine) -> bool:
        """Whether the estimate is more than a GPU of `machine` has; not where one of them is unknown."""
        if self.parameters.device != "cuda" or machine.gpu_memory_bytes is None:
            return False
        return (self.device_memory_bytes() or 0) > machine.gpu_memory_bytes


def _prepared_samples(provenance: Path) -> int | None:
    """Number of training samples of a data set that was prepared; None where it was not."""
    try:
        changed_ns = provenance.stat().st_mtime_ns
    except OSError:
        return None
    return _samples_in(provenance, changed_ns)


@cache
def _samples_in(provenance: Path, changed_ns: int) -> int | None:  # the time only tells one version from the next
    samples = (read_or_none(lambda: read_object(provenance)) or {}).get("train_samples")
    return samples if isinstance(samples, int) else None


def expand(experiment: Experiment) -> dict[str, list[Run]]:
    """Runs of each scenario, in the order of its values, repeats innermost.

    Equal parameters give equal runs, so that the same id in two scenarios is one job.
    """
    return {name: expand_scenario(experiment, name) for name in experiment.scenarios}


@dataclass(frozen=True)
class Place:
    """Where a run stands in the order in which runs are to start."""

    seed: int  # the experiment's `order_seed`
    group: tuple[str, ...]  # the scenarios whose runs it runs among: all that share runs, be it by way of others
    block: int  # its repeat: in each block every configuration of the group runs once
    position: int  # its place among all runs of the group, from 1


def planned_order(scenarios: Mapping[str, list[Run]], seed: int) -> dict[str, Place]:
    """Places of all runs by id, in the order in which they are to start.

    Scenarios that share runs form a group, since each of them compares shared runs with its own, and groups follow
    each other. Within one, every configuration runs once (block 1), then again (block 2), each block in an order of its
    own: a randomized complete block design, so that a machine that slows down does so for all configurations alike. The
    order is by a digest of seed and run, and thus uniform over the seeds; a configuration that is added to a group
    leaves the others in the same order.
    """
    places: dict[str, Place] = {}
    for group in _groups(scenarios):
        own = {run.id: run for name in group for run in scenarios[name]}.values()
        shuffled = sorted(own, key=lambda run: (run.parameters.repeat, _digest(seed, run.id)))
        for position, run in enumerate(shuffled, start=1):
            places[run.id] = Place(seed, group, run.parameters.repeat, position)
    return places


def _groups(scenarios: Mapping[str, list[Run]]) -> list[tuple[str, ...]]:
    """Scenarios that share runs, be it by way of others, in the order of the first of each group."""
    runs = {name: {run.id for run in expanded} for name, expanded in scenarios.items()}
    groups: list[set[str]] = []
    for name, own in runs.items():
        linked = [group for group in groups if any(own & runs[other] for other in group)]
        groups = [*(group for group in groups if group not in linked), {name}.union(*linked)]
    numbers = {name: number for number, name in enumerate(runs)}
    return sorted((tuple(sorted(group, key=numbers.get)) for group in groups), key=lambda group: numbers[group[0]])


def _digest(*parts: int | str) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def distinct(scenarios: dict[str, list[Run]]) -> dict[str, Run]:
    """Runs by id, each once however many scenarios share it."""
    return {run.id: run for runs in scenarios.values() for run in runs}


def expand_scenario(experiment: Experiment, name: str) -> list[Run]:
    """Runs of one scenario, each once; a parameter that has no effect on a run is left at its default there.

    Raises `ValidationError` if its parameters do not suit its workload.
    """
    runs = (run for of_each in combinations(experiment, name).values() for run in of_each)
    return list({run.id: run for run in runs}.values())


def combinations(experiment: Experiment, name: str) -> dict[tuple[Any, ...], list[Run]]:
    """Repeats of the run of each combination of a scenario's varied values, in their order; several may be the same.

    Raises `ValidationError` if its parameters do not suit its workload.
    """
    scenario, work = experiment.scenarios[name], WORKLOADS[experiment.workload(name)]
    parameters = work.parameters
    shared = experiment.fixed.model_dump(exclude_unset=True)
    base = {key: value for key, value in shared.items() if key in parameters.model_fields}
    base = flat(base) | flat(scenario.fixed.model_dump(exclude_unset=True))
    varied = scenario.varied
    found: dict[tuple[Any, ...], list[Run]] = {}
    for values in itertools.product(*varied.values()):
        found[values] = []
        for repeat in range(1, scenario.repeats + 1):
            stated = base | dict(zip(varied, values, strict=True)) | {"repeat": repeat}
            effective = {key: value for key, value in stated.items() if work.applies(key, stated)}
            found[values].append(Run.of(parameters.model_validate(nested(effective)), experiment))
    return found
