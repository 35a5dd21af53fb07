"""The interface of a workload, a kind of job; the entries are packages in `multicard.workloads`."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from multicard.core.entries import by_name
from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.units import ARGS_PREFIX
from multicard.experiment.machine import Machine
from multicard.runs.parameters import DEFAULT_WORKLOAD, JobParameters

if TYPE_CHECKING:  # of which planning a run has no need
    import pandas as pd

BATCH = "global batch size"  # in `Workload.learning`

# Definitions of what is prepared for a run, by the parameter that names them: datasets and models of a configuration.
Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Unit:
    """What a workload counts its work in."""

    name: str  # in words, for one
    column: str  # where steps.csv counts it
    throughput: str  # the measure of speed that counts it: distinct work
    energy: str  # the measure of energy that counts it: processed work


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of matrix products and convolutions on one device in a step, mean over steps."""

    model: float  # of the forward and backward passes, as the model needs them
    hardware: float  # the same with what activation checkpointing computes again
    precisions: tuple[str, ...]  # in which of these a device computes them: the first that it has


@dataclass(frozen=True)
class Resources:
    """Estimates of what a run needs, before anything runs."""

    # Megabytes of the host's memory that a rank takes beside its process: its data, and on a CPU the training.
    rank_memory_mb: float = 0.0
    device_memory_bytes: int | None = None  # the most that training takes on one device; None without an estimate
    # Seconds that a run takes on GPUs for each kind of work, without starting processes and what happens to the trace;
    # None where its amount is not known.
    durations_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Launching:
    """How the ranks of a job are started; by default as those of a program of multicard's own."""

    interpreter: str | None = None  # path of that of the ranks; None where it is this one
    folder: Path | None = None  # working directory in which a user's own files lie
    script: Path | None = None  # the user's own file that runs; None where it is not known, too
    passed_variables: tuple[str, ...] = ()  # which they get if set, though they are those of another launcher's ranks
    withheld_variables: str | None = None  # pattern of names that would change how the ranks are started
    tasks_per_node: int = 1  # of Slurm, on several nodes: one that starts all ranks there, or one for each
    # Why a profiler that runs the job as its child would not see the ranks, whose CPU time is not known then either.
    hidden_from_profilers: str | None = None


class Method(Protocol):
    """What a workload's entries of strategies, techniques or the like have in common."""

    description: str  # what it does: "one process, no communication."

    def facts(self) -> Sequence[str]:
        """Further sentences about it for the documentation."""


