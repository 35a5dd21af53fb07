"""Measured runs, and configurations: runs that differ only in their repeat."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.experiment.config import configuration_key
from multicard.experiment.wording import setting, statements
from multicard.experiment.workload import WORKLOADS, Workload
from multicard.results.provenance import Provenance
from multicard.runs.parameters import ARGS, ARGS_PREFIX, as_columns
from multicard.stats.samples import geometric_mean

DEVICE_WORDS = {"cpu": "CPU process", "cuda": "GPU"}

# How a run is observed: parameters that leave its measured steps as they are.
OBSERVATION = ("profiled_steps", "profiler", "save")

WHOLE_STEP = "none"  # the value of `ablate` of a run that had all parts of its step

Item = TypeVar("Item")


class Block(NamedTuple):
    """Runs that ran in turn, each of another configuration: a repeat of a group of scenarios that share runs."""

    group: tuple[str, ...]
    repeat: int


@dataclass(frozen=True)
class MeasuredRun:
    """One run: `values` holds its outcome, parameters and measures, without those that are empty."""

    run: str
    values: Mapping[str, Any]
    provenance: Provenance

    @property
    def outcome(self) -> str:
        """How the run ended."""
        return self.values["outcome"]

    @property
    def is_completed(self) -> bool:
        """True if the run completed."""
        return self.outcome == "completed"

    @property
    def is_ablated(self) -> bool:
        """True if the run went without a part of its step, and so trained nothing."""
        return self.values.get("ablate", WHOLE_STEP) != WHOLE_STEP

    @property
    def repeat(self) -> int:
        """Its number among the repeats of its configuration."""
        return self.values.get("repeat", 1)

    @property
    def block(self) -> Block:
        """The block in which it ran: its repeat, in its group of scenarios."""
        return Block(self.provenance.group, self.repeat)

    def number(self, name: str) -> float | None:
        """Return a measure; None where there is none."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their repeat, on one kind of machine with the same versions."""

    parameters: Mapping[str, Any]
    provenance: Provenance
    runs: tuple[MeasuredRun, ...]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Machine, versions and parameters, which no other configuration of the same results has."""
        return (self.provenance.machine, self.provenance.versions, *configuration_key(self.parameters, ()))

    @property
    def workload(self) -> Workload:
        """Its kind of job."""
        return WORKLOADS[self["workload"]]

    @property
    def completed(self) -> list[MeasuredRun]:
        """Runs that completed."""
        return [run for run in self.runs if run.is_completed]

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure over the completed repeats that have it."""
        return list(self.blocks(measure).values())

    def blocks(self, measure: str) -> dict[Block, float]:
        """Return the values of a measure by block, over the completed repeats that have it."""
        return {run.block: value for run in self.completed if (value := run.number(measure)) is not None}

    def by_repeat(self, measure: str) -> dict[int, float]:
        """Return the values of a measure by number of the repeat, which runs of other groups have too."""
        return {block.repeat: value for block, value in self.blocks(measure).items()}

    def mean(self, measure: str) -> float | None:
        """Return the geometric mean of a measure over the completed repeats that have it; None without one."""
        return geometric_mean(self.blocks(measure))

    @property
    def rate(self) -> str:
        """The measure of speed: distinct images, or tokens without padding, per second."""
        return self.workload.unit.throughput

    def default(self, parameter: str) -> Any:
        """Return the default of a parameter of its workload, as a table has it; None of other parameters."""
        field = self.workload.parameters.model_fields.get(parameter)
        return None if field is None or field.is_required() else as_columns({parameter: field.default})[parameter]

    def naming(self, parameters: Iterable[str]) -> str:
        """Return the values of some parameters as a configuration file states them, the user's own without `args`."""
        return statements(self.parameters, parameters)

    def __getitem__(self, parameter: str) -> Any:
        return self.parameters.get(parameter)

    def rest(self, besides: Iterable[str]) -> tuple[Any, ...]:
        """Return what configurations that differ at most in these parameters have in common, and their machine's kind.

        So are the versions, with the profiler that was used unless `profiler` is one of the parameters.
        """
        besides = set(besides)
        versions = self.provenance.software if "profiler" in besides else self.provenance.versions
        return (self.provenance.kind, versions, *configuration_key(self.parameters, besides))

    def words(self, without: Iterable[str] = (), in_short: bool = False) -> str:
        """Describe the configuration: its headline, then, unless in short, what differs from the defaults.

        >>> Configuration({"workload": "llm", "model": "tiny", "technique": "lora", "dataset": "chats", "device": "cpu",
        ...     "devices": 2, "precision": "fp32", "packed": True, "steps": 50}, Provenance(), ()).words()
        'tiny, LoRA, chats, 2 CPU processes, fp32, packed'
        """
        headline = self.workload.parameters.HEADLINE
        excluded = {*without, "workload", "repeat", "device", "seed"}
        words = []
        for name in dict.fromkeys((*headline, *(() if in_short else self.parameters))):
            is_shown = name in headline or self[name] != self.default(name)
            if is_shown and name not in excluded and self[name] is not None:
                words.append(self._setting(name))
        return ", ".join(words)

    def _setting(self, name: str) -> str:
        if name == "devices":
            return counted(self[name], DEVICE_WORDS[self["device"]])
        return setting(name, self[name])


def configurations_of(runs: Iterable[MeasuredRun]) -> list[Configuration]:
    """Group runs by all but their repeat, on one kind of machine with the same versions, in the order of the first."""
    groups = grouped(runs, lambda run: (run.provenance.machine, run.provenance.versions, configuration_key(run.values)))
    configurations = []
    for alike in groups.values():
        first = alike[0]
        parameters = {name: first.values.get(name) for name in _parameter_names(first)}
        configurations.append(Configuration(parameters, first.provenance, tuple(alike)))
    return configurations


def _parameter_names(run: MeasuredRun) -> list[str]:
    """Return the parameters of the run's workload, but for the repeat; the user's own one by one."""
    # Sorted, since scenarios may state them in any order.
    users_own = sorted(name for name in run.values if name.startswith(ARGS_PREFIX))
    fields = WORKLOADS[run.values["workload"]].parameters.model_fields
    return [*(name for name in fields if name not in ("repeat", ARGS)), *users_own]


def observed_once(
    items: Sequence[Item], job: Callable[[Item], Hashable], block_count: Callable[[Item], int]
) -> list[Item]:
    """Return the items that count, in their order: of each job the one with the most blocks, else the first.

    Results have no say in it. `job` is equal for items that differ only in what is no part of the job, as how it is
    observed.

    >>> observed_once(["nsys 3", "none 5", "other 1"], lambda item: item.startswith("o"), lambda item: int(item[-1]))
    ['none 5', 'other 1']
    """
    alike = grouped(range(len(items)), lambda index: job(items[index]))
    chosen = [max(indices, key=lambda index: block_count(items[index])) for indices in alike.values()]
    return [items[index] for index in sorted(chosen)]
