"""The record that describes a program: what a job trains, how it starts, and how its runs compare.

Every program is an ordinary training program that is started, observed and judged like any other. What differs from
program to program is in its record, which other packages ask. `multicard.programs` lists the records.

A record must not import torch, pandas or matplotlib, because planning needs none of them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

from multicard.core.job_file import JobPaths
from multicard.core.values import Row
from multicard.programs.machine import Machine
from multicard.runs.measures import Definition, Measures
from multicard.runs.parameters import JobParameters
from multicard.runs.record import DataRecord, ModelRecord, RunRecord

if TYPE_CHECKING:
    # Not imported at run time, because pandas takes long to import, and planning does not need it.
    import pandas as pd

# The class of a program's parameters.
P = TypeVar("P", bound=JobParameters)

BATCH = "global batch size"  # key of `Comparison.learning`

# Definitions of the data set and the model of a run, by the parameter that names each: `dataset`, `model`.
Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class RankCommand:
    """How one rank is started, without the launcher that starts it on each device."""

    words: Sequence[str]  # the script, or -m and a module, followed by its arguments
    python: str = sys.executable  # absolute path of the interpreter that runs `words`
    # Working directory with the user's files. None if the ranks run a module of multicard: in the folder that multicard
    # runs in, without importing anything from there.
    folder: Path | None = None
    script: Path | None = None  # the user's file among `words`; None if there is none or it is not known
    # Names of variables that the ranks get even if the launcher of another job set them for its ranks.
    passed_variables: Sequence[str] = ()


class InputRecords(TypedDict, total=False):
    """The parts of run.json about a job's data set and model."""

    data: DataRecord
    model: ModelRecord


def _unknown_count(definition: Any) -> int | None:
    return None


@dataclass(frozen=True)
class Input:
    """A data set or a model that is prepared before runs need it."""

    # Class of its definition in a configuration, in the section `datasets` or `models`.
    definition: type
    # Prepares it: its name, its definition, the folder to write to, and the folder of the shipped inputs. The file
    # provenance.json is written last. Raises `UserError` if the user's files do not fit the definition.
    prepare: Callable[[str, Any, Path, Path], None]
    # Returns its part of run.json, read from its prepared folder.
    record: Callable[[Path], InputRecords]
    # Returns the number of training samples if the definition of a data set determines it; else None.
    sample_count: Callable[[Any], int | None] = _unknown_count


@dataclass(frozen=True)
class Unit:
    """The unit in which a program's work is counted."""

    name: str  # the word for one unit, such as "image"
    column: str  # name of the column of steps.csv with the number of units that a rank processed in a step
    throughput: str  # name of the measure of units per second; a unit that several ranks process counts once
    energy: str  # name of the measure of joules per unit; a unit that several ranks process counts for each of them


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