class Workload(ABC):
    """A kind of job: its parameters, what it needs, the program that trains, and what is measured of it.

    An entry must not import torch, pandas or matplotlib when it is imported, since planning needs none of them.
    """

    name: str
    parameters: type[JobParameters]
    program: str = ""  # module that trains one rank: `python -m PROGRAM --job FILE`
    # Class of the definitions that its runs need prepared, by the parameter that names them: `dataset` names one in the
    # section `datasets` of a configuration, `model` one in `models`.
    inputs: Mapping[str, type]
    method: str  # the parameter that tells its jobs apart first: how devices work together, or what is trained
    methods: Mapping[str, Method]  # the entries of that parameter's values
    unit: Unit
    step_columns: tuple[str, ...] = ()  # of steps.csv, which its measures need beside those of every workload
    # Its program is the user's: its parameters hold text that an archive must not give away as it is, its options are
    # unknown here, its samples and how it scales are as observed, and no claim of the papers is about it.
    is_user_program = False
    # Why no run of a scenario says how long it waited for data.
    data_wait_unknown = "no loader of PyTorch's was seen: wrap yours by multicard.marks.wrap_loader"
    has_epochs = False  # it tests after every epoch, so that epochs.csv has rows
    # How a user states the samples of a step where nothing counted them.
    states_samples_by = "--samples-per-step or --samples-per-device"
    launches = True  # else its runs are made of traces that were there before, which may show no steps
    implied: Mapping[str, tuple[str, ...]] = {}  # parameters whose defaults follow from another one, by that one's name

    def config_error(self, p: Any, inputs: Inputs) -> str | None:
        """What is wrong with a run on any machine, by its parameters and its inputs; inputs may be unknown."""
        return None

    def applies(self, parameter: str, values: Mapping[str, Any]) -> bool:
        """Whether a parameter has an effect where others have these values.

        Where it has none, the runs of a scenario leave it at its default, so that its values make no further runs.
        """
        return parameter != "ablate" or "communication" not in str(values["ablate"]) or values.get("devices", 1) > 1

    def unsupported_reason(self, p: Any, machine: Machine, inputs: Inputs) -> str | None:
        """Why a run cannot run on a machine, for the workload's own reasons; inputs may be unknown."""
        return None

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of training samples of a data set that is not prepared; None where it is not known yet."""
        return None

    def data_error(self, p: Any, samples: int) -> str | None:
        """Return why so many training samples do not suffice for a run, and what would; None where they do."""
        return None

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Make one of its inputs ready in `folder`, whose provenance.json comes last; `resources`: what is shipped.

        Raises `UserError` if the user's files are not what they should be.
        """
        raise NotImplementedError(f"the workload {self.name} has no inputs")

    def refusal(self, p: Any) -> Reason | None:
        """Why a job that is about to start here cannot run, as only this machine can tell."""
        return None

    def command(self, p: Any, job: Path, rendezvous: Rendezvous | None) -> list[str] | None:
        """Command that starts the ranks of this node; None where they run `program`, under torchrun if distributed.

        `job`: job.json in the scratch folder of the node; `rendezvous`: of a job on several nodes, which this is.
        """
        return None

    def launching(self, p: Any) -> Launching:
        """How its ranks are started."""
        return Launching()

    def environment(self, p: Any, scratch: Path, rendezvous: Rendezvous | None = None) -> Mapping[str, str]:
        """Further variables of the ranks of this node; what they name is made in its folder `scratch`.

        `rendezvous`: of a job on several nodes, which of them this is.

        A program of ours imports nothing from the user's folder, where a random.py may lie.
        """
        return {"PYTHONSAFEPATH": "1"}

    def observed(self, p: Any) -> dict[str, Any]:
        """What job.json tells the observer (`multicard.record.observe`) of a job."""
        return {
            "device": p.device,
            "devices": p.devices,
            "devices_per_node": p.devices_per_node,
            "ranks": p.ranks,
            "ranks_per_node": p.ranks_per_node,
            "warmup_steps": p.warmup_steps,
            "profiled_steps": p.profiled_steps,
            "ablate": p.ablated,
            "count_operations": True,
            "memory_snapshot": p.memory_snapshot,
            "program": [self.program],
            "is_user_program": self.is_user_program,
        }

    def input_facts(self, data: Path, model: Path | None) -> dict[str, Any]:
        """What run.json says of a job's inputs, by their prepared folders."""
        return {}

    def judge(
        self, p: Any, outcome: str, reason: Reason | None, ranks: Sequence[Mapping[str, Any]], scratch: Path
    ) -> tuple[str, Reason | None]:
        """Outcome of a job, and the reason unless it completed, by what this workload alone knows.

        `outcome`, `reason`: by what holds for every workload; `ranks`: records of those that are expected; `scratch`:
        where the ranks of all nodes left what they wrote.
        """
        return outcome, reason

    def resources(self, p: Any, inputs: Inputs) -> Resources:
        """Estimate what a run needs."""
        return Resources()

    def loads_in_step(self, p: Any) -> bool:
        """Whether the process that computes also loads, so that the wait for data is work of its own."""
        return False

    @property
    def measures(self) -> Mapping[str, str]:
        """Definitions of the measures that other workloads do not have: MEASURES of the module `measures` beside it."""
        return self._own_measures().MEASURES

    def _own_measures(self) -> Any:
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.measures")

    def measure(
        self, record: Mapping[str, Any], common: Mapping[str, Any], steps: "pd.DataFrame", epochs: "pd.DataFrame | None"
    ) -> dict[str, Any]:
        """Give the workload's own measures of a completed run, by `measure` of its module.

        `record`: what run.json holds; `common`: measures that every workload has, throughput in its `unit` included;
        `steps`, `epochs`: the tables of the run, the second where it `has_epochs` and the run made some.
        """
        return self._own_measures().measure(record, common, steps, epochs)

    @property
    def default_label(self) -> str:
        """The parameter that names a series in which nothing varies."""
        return self.method

    def counted(self, record: Mapping[str, Any], steps: "pd.DataFrame") -> "pd.DataFrame":
        """Rows of steps.csv with the samples that its measures count."""
        return steps

    def distinct_share(self, record: Mapping[str, Any]) -> float:
        """Part of the samples that a run's ranks process which are distinct; less than 1 where ranks repeat samples."""
        return 1.0

    def operations(self, record: Mapping[str, Any], steps: "pd.DataFrame") -> Operations | None:
        """Operations of a completed run's step, as its ranks counted them in one of the warm-up; None unless all did.

        `steps`: the measured ones, in which they grow with the tokens, padding included, where these are known.
        """
        counted = [rank.get("operations") or {} for rank in record.get("ranks") or []]
        if not counted or any(each.get("model") is None for each in counted):
            return None
        tokens = [each.get("padded_tokens") for each in counted]
        more = steps["padded_tokens"].mean() * len(tokens) / sum(tokens) if all(tokens) else 1.0
        model, hardware = (more * sum(each[name] for each in counted) / len(counted) for name in ("model", "hardware"))
        precision = counted[0]["precision"]
        return Operations(model, hardware, (precision, "fp32") if precision == "tf32" else (precision,))

    @abstractmethod
    def job(self, values: Mapping[str, Any]) -> str:
        """Describe what configurations have in common that do the same job, by their parameters' values."""

    def stated_in(self, values: Mapping[str, Any]) -> Any:
        """Parameters of its class that are among the columns of a table."""
        fields = self.parameters.model_fields
        known = {name: value for name, value in values.items() if name in fields and value is not None}
        return self.parameters.model_validate(known)

    @abstractmethod
    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What decides how much is learned from a sample, in words: global batch size, precision, learning rate.

        `values`: parameters and measures of a run.
        """

    def baseline_words(self, method: str) -> str:
        """Name the run on one device that others are compared with, by its value of `method`."""
        return f"{method}, 1 device"

    def baselines(self, method: str) -> Sequence[str]:
        """Values of `method` that the run on one device may have to which others are compared, the best first."""
        return (method,)

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Whether changing parameters may make a configuration with these values faster or smaller."""
        return True

    def varying(self, table: "pd.DataFrame", names: Iterable[str]) -> list[str]:
        """Those columns of a table of configurations that have several values, less what another one implies."""
        found = [name for name in names if table[name].nunique(dropna=False) > 1]
        for name, follow in self.implied.items():
            if name in table and table[name].nunique() > 1:
                groups = table.groupby(name)
                found = [each for each in found if each not in follow or groups[each].nunique(dropna=False).max() > 1]
        return found


