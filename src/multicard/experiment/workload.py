"""The interface of a workload, which is a kind of job. The workloads are the packages in `multicard.workloads`."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

from multicard.core.entries import by_name
from multicard.core.job_file import ObservedJob
from multicard.core.layout import Outcome
from multicard.core.reasons import Reason
from multicard.core.rendezvous import Rendezvous
from multicard.core.units import ARGS_PREFIX
from multicard.core.values import Row
from multicard.experiment.machine import Machine
from multicard.runs.measures import Definition, Measures
from multicard.runs.parameters import DEFAULT_WORKLOAD, JobParameters
from multicard.runs.rank_report import RankReport
from multicard.runs.record import DataRecord, ModelRecord, RunRecord
from multicard.runs.verdict import Verdict

if TYPE_CHECKING:
    # Not imported at run time, because pandas takes long to import, and planning does not need it.
    import pandas as pd

BATCH = "global batch size"  # key of `Workload.learning`

# Definitions of the data set and the model of a run, by the parameter that names each: `dataset`, `model`.
Inputs = Mapping[str, Any]


class InputRecords(TypedDict, total=False):
    """The parts of run.json about a job's data set and model."""

    data: DataRecord
    model: ModelRecord


@dataclass(frozen=True)
class Unit:
    """The unit in which a workload counts its work."""

    name: str  # the word for one unit, such as "image"
    column: str  # name of the column of steps.csv with the number of units that a rank processed in a step
    throughput: str  # name of the measure of units per second; a unit that several ranks process counts once
    energy: str  # name of the measure of joules per unit; a unit that several ranks process counts for each of them


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of matrix products and convolutions on one device in one step, averaged over steps."""

    model: float  # operations that the model's forward and backward passes need
    hardware: float  # `model` plus the operations that activation checkpointing computes again
    # Precisions in which a device may compute, by preference: it uses the first that it supports.
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Resources:
    """Estimates of the resources that a run needs, before anything runs."""

    # Megabytes of host memory that a rank takes in addition to a bare training process: for its data and, on a CPU, for
    # training.
    rank_memory_mb: float = 0.0
    device_memory_bytes: int | None = None  # most bytes that training takes on one device; None if not estimated
    # Seconds that a run takes on GPUs, by part, such as "training". Starting processes and handling the trace are not
    # included. None if the amount of work is not known.
    durations_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Launching:
    """How the ranks of a job are started. The defaults are those of multicard's own programs."""

    interpreter: str | None = None  # path of the ranks' Python interpreter; None for the one that runs this code
    folder: Path | None = None  # working directory of the ranks, with the user's files; None for a program of multicard
    script: Path | None = None  # the user's file that the ranks run; None if there is none or it is not known
    # Names of variables that the ranks get even if the launcher of another job set them for its ranks.
    passed_variables: tuple[str, ...] = ()
    # Pattern of the names of variables that the ranks do not get, because the launcher would take them for options.
    withheld_variables: str | None = None
    # Number of Slurm's tasks on each node of a job on several nodes: 1 task that starts all ranks there, or a task for
    # each rank.
    tasks_per_node: int = 1
    # Why a profiler that starts the job as its child process cannot see the ranks; the CPU time of the ranks is then
    # unknown, too. None if it sees them.
    hidden_from_profilers: str | None = None


class Method(Protocol):
    """A strategy, technique or launcher: one value of the parameter `Workload.method` of a workload."""

    description: str  # such as "one process, no communication."

    def facts(self) -> Sequence[str]:
        """Return sentences for the documentation, in addition to the description."""


