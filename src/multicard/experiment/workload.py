"""The interface of a workload, a kind of job; the workloads are the packages in `multicard.workloads`."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

from multicard.core.entries import by_name
from multicard.core.layout import Outcome
from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.units import ARGS_PREFIX
from multicard.experiment.machine import Machine
from multicard.runs.parameters import DEFAULT_WORKLOAD, JobParameters
from multicard.runs.rank_report import RankReport
from multicard.runs.record import DataRecord, ModelRecord, RunRecord
from multicard.runs.verdict import Verdict

if TYPE_CHECKING:
    # Planning a run does without pandas, which takes long to import.
    import pandas as pd

BATCH = "global batch size"  # key of `Workload.learning`

# Definitions of the data set and model of a run, by the parameter that names each: `dataset`, `model`.
Inputs = Mapping[str, Any]


class InputRecords(TypedDict, total=False):
    """What run.json says of a job's inputs."""

    data: DataRecord
    model: ModelRecord


@dataclass(frozen=True)
class Unit:
    """The unit in which a workload counts its work."""

    name: str  # the word for one, such as "image"
    column: str  # column of steps.csv with the units that a rank processed in a step
    throughput: str  # measure of speed, in distinct units: those that several ranks process count once
    energy: str  # measure of energy, per processed unit


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of matrix products and convolutions on one device in a step, mean over steps."""

    model: float  # needed by the model's forward and backward passes
    hardware: float  # with those that activation checkpointing computes again
    # Precisions in which a device may compute them: it computes in the first that it supports.
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Resources:
    """Estimates of the resources that a run needs, before anything runs."""

    # Megabytes of the host's memory that a rank takes beside its process: its data, and on a CPU the training.
    rank_memory_mb: float = 0.0
    device_memory_bytes: int | None = None  # the most that training takes on one device; None without an estimate
    # Seconds that a run takes on GPUs by part, such as "training", without starting processes and handling the trace;
    # None where the amount of work is not known.
    durations_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Launching:
    """The way in which the ranks of a job are started; the defaults are those of multicard's own programs."""

    interpreter: str | None = None  # path of the ranks' Python interpreter; None for this one
    folder: Path | None = None  # working directory in which a user's own files lie
    script: Path | None = None  # the user's own file that runs; None where there is none or it is not known
    # Names of variables that the ranks get if set, although they belong to the ranks of another launcher.
    passed_variables: tuple[str, ...] = ()
    # Pattern of the names of variables that would change how the ranks are started.
    withheld_variables: str | None = None
    # Slurm's tasks on each of several nodes: one that starts all ranks there, or one for each rank.
    tasks_per_node: int = 1
    # Why a profiler that runs the job as its child would not see the ranks, whose CPU time is not known then either;
    # None where it sees them.
    hidden_from_profilers: str | None = None


class Method(Protocol):
    """A strategy, a technique, a launcher: one value of the parameter that distinguishes a workload's jobs first."""

    description: str  # such as "one process, no communication."

    def facts(self) -> Sequence[str]:
        """Return further sentences for the documentation."""