def batch_and_own(work: Workload, values: Mapping[str, Any]) -> dict[str, Any]:
    """`learning` where a program's parameters may mean anything: all of them, and the samples of a step as measured.

    That is a float: a last batch that is not full makes the mean of the measured ones less.
    """
    rate, step_s = values.get(work.unit.throughput), values.get("iteration_time_s")
    own = {name.removeprefix(ARGS_PREFIX): values[name] for name in sorted(values) if name.startswith(ARGS_PREFIX)}
    return {BATCH: float(rate * step_s) if rate and step_s else None} | own


class _Workloads(Mapping[str, Workload]):
    """The workloads by name, imported when one is looked up.

    The packages of the workloads import this module, so it cannot import them while it is being loaded.
    """

    # In the order of documentation and schema.
    _packages = ("vision", "llm", "script", "adopted")

    @cached_property
    def _by_name(self) -> dict[str, Workload]:
        modules = [importlib.import_module(f"multicard.workloads.{package}") for package in self._packages]
        return by_name(*(module.WORKLOAD for module in modules))

    def __getitem__(self, name: str) -> Workload:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


WORKLOADS: Mapping[str, Workload] = _Workloads()


def parameters_of(values: Mapping[str, Any]) -> JobParameters:
    """Parameters of the workload that `values` names, or of the default one."""
    return WORKLOADS[values.get("workload", DEFAULT_WORKLOAD)].parameters.model_validate(values)


def preparer(definition: Any) -> Workload:
    """The workload that prepares a data set or model."""
    return next(work for work in WORKLOADS.values() if isinstance(definition, tuple(work.inputs.values())))


def workload_of(columns: Iterable[str]) -> Workload:
    """The workload of a table whose columns are parameters, all of one workload."""
    there = set(columns)
    return next(work for work in WORKLOADS.values() if work.method in there)