def _no_error(*_: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Checks(Generic[P]):
    """What is checked before a run starts. Each function returns what is wrong in words, None if nothing is.

    Their first argument is the parameters of the run.
    """

    # Returns why the run cannot run on any machine, by its parameters and inputs. An input that is not known is missing
    # among the inputs.
    config_error: Callable[[P, Inputs], str | None] = _no_error
    # Returns why the run cannot run on a machine, for reasons of this program only.
    unsupported_reason: Callable[[P, Machine, Inputs], str | None] = _no_error
    # Returns that so many training samples are too few, and what would fit.
    data_error: Callable[[P, int], str | None] = _no_error


def _all_distinct(record: RunRecord) -> float | None:
    return 1.0


@dataclass(frozen=True)
class OwnMeasures:
    """The measures that only the runs of one program have."""

    definitions: Mapping[str, Definition]
    # Returns the measures of a completed run: its record, the measures that every program has (all None in a run
    # without steps), the rows of steps.csv, and those of epochs.csv. Raises `ValueError` if something is missing.
    compute: "Callable[[RunRecord, Measures, pd.DataFrame, pd.DataFrame], Row]"
    # Returns the number of distinct samples divided by the number of processed samples, summed over all ranks. It is 1
    # unless several ranks process the same samples, and None if that is not known.
    distinct_share: Callable[[RunRecord], float | None] = _all_distinct


def _itself(method: str) -> Sequence[str]:
    return (method,)


def _unknown_scaling(values: Mapping[str, Any]) -> str | None:
    return None


def _always(changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Comparison:
    """Which runs of a program are compared, and with what. `values` are parameters and measures of a run by name."""

    # Returns a description of the job that is equal for configurations that do the same job.
    job: Callable[[Mapping[str, Any]], str]
    # Returns the settings that decide how much is learned from a sample, such as the global batch size, by their names
    # in words.
    learning: Callable[[Mapping[str, Any]], Row]
    # Name of the parameter whose value names a series in which no parameter varies.
    default_label: str
    # Returns how runs scale by their parameters, `weak` or `strong`; None if only the work of their steps shows it.
    scaling: Callable[[Mapping[str, Any]], str | None] = _unknown_scaling
    # Returns the methods of the runs on one device that may be the baseline of runs with a method, the best first. A
    # method is a value of the parameter `Program.method`.
    baselines: Callable[[str], Sequence[str]] = _itself
    # Parameters whose values change what the loss measures, so that losses of different values are not compared; the
    # most important first.
    loss_depends_on: Sequence[str] = ()
    # Returns True if changes of parameters may make a run with `values` faster, or let it use less memory.
    tuning_applies: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = _always


class Method(Protocol):
    """A strategy, technique or launcher: one value of the parameter `Program.method`."""

    description: str  # such as "one process, no communication."

    def facts(self) -> Sequence[str]:
        """Return sentences for the documentation, in addition to the description."""


@dataclass(frozen=True)
class Program(Generic[P]):
    """A training program, and what multicard must know about it.

    A new program is a module with such a record, listed in `multicard.programs`. Most functions get `p`, the parameters
    of a run, an object of the class `parameters`.
    """

    name: str
    parameters: type[P]
    # Returns the command of a rank. Before a job starts, its paths are not known.
    command: Callable[[P, JobPaths], RankCommand]
    unit: Unit
    # Name of the parameter that distinguishes the jobs of the program first, such as `strategy`; and its values.
    method: str
    methods: Mapping[str, Method]
    comparison: Comparison
    measures: OwnMeasures
    # Names of the parameters that have no effect with other methods, by method.
    own_parameters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # What is prepared for a run, by the parameter that names it.
    inputs: Mapping[str, Input] = field(default_factory=dict)
    checks: Checks[P] = Checks()
    resources: Callable[[P, Inputs], Resources] = lambda p, inputs: Resources()
    # True if users can change its code, so that advice may be about that.
    is_editable: bool = False
    # The paper whose figures runs of this program reproduce: "A" or "B"; None if neither does.
    paper: str | None = None

    def baseline_words(self, method: str) -> str:
        """Return the name of a baseline on one device, whose value of the parameter `method` is given.

        The method is left out unless series are named by it: then it makes a difference on one device, too.
        """
        return f"{method}, 1 device" if self.comparison.default_label == self.method else "1 device"

    def parameters_in(self, values: Mapping[str, Any]) -> P:
        """Return the parameters in a row of a table as an object of the class `parameters`.

        Columns that are not parameters, and empty ones (None), are ignored.
        """
        fields = self.parameters.model_fields
        stated = {name: value for name, value in values.items() if name in fields and value is not None}
        return self.parameters.model_validate(stated)

    def varying(self, table: "pd.DataFrame", names: Iterable[str]) -> list[str]:
        """Return the columns among `names` that have several values in a table of configurations.

        A column is left out if another one implies it: if the parameters' `IMPLIED` list it for the other one, and it
        has only one value in all rows with the same value of the other one.
        """
        varying = [name for name in names if table[name].nunique(dropna=False) > 1]
        for name, followers in self.parameters.IMPLIED.items():
            if name not in table or table[name].nunique() <= 1:
                continue
            groups = table.groupby(name)
            for follower in followers:
                if follower in varying:
                    values_per_group = groups[follower].nunique(dropna=False)
                    if values_per_group.max() <= 1:
                        varying.remove(follower)
        return varying