class Workload(ABC):
    """A kind of job: its parameters, what it needs, the program that trains, and its own measures.

    Everything above this package asks a workload and compares no names. Methods get `p`, the parameters of a run, of
    the class `parameters`, and `inputs`, the definitions of its data set and model, some of which may be unknown.

    Importing a workload must not import torch, pandas or matplotlib, since planning needs none of them.
    """

    name: str
    parameters: type[JobParameters]
    program: str = ""  # module that trains one rank: `python -m PROGRAM --job FILE`
    # Classes of the definitions that its runs need prepared, by the parameter that names one: `dataset` names one in
    # the section `datasets` of a configuration, `model` one in `models`.
    inputs: ClassVar[Mapping[str, type]]
    # The parameter that distinguishes its jobs first, and the meaning of its values.
    method: str
    methods: ClassVar[Mapping[str, Method]]
    unit: Unit
    # Columns of steps.csv that its measures need beside those that every workload has.
    step_columns: tuple[str, ...] = ()
    # True where the program is the user's: its parameters hold text that an archive must not give away as it is, its
    # options are unknown here, its samples and how it scales are as observed, and no claim of the papers is about it.
    is_user_program = False
    # Why no run of a scenario says how long it waited for data.
    data_wait_unknown = "no loader of PyTorch's was seen: wrap yours by multicard.marks.wrap_loader"
    # True where the program tests after every epoch, so that epochs.csv has rows.
    has_epochs = False
    # Options by which a user states the samples of a step where nothing counted them.
    states_samples_by = "--samples-per-step or --samples-per-device"
    # False where runs are made of traces that were recorded elsewhere, which may show no steps.
    launches = True
    # Parameters whose defaults follow from another parameter, by the other's name.
    implied: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def config_error(self, p: Any, inputs: Inputs) -> str | None:
        """Return why a run cannot run on any machine, by its parameters and its inputs; None where it could."""
        return None

    def applies(self, parameter: str, values: Mapping[str, Any]) -> bool:
        """Return whether a parameter has an effect in a run whose stated parameters are `values`.

        Where it has none, the runs of a scenario leave it at its default, so that its values make no further runs.
        """
        # One device exchanges nothing that a run could go without.
        goes_without_communication = parameter == "ablate" and "communication" in str(values["ablate"])
        return not goes_without_communication or values.get("devices", 1) > 1

    def unsupported_reason(self, p: Any, machine: Machine, inputs: Inputs) -> str | None:
        """Return why a run cannot run on `machine`, for the workload's own reasons; None where it can."""
        return None

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of training samples that a data set's definition implies; None where it implies none."""
        return None

    def data_error(self, p: Any, samples: int) -> str | None:
        """Return why `samples` training samples do not suffice for a run, and what would fit; None where they do."""
        return None

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare the data set or model `name` in `folder`; its provenance.json is written last.

        `resources`: folder of the shipped inputs. Raises `UserError` if the user's files are not what they should be.
        """
        raise NotImplementedError(f"the workload {self.name} has no inputs")

    def refusal(self, p: Any) -> Reason | None:
        """Return why a job that is about to start on this machine cannot run; None where it can."""
        return None

    def command(self, p: Any, job: Path, rendezvous: Rendezvous | None) -> list[str] | None:
        """Return the command that starts the ranks of this node; None to run `program`, under torchrun if distributed.

        `job`: job.json in the scratch folder of the node; `rendezvous`: which node this is; None for a job on one node.
        """
        return None

    def launching(self, p: Any) -> Launching:
        """Return how the ranks of a job are started."""
        return Launching()

    def environment(self, p: Any, scratch: Path, rendezvous: Rendezvous | None = None) -> Mapping[str, str]:
        """Return further variables of the ranks of this node; files that these name are made in the folder `scratch`.

        `rendezvous`: which node this is; None for a job on one node.
        """
        # A program of ours imports nothing from the user's folder, where a random.py may lie.
        return {"PYTHONSAFEPATH": "1"}

    def observed(self, p: Any) -> dict[str, Any]:
        """Return the entries of job.json that the observer of a job reads (`multicard.record.observe`)."""
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

    def input_facts(self, data: Path, model: Path | None) -> InputRecords:
        """Return the records of a job's inputs, read from their prepared folders."""
        return {}

    def judge(
        self, p: Any, outcome: Outcome, reason: Reason | None, reports: Sequence[RankReport], scratch: Path
    ) -> Verdict:
        """Return the verdict on a job by the workload's own criteria.

        `outcome`, `reason`: by the criteria of every workload; `reports`: of the expected ranks that left one;
        `scratch`: folder with the files that the ranks of all nodes wrote.
        """
        return Verdict(outcome, reason)

    def resources(self, p: Any, inputs: Inputs) -> Resources:
        """Estimate the resources that a run needs."""
        return Resources()

    def loads_in_step(self, p: Any) -> bool:
        """Return whether the process that computes also loads, so that its wait for data is its own work."""
        return False

    @property
    def measures(self) -> Mapping[str, str]:
        """Definitions of the measures that only this workload has: MEASURES of the module `measures` beside it."""
        return self._measures_module().MEASURES

    def _measures_module(self) -> Any:
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.measures")

    def measure(
        self, record: RunRecord, common: Mapping[str, Any], steps: "pd.DataFrame", epochs: "pd.DataFrame | None"
    ) -> dict[str, Any]:
        """Return the workload's own measures of a completed run, by `measure` of the module `measures` beside it.

        `record`: of the run; `common`: measures that every workload has, throughput in its `unit` included;
        `steps`, `epochs`: tables of the run; `epochs` is None unless the workload `has_epochs` and the run ended one.
        """
        return self._measures_module().measure(record, common, steps, epochs)

    @property
    def default_label(self) -> str:
        """Name of the parameter by which a series is named in which nothing varies."""
        return self.method

    def counted(self, record: RunRecord, steps: "pd.DataFrame") -> "pd.DataFrame":
        """Return the rows of steps.csv with the samples that the workload's measures count."""
        return steps

    def distinct_share(self, record: RunRecord) -> float:
        """Return the share of distinct samples among all that a run's ranks process: 1 unless ranks repeat samples."""
        return 1.0

    def operations(self, record: RunRecord, steps: "pd.DataFrame") -> Operations | None:
        """Return the operations of a completed run's step, as its ranks counted them; None unless all counted.

        `steps`: rows of the measured steps, for whose tokens, padding included, the operations are scaled where tokens
        are counted.
        """
        counts = [rank.operations for rank in record.ranks if rank.operations is not None]
        model = [count.model for count in counts if count.model is not None]
        hardware = [count.hardware for count in counts if count.hardware is not None]
        if not counts or not len(model) == len(hardware) == len(record.ranks):
            return None
        # Operations were counted in a step of the warm-up, whose sequences may have been of other lengths.
        growth = 1.0
        tokens_when_counted = [count.padded_tokens for count in counts if count.padded_tokens]
        if len(tokens_when_counted) == len(counts):
            growth = steps["padded_tokens"].mean() * len(counts) / sum(tokens_when_counted)
        precision = counts[0].precision or ""
        precisions = (precision, "fp32") if precision == "tf32" else (precision,)
        return Operations(growth * sum(model) / len(model), growth * sum(hardware) / len(hardware), precisions)

    @abstractmethod
    def job(self, values: Mapping[str, Any]) -> str:
        """Return a description of the job that parameters do: configurations that do the same job have the same."""

    def stated_in(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters that a row of a table states, as the workload's class of parameters."""
        fields = self.parameters.model_fields
        stated = {name: value for name, value in values.items() if name in fields and value is not None}
        return self.parameters.model_validate(stated)

    @abstractmethod
    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what decides how much is learned from a sample, by its name in words, such as the global batch size.

        `values`: parameters and measures of a run.
        """

    def baseline_words(self, method: str) -> str:
        """Return the name of the run on one device that others are compared with, by its value of `method`."""
        return f"{method}, 1 device"

    def baselines(self, method: str) -> Sequence[str]:
        """Return the values of `method` of runs on one device that runs of `method` are compared with, best first."""
        return (method,)

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return whether `changes` of parameters may make a configuration with these values faster or smaller."""
        return True

    def varying(self, table: "pd.DataFrame", names: Iterable[str]) -> list[str]:
        """Return the columns of a table of configurations that have several values, unless another implies these.

        `implied` says which columns may imply others: they do if the others vary only from one of their values to the
        next.
        """
        varying = [name for name in names if table[name].nunique(dropna=False) > 1]
        for name, followers in self.implied.items():
            if name not in table or table[name].nunique() <= 1:
                continue
            groups = table.groupby(name)
            for follower in followers:
                if follower in varying and groups[follower].nunique(dropna=False).max() <= 1:
                    varying.remove(follower)
        return varying


def batch_and_own(work: Workload, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `learning` of a program whose parameters may mean anything: all of them, and the measured batch size.

    The batch size is a float: a last batch that is not full makes the mean of the measured ones less. It is None where
    it was not measured.
    """
    rate, step_s = values.get(work.unit.throughput), values.get("iteration_time_s")
    batch = float(rate * step_s) if rate and step_s else None
    users_own = sorted(name for name in values if name.startswith(ARGS_PREFIX))
    return {BATCH: batch} | {name.removeprefix(ARGS_PREFIX): values[name] for name in users_own}


class _Workloads(Mapping[str, Workload]):
    """The workloads by name, imported when one is looked up.

    The packages of the workloads import this module, so it cannot import them while it is being loaded.
    """

    # Documentation and schema list them in this order.
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
    """Return validated parameters of the workload that `values` names, or of the default one.

    Raises `ValidationError` if they do not suit it, and `KeyError` if there is no such workload.
    """
    return WORKLOADS[values.get("workload", DEFAULT_WORKLOAD)].parameters.model_validate(values)


def preparer(definition: Any) -> Workload:
    """Return the workload that prepares a data set or model."""
    return next(work for work in WORKLOADS.values() if isinstance(definition, tuple(work.inputs.values())))


def workload_of(columns: Iterable[str]) -> Workload:
    """Return the workload of a table whose columns are parameters, all of one workload."""
    names = set(columns)
    return next(work for work in WORKLOADS.values() if work.method in names)