class Workload(ABC):
    """A kind of job: its parameters, the data and model that it needs, the program that trains, and its own measures.

    Other packages call the methods of a workload instead of comparing its name. Many methods have these arguments: `p`
    is the parameters of a run, an object of the class `parameters`. `inputs` is the definitions of its data set and
    model; a definition that is not known is missing there.

    Importing a workload must not import torch, pandas or matplotlib, because planning needs none of them.
    """

    name: str
    parameters: type[JobParameters]
    program: str = ""  # module that trains one rank: `python -m PROGRAM --job FILE`
    # The class of the definition of each input that is prepared for a run, by the parameter that names the input. The
    # parameter `dataset` names a definition in the section `datasets` of a configuration, `model` one in `models`.
    inputs: ClassVar[Mapping[str, type]]
    # Name of the parameter that distinguishes the jobs of the workload first, such as `strategy`.
    method: str
    # The values of this parameter, by name.
    methods: ClassVar[Mapping[str, Method]]
    unit: Unit
    # Columns of steps.csv that the workload's measures need, in addition to those that every workload has.
    step_columns: tuple[str, ...] = ()
    # True if the program is the user's. Then its parameters hold text that an archive must not contain unchanged. Its
    # options are not known to multicard. How many samples it processes, and how it scales, is observed. No claim of the
    # papers is about it.
    is_user_program = False
    # Text that is shown if no run of a scenario recorded how long it waited for data.
    data_wait_unknown = "no loader of PyTorch's was seen: wrap yours by multicard.marks.wrap_loader"
    # True if the program tests after every epoch, so that epochs.csv has rows.
    has_epochs = False
    # Names of the options by which a user states the samples of a step, shown if nothing counted them.
    states_samples_by = "--samples-per-step or --samples-per-device"
    # False if runs are not launched but made of traces that were recorded elsewhere. Such a run may have no steps.
    launches = True
    # For a parameter that decides the defaults of others, such as `preset`: the names of these others.
    implied: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def config_error(self, p: Any, inputs: Inputs) -> str | None:
        """Return why a run with these parameters and inputs cannot run on any machine; None if it could run on some."""
        return None

    def applies(self, parameter: str, values: Mapping[str, Any]) -> bool:
        """Return True if a parameter has an effect in a run whose stated parameters are `values`.

        A scenario leaves a parameter without effect at its default, so that its values do not make further runs.
        """
        # A single device does not communicate, so a run on it cannot skip communication.
        goes_without_communication = parameter == "ablate" and "communication" in str(values["ablate"])
        return not goes_without_communication or values.get("devices", 1) > 1

    def unsupported_reason(self, p: Any, machine: Machine, inputs: Inputs) -> str | None:
        """Return why a run cannot run on `machine`, for reasons of this workload only; None if there is none."""
        return None

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of training samples, if the definition of a data set determines it; else None."""
        return None

    def data_error(self, p: Any, samples: int) -> str | None:
        """Return that `samples` training samples are too few for a run, and what would fit; None if they are enough."""
        return None

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare the data set or model `name` in `folder`. The file provenance.json is written last.

        `resources`: folder of the shipped inputs. Raises `UserError` if the user's files do not fit the definition.
        """
        raise NotImplementedError(f"the workload {self.name} has no inputs")

    def refusal(self, p: Any) -> Reason | None:
        """Return why a job cannot run on this machine, on which it is about to start; None if it can."""
        return None

    def command(self, p: Any, job: Path, rendezvous: Rendezvous | None) -> list[str] | None:
        """Return the command that starts the ranks of this node.

        None stands for `program`, which torchrun starts if the job is distributed. `job`: path of job.json in the
        scratch folder of this node. `rendezvous`: the place of this node among those of the job; None for a job on one
        node.
        """
        return None

    def launching(self, p: Any) -> Launching:
        """Return how the ranks of a job are started."""
        return Launching()

    def environment(self, p: Any, scratch: Path, rendezvous: Rendezvous | None = None) -> Mapping[str, str]:
        """Return environment variables that are added for the ranks of this node.

        `scratch`: folder for files that these variables name; this method makes the files. `rendezvous`: as for
        `command`.
        """
        # A program of multicard must import nothing from the user's folder, which may have a random.py.
        return {"PYTHONSAFEPATH": "1"}

    def observed(self, p: Any) -> ObservedJob:
        """Return what the observer of a job needs to know.

        By default the program itself states how many steps it trains, so that `measured_steps` is None.
        """
        return ObservedJob(
            device=p.device,
            devices=p.devices,
            devices_per_node=p.devices_per_node,
            ranks=p.ranks,
            ranks_per_node=p.ranks_per_node,
            warmup_steps=p.warmup_steps,
            measured_steps=None,
            profiled_steps=p.profiled_steps,
            is_user_program=self.is_user_program,
            program=(self.program,),
            ablate=tuple(p.ablated),
            count_operations=True,
            memory_snapshot=p.memory_snapshot,
        )

    def input_facts(self, data: Path, model: Path | None) -> InputRecords:
        """Return the records of a job's data set and model, read from their prepared folders."""
        return {}

    def judge(
        self, p: Any, outcome: Outcome, reason: Reason | None, reports: Sequence[RankReport], scratch: Path
    ) -> Verdict:
        """Return the verdict on a job, which may differ from the launcher's by criteria of this workload.

        `outcome`, `reason`: the launcher's verdict, by criteria that hold for every workload. `reports`: the reports of
        the expected ranks; a rank may have left none. `scratch`: folder with the files that the ranks of all nodes
        wrote.
        """
        return Verdict(outcome, reason)

    def resources(self, p: Any, inputs: Inputs) -> Resources:
        """Estimate the resources that a run needs."""
        return Resources()

    def loads_in_step(self, p: Any) -> bool:
        """Return True if the process that trains also loads the data: its wait for data is then the loading itself."""
        return False

    @property
    def measures(self) -> Mapping[str, Definition]:
        """The measures of this workload, with the definition of each: `MEASURES` of its module `measures`."""
        return self._measures_module().MEASURES

    def _measures_module(self) -> Any:
        """Return the module `measures` in the package of this workload."""
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.measures")

    def measure(self, record: RunRecord, common: Measures, steps: "pd.DataFrame", epochs: "pd.DataFrame | None") -> Row:
        """Return the workload's own measures of a completed run, computed by `measure` of its module `measures`.

        `record`: the record of the run. `common`: the measures that every workload has; all are None if the run has no
        steps. `steps`: the rows of steps.csv. `epochs`: the rows of epochs.csv; None if the workload has no epochs
        (`has_epochs`), or if the run skips the host's work and so ends no epoch.
        """
        return self._measures_module().measure(record, common, steps, epochs)

    @property
    def default_label(self) -> str:
        """Name of the parameter whose value names a series in which no parameter varies."""
        return self.method

    def counted(self, record: RunRecord, steps: "pd.DataFrame") -> "pd.DataFrame":
        """Return the rows of steps.csv in the form from which measures are computed.

        By default they are unchanged. A workload may replace counts of samples, for example by the user's statement.
        """
        return steps

    def distinct_share(self, record: RunRecord) -> float:
        """Return the number of distinct samples divided by the number of processed samples, summed over all ranks.

        It is 1 unless several ranks process the same samples.
        """
        return 1.0

    def operations(self, record: RunRecord, steps: "pd.DataFrame") -> Operations | None:
        """Return the operations of a step of a completed run, averaged over ranks; None unless every rank counted them.

        `steps`: the rows of the measured steps. If the ranks counted tokens, the operations are scaled to the mean
        number of tokens of these steps, padding included.
        """
        counts = [rank.operations for rank in record.ranks if rank.operations is not None]
        model_counts = [count.model for count in counts if count.model is not None]
        hardware_counts = [count.hardware for count in counts if count.hardware is not None]
        rank_count = len(record.ranks)
        all_ranks_counted = len(model_counts) == len(hardware_counts) == rank_count
        if not counts or not all_ranks_counted:
            return None
        # Operations were counted in one step of the warm-up. Its sequences may have had other lengths.
        growth = 1.0
        tokens_when_counted = [count.padded_tokens for count in counts if count.padded_tokens]
        if len(tokens_when_counted) == rank_count:
            growth = steps["padded_tokens"].mean() * rank_count / sum(tokens_when_counted)
        model = growth * sum(model_counts) / rank_count
        hardware = growth * sum(hardware_counts) / rank_count
        precision = counts[0].precision or ""
        precisions = (precision, "fp32") if precision == "tf32" else (precision,)
        return Operations(model, hardware, precisions)

    @abstractmethod
    def job(self, values: Mapping[str, Any]) -> str:
        """Return a description of the job of a configuration; it is equal for configurations that do the same job.

        `values`: the parameters of the configuration.
        """

    def stated_in(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters in a row of a table as an object of the class `parameters`.

        Columns that are not parameters, and empty ones (None), are ignored.
        """
        fields = self.parameters.model_fields
        stated = {name: value for name, value in values.items() if name in fields and value is not None}
        return self.parameters.model_validate(stated)

    @abstractmethod
    def learning(self, values: Mapping[str, Any]) -> Row:
        """Return the settings that decide how much is learned from a sample, such as the global batch size.

        The key of a setting is its name in words. `values`: parameters and measures of a run.
        """

    def baseline_words(self, method: str) -> str:
        """Return the name of a baseline: the run on one device with which other runs are compared.

        `method`: the baseline's value of the parameter `self.method`.
        """
        return f"{method}, 1 device"

    def baselines(self, method: str) -> Sequence[str]:
        """Return the methods of the runs on one device that may be the baseline of runs with `method`, the best first.

        A method is a value of the parameter `self.method`.
        """
        return (method,)

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return True if `changes` of parameters may make a configuration with `values` faster, or use less memory."""
        return True

    def varying(self, table: "pd.DataFrame", names: Iterable[str]) -> list[str]:
        """Return the columns among `names` that have several values in a table of configurations.

        A column is left out if another one implies it: if `implied` lists it for the other one, and it has only one
        value in all rows with the same value of the other one.
        """
        varying = [name for name in names if table[name].nunique(dropna=False) > 1]
        for name, followers in self.implied.items():
            if name not in table or table[name].nunique() <= 1:
                continue
            groups = table.groupby(name)
            for follower in followers:
                if follower in varying:
                    values_per_group = groups[follower].nunique(dropna=False)
                    if values_per_group.max() <= 1:
                        varying.remove(follower)
        return varying


def batch_and_own(work: Workload, values: Mapping[str, Any]) -> Row:
    """Return `learning` of a workload whose own parameters may mean anything: all of these, and the global batch size.

    The batch size is the throughput times the iteration time. It may be a fraction, because it is a mean over steps,
    and the last batch of a pass may be smaller than the others. It is None if it was not measured.
    """
    rate = values.get(work.unit.throughput)
    step_s = values.get("iteration_time_s")
    batch = float(rate * step_s) if rate and step_s else None
    columns = sorted(name for name in values if name.startswith(ARGS_PREFIX))
    users_own = {column.removeprefix(ARGS_PREFIX): values[column] for column in columns}
    return {BATCH: batch} | users_own


class _Workloads(Mapping[str, Workload]):
    """The workloads by name. All of them are imported at the first access.

    The packages of the workloads import this module, so this module cannot import them while it is being loaded.
    """

    # In the order in which documentation and schema list the workloads.
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
    """Return `values` as checked parameters of the workload that they name, or of the default one if they name none.

    Raises `ValidationError` if they do not fit the workload, and `KeyError` if there is no such workload.
    """
    return WORKLOADS[values.get("workload", DEFAULT_WORKLOAD)].parameters.model_validate(values)


def preparer(definition: Any) -> Workload:
    """Return the workload that prepares a data set or model; `definition`: the definition of it."""
    return next(work for work in WORKLOADS.values() if isinstance(definition, tuple(work.inputs.values())))


def workload_of(columns: Iterable[str]) -> Workload:
    """Return the workload of a table, whose rows are all of one workload, by the names of its columns."""
    names = set(columns)
    return next(work for work in WORKLOADS.values() if work.method in names)
