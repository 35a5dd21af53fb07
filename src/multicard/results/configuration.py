"""Measured runs, and configurations: runs that differ only in their repeat."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from multicard.config.experiment import configuration_key
from multicard.config.wording import setting, statements
from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.programs import PROGRAMS
from multicard.programs.program import Program
from multicard.results.provenance import Provenance
from multicard.runs.parameters import ARGS, ARGS_PREFIX, as_columns
from multicard.stats.samples import geometric_mean

DEVICE_WORDS = {"cpu": "CPU process", "cuda": "GPU"}

# Parameters that state how a run is observed. They do not change its measured steps.
OBSERVATION = ("profiled_steps", "profiler", "save")

WHOLE_STEP = "none"  # the value of `ablate` in a run that skips no part of its step

Item = TypeVar("Item")


@dataclass(frozen=True)
class Block:
    """The key of a block: one repeat of all configurations in a group of scenarios that share runs.

    The runs of a block are of different configurations, and run one after another.
    """

    group: tuple[str, ...]  # names of the scenarios; empty if they are not known
    repeat: int
    # How often the results are looked at if blocks are added until they are clear (`stats.looks`); 1 for a fixed number
    # of blocks. `Pool` corrects its intervals for it.
    looks: int = field(default=1, compare=False)
    # Names of the scenarios that have the run, the first one first. `Pool` estimates the scatter of each of them.
    scenarios: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class MeasuredRun:
    """One run: `values` is its row of measures.csv (outcome, parameters, measures) without the empty cells."""

    run: str
    values: Mapping[str, Any]
    provenance: Provenance
    looks: int = 1  # see `Block`
    scenarios: tuple[str, ...] = ()  # see `Block`

    @property
    def outcome(self) -> str:
        """The way in which the run ended, such as "completed"."""
        return self.values["outcome"]

    @property
    def is_completed(self) -> bool:
        """True if the run completed."""
        return self.outcome == "completed"

    @property
    def is_ablated(self) -> bool:
        """True if the run skipped a part of its step, to measure what the part costs. Such a run trains nothing."""
        return self.values.get("ablate", WHOLE_STEP) != WHOLE_STEP

    @property
    def repeat(self) -> int:
        """The number of this run among the repeats of its configuration, from 1; 1 if none is recorded."""
        return self.values.get("repeat", 1)

    @property
    def block(self) -> Block:
        """The key of the block in which the run ran."""
        return Block(self.provenance.group, self.repeat, self.looks, self.scenarios)

    def number(self, name: str) -> float | None:
        """Return the value of a column as a float; None if it is missing, text, a boolean or not finite."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their repeat, made on equal machines with the same versions.

    Machines are equal if `Provenance.machine` is, including the number of GPUs.
    """

    parameters: Mapping[str, Any]  # without `repeat`
    provenance: Provenance
    runs: tuple[MeasuredRun, ...]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Machine, versions and parameters: a key that is unique among the configurations of one `Results`."""
        return (self.provenance.machine, self.provenance.versions, *configuration_key(self.parameters, ()))

    @property
    def program(self) -> Program[Any]:
        """The program that the runs train."""
        return PROGRAMS[self["workload"]]

    @property
    def completed(self) -> list[MeasuredRun]:
        """Runs that completed."""
        return [run for run in self.runs if run.is_completed]

    @property
    def looks(self) -> int:
        """How often the results are looked at before the last repeat is known; see `Block`."""
        return max(run.looks for run in self.runs)

    def values(self, measure: str) -> list[float]:
        """Return the values of a measure, one for each completed repeat that has it."""
        return list(self.blocks(measure).values())

    def blocks(self, measure: str) -> dict[Block, float]:
        """Return the values of a measure by block. Repeats that did not complete or lack the measure are left out."""
        return {run.block: value for run in self.completed if (value := run.number(measure)) is not None}

    def by_repeat(self, measure: str) -> dict[int, float]:
        """Return the values of a measure by the number of the repeat.

        Unlike a block, this number can be matched with that of a run from another group of scenarios.
        """
        return {block.repeat: value for block, value in self.blocks(measure).items()}

    def mean(self, measure: str) -> float | None:
        """Return the geometric mean of a measure over the completed repeats that have it.

        None if no repeat has it, or if one of the values is not above zero.
        """
        return geometric_mean(self.blocks(measure))

    @property
    def rate(self) -> str:
        """Name of the measure of throughput: distinct samples or images, or tokens without padding, per second."""
        return self.program.unit.throughput

    def default(self, parameter: str) -> Any:
        """Return the default of a parameter, in the form of a table's cell.

        None if the program has no such parameter, or the parameter has no default.
        """
        field = self.program.parameters.model_fields.get(parameter)
        return None if field is None or field.is_required() else as_columns({parameter: field.default})[parameter]

    def naming(self, parameters: Iterable[str]) -> str:
        """Return some parameters and their values as a configuration file states them: "devices: 2, precision: bf16".

        The user's own parameters are named without the prefix `args.`.
        """
        return statements(self.parameters, parameters)

    def __getitem__(self, parameter: str) -> Any:
        return self.parameters.get(parameter)

    def rest(self, ignored: Iterable[str]) -> tuple[Any, ...]:
        """Return a key that is equal for configurations that differ at most in the parameters `ignored`.

        It consists of the kind of machine (without the number of GPUs), the versions, and all other parameters. The
        versions name the profiler that observed the run, unless the parameter `profiler` is ignored.
        """
        ignored = set(ignored)
        versions = self.provenance.software if "profiler" in ignored else self.provenance.versions
        return (self.provenance.kind, versions, *configuration_key(self.parameters, ignored))

    def words(self, without: Iterable[str] = (), in_short: bool = False) -> str:
        """Describe the configuration: its headline parameters, then the others that differ from their defaults.

        `without`: parameters to leave out. `in_short`: True for the headline parameters alone. Parameters that are None
        are left out.

        >>> Configuration({"workload": "llm", "model": "tiny", "technique": "lora", "dataset": "chats", "device": "cpu",
        ...     "devices": 2, "precision": "fp32", "packed": True, "steps": 50}, Provenance(), ()).words()
        'tiny, LoRA, chats, 2 CPU processes, fp32, packed'
        """
        headline = self.program.parameters.HEADLINE
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
    """Group runs that differ only in their repeat, in the order of their first runs; see `Configuration`."""
    groups = grouped(runs, lambda run: (run.provenance.machine, run.provenance.versions, configuration_key(run.values)))
    configurations = []
    for alike in groups.values():
        first = alike[0]
        parameters = {name: first.values.get(name) for name in _parameter_names(first)}
        configurations.append(Configuration(parameters, first.provenance, tuple(alike)))
    return configurations


def _parameter_names(run: MeasuredRun) -> list[str]:
    """Return the names of the parameters of the run's program without `repeat`, then those of the user's own."""
    # Sorted, since scenarios may state them in any order.
    users_own = sorted(name for name in run.values if name.startswith(ARGS_PREFIX))
    fields = PROGRAMS[run.values["workload"]].parameters.model_fields
    return [*(name for name in fields if name not in ("repeat", ARGS)), *users_own]


def observed_once(
    items: Sequence[Item], job: Callable[[Item], Hashable], block_count: Callable[[Item], int]
) -> list[Item]:
    """Return one item for each job, in the order of `items`: the one that was measured in the most blocks.

    If several items of a job have equally many blocks, the first is returned. What was measured does not affect the
    choice. `job` returns a key that is equal for items that do the same job, for example with different profilers.

    >>> observed_once(["nsys 3", "none 5", "other 1"], lambda item: item.startswith("o"), lambda item: int(item[-1]))
    ['none 5', 'other 1']
    """
    alike = grouped(range(len(items)), lambda index: job(items[index]))
    chosen = [max(indices, key=lambda index: block_count(items[index])) for indices in alike.values()]
    return [items[index] for index in sorted(chosen)]
