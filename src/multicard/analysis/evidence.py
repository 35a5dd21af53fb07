"""All runs of a results folder by configuration: the evidence for claims and recommendations."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from multicard.analysis.runs.notices import without_empty
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.errors import UserError
from multicard.core.layout import RUN, RUN_NAME
from multicard.core.text import counted, without_names
from multicard.experiment.config import configuration_key, parameters_in
from multicard.experiment.read_run import read_run
from multicard.experiment.workload import WORKLOADS, Workload
from multicard.runs.environment import gpu_names, machine_in_words, smallest_gpu_bytes, versions_in_words
from multicard.runs.parameters import ARGS, ARGS_PREFIX, as_columns
from multicard.stats.samples import geometric_mean

SCENARIOS, RUNS = "scenarios", "runs"
DEVICE_WORDS = {"cpu": "CPU process", "cuda": "GPU"}
SYNTHETIC = "synthetic"  # in the names of machines whose timings are, and the kind of data set of random images

GPU_COUNT = re.compile(r"(?:^|(?<=, ))\d+ × ")  # in the name of a machine
PROFILER = re.compile(r"(?:^|, )profiler \w+")  # among versions

# How a run is observed: parameters that leave its measured steps as they are.
OBSERVATION = ("profiled_steps", "profiler", "save")


def names_synthetic(names: Iterable[Any]) -> bool:
    """Whether timings are synthetic: one of the names of their machine, some of them None, says so.

    Real runs on synthetic images have real timings.
    """
    return any(SYNTHETIC in str(name).lower() for name in names)


@dataclass(frozen=True)
class Provenance:
    """Machine, versions and data of a run, from its record; None where it does not say."""

    machine: str | None = None  # in words
    versions: str | None = None  # in words
    gpu: str | None = None  # names of its kinds of GPUs
    gpu_memory_bytes: int | None = None  # of the smallest GPU
    numa_nodes: frozenset[int] = frozenset()  # that its ranks ran on, so there are at least as many
    usable_cpus: int | None = None  # of a node, that its job could use
    data_source: str | None = None  # kind of the data set
    group: tuple[str, ...] = ()  # scenarios whose runs it ran among, block by block; empty where it is not known

    @property
    def kind(self) -> str | None:
        """The machine, whatever part of its GPUs a job was given, as by Slurm.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").kind
        'NVIDIA H100, AMD EPYC 9334, 128 CPUs'
        """
        return self.machine and GPU_COUNT.sub("", self.machine)

    @property
    def gpu_count(self) -> int | None:
        """GPUs of a node that its job could use, of all kinds; None where none is recorded.

        >>> Provenance("4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs").gpu_count
        4
        """
        return sum(int(each.removesuffix(" × ")) for each in GPU_COUNT.findall(self.machine or "")) or None

    @property
    def software(self) -> str | None:
        """The versions, whichever profiler observed the run; None where the record does not say.

        >>> Provenance(versions="torch 2.11.0, profiler nsys, train.py 0a1b2c").software
        'torch 2.11.0, train.py 0a1b2c'
        """
        return (self.versions and PROFILER.sub("", self.versions).removeprefix(", ")) or None


def place_words(places: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """What tells each machine with its versions from the others; empty where nothing does.

    >>> place_words([("H100, EPYC", "torch 2.11.0, python 3.12"), ("H100, Xeon", "torch 2.10.0, python 3.12")])
    ['EPYC, torch 2.11.0', 'Xeon, torch 2.10.0']
    """
    parts = [
        f"{machine or 'machine unknown'}, {versions or 'versions unknown'}".split(", ") for machine, versions in places
    ]
    common = set.intersection(*map(set, parts)) if parts else set()
    several = len(set(map(tuple, parts))) > 1
    return [", ".join([each for each in own if each not in common] or own[:1] * several) for own in parts]


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
    def synthetic(self) -> bool:
        """Whether its timings are, by the name of its machine."""
        return names_synthetic((self.provenance.machine, self.provenance.gpu))

    @property
    def repeat(self) -> int:
        """Its number among the repeats of its configuration."""
        return self.values.get("repeat", 1)

    @property
    def block(self) -> Block:
        """The block in which it ran: that of its repeat, in its group."""
        return Block(self.provenance.group, self.repeat)

    def number(self, name: str) -> float | None:
        """A measure; None where there is none."""
        value = self.values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and math.isfinite(value) else None


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their repeat, on one kind of machine with the same versions."""

    parameters: Mapping[str, Any]
    provenance: Provenance
    runs: tuple[MeasuredRun, ...]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Machine, versions and parameters: no two configurations of the same evidence have the same."""
        return (self.provenance.machine, self.provenance.versions, *configuration_key(self.parameters, ()))

    @property
    def workload(self) -> Workload:
        """Its kind of job."""
        return WORKLOADS[self["workload"]]

    @property
    def completed(self) -> list[MeasuredRun]:
        """Runs that completed."""
        return [run for run in self.runs if run.values.get("outcome") == "completed"]

    def values(self, measure: str) -> list[float]:
        """Values of a measure over the completed repeats that have it."""
        return list(self.blocks(measure).values())

    def blocks(self, measure: str) -> dict[Block, float]:
        """Values of a measure by block, over the completed repeats that have it."""
        return {run.block: value for run in self.completed if (value := run.number(measure)) is not None}

    def by_repeat(self, measure: str) -> dict[int, float]:
        """Values of a measure by number of the repeat, which other groups have too."""
        return {block.repeat: value for block, value in self.blocks(measure).items()}

    def mean(self, measure: str) -> float | None:
        """Geometric mean of a measure over the completed repeats that have it, as tables show it; None without one."""
        return geometric_mean(self.blocks(measure))

    @property
    def rate(self) -> str:
        """The measure of speed: distinct images, or tokens without padding, per second."""
        return self.workload.unit.throughput

    def default(self, parameter: str) -> Any:
        """Default of a parameter of its workload, as a table has it; None of others."""
        field = self.workload.parameters.model_fields.get(parameter)
        return None if field is None or field.is_required() else as_columns({parameter: field.default})[parameter]

    def naming(self, parameters: Iterable[str]) -> str:
        """Values of some parameters, as a configuration file states them; the user's own are not below `args`."""
        return ", ".join(f"{name.removeprefix(ARGS_PREFIX)}: {as_stated(self[name])}" for name in parameters)

    def __getitem__(self, parameter: str) -> Any:
        return self.parameters.get(parameter)

    def rest(self, besides: Iterable[str]) -> tuple[Any, ...]:
        """What configurations that differ at most in these parameters have in common, the kind of machine included.

        So are the versions, with the profiler that was used unless `profiler` is one of the parameters.
        """
        besides = set(besides)
        place = self.provenance
        versions = place.software if "profiler" in besides else place.versions
        return (place.kind, versions, *configuration_key(self.parameters, besides))

    def words(self, without: Iterable[str] = (), in_short: bool = False) -> str:
        """Describe the configuration: its headline, then, unless in short, what differs from the defaults.

        >>> Configuration({"workload": "llm", "model": "tiny", "technique": "lora", "dataset": "chats", "device": "cpu",
        ...     "devices": 2, "precision": "fp32", "packed": True, "steps": 50}, Provenance(), ()).words()
        'tiny, lora, chats, 2 CPU processes, fp32, packed'
        """
        model = self.workload.parameters
        without = {*without, "workload", "repeat", "device", "seed"}
        names = dict.fromkeys((*model.HEADLINE, *(() if in_short else self.parameters)))
        return ", ".join(
            _word(self, name)
            for name in names
            if name not in without
            and (name in model.HEADLINE or self[name] != self.default(name))
            and self[name] is not None
        )


@dataclass(frozen=True)
class Evidence:
    """The measured runs of several scenarios, each once, and the scenarios' tables."""

    runs: list[MeasuredRun]
    scenarios: list[ScenarioTables] = field(default_factory=list)

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Configurations in the order of their first runs, of those that had all parts of their step."""
        return [each for each in self._all_configurations if (each["ablate"] or "none") == "none"]

    @cached_property
    def ablated(self) -> list[Configuration]:
        """Those whose runs went without a part, which trained nothing."""
        return [each for each in self._all_configurations if (each["ablate"] or "none") != "none"]

    @cached_property
    def _all_configurations(self) -> list[Configuration]:
        return _grouped(self.runs)

    def per_run(self, summary: Callable[[ScenarioTables], pd.DataFrame]) -> pd.DataFrame:
        """Rows of a summary of the scenarios' tables, such as those in `per_run`: each run, by its id, once."""
        rows = pd.concat([summary(scenario) for scenario in self.scenarios]) if self.scenarios else pd.DataFrame()
        return rows[~rows.index.duplicated()]

    def table(self, name: str) -> dict[str, pd.DataFrame]:
        """Rows of one of the scenarios' tables by run."""
        found: dict[str, pd.DataFrame] = {}
        for scenario in self.scenarios:
            for run, rows in scenario.table(name).groupby("run"):
                found.setdefault(str(run), rows)
        return found


def configurations_in(measures: pd.DataFrame) -> list[Configuration]:
    """Configurations of a table of runs, in the order of their first ones, on whatever machines these ran."""
    rows = map(without_empty, measures.to_dict("records"))
    return _grouped([MeasuredRun(row["run"], row, Provenance()) for row in rows])


def parameters_of(measures: pd.DataFrame) -> pd.DataFrame:
    """A row of parameters for each of `configurations_in`."""
    names = [name for name in parameters_in(measures) if name != "repeat"]
    return measures[names].drop_duplicates(ignore_index=True)


def _grouped(runs: Sequence[MeasuredRun]) -> list[Configuration]:
    groups: dict[Any, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[run.provenance.machine, run.provenance.versions, configuration_key(run.values)].append(run)
    return [
        Configuration({name: own[0].values.get(name) for name in _fields(own[0])}, own[0].provenance, tuple(own))
        for own in groups.values()
    ]


def read_evidence(results: Path, scenarios: Sequence[str] | None = None) -> Evidence:
    """Read the measurements of an experiment from its results folder: those of some scenarios, by default of all.

    Raises `UserError` if the folder is not there, or a table does not parse.
    """
    if not results.is_dir():
        raise UserError(f"{results}: no such folder, expected the results of an experiment")
    if scenarios is None:
        scenarios = sorted(path.parent.name for path in results.glob(f"{SCENARIOS}/*/measures.csv"))
    tables = [ScenarioTables(results / SCENARIOS / name) for name in scenarios]
    runs: dict[str, MeasuredRun] = {}
    for each in tables:
        for values in _rows(each):
            run = values["run"]
            if run not in runs:
                runs[run] = MeasuredRun(run, values, _provenance(results / RUNS, run))
    return Evidence(list(runs.values()), tables)


def evidence_of(tables: ScenarioTables) -> Evidence:
    """The runs of one scenario by its tables alone, which have the machine and the versions of completed runs."""
    info = tables.table("runs_info").set_index("run")[["machine", "versions"]].astype(object)
    places = {run: Provenance(**row.dropna()) for run, row in info.iterrows()}
    runs = [MeasuredRun(row["run"], row, places.get(row["run"], Provenance())) for row in _rows(tables)]
    return Evidence(runs, [tables])


def _rows(tables: ScenarioTables) -> list[dict[str, Any]]:
    """Rows of the measures as Python values, without empty cells."""
    path = tables.folder / "measures.csv"
    measures = tables.every
    for column in ("run", "outcome", "workload"):
        if column not in measures:
            raise UserError(f"{path}: found no column {column}")
    rows = []
    for row in measures.to_dict("records"):
        values = {str(name): cell for name, value in row.items() if (cell := _cell(value)) is not None}
        if values.get("workload") not in WORKLOADS:
            raise UserError(
                f"{path}: found the workload {values.get('workload')!r}, expected one of {', '.join(WORKLOADS)}"
            )
        rows.append(values | {"run": str(values.get("run", ""))})
    return rows


def _cell(value: Any) -> Any:
    """A cell as a Python value, whatever the other cells of its column made of it; None for an empty one."""
    if pd.isna(value):
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value


def _provenance(runs: Path, run: str) -> Provenance:
    """Machine, versions and data of a run, from its record if there is one."""
    if not RUN_NAME.fullmatch(run) or not (runs / run / RUN).is_file():
        return Provenance()
    record = read_run(runs / run)
    hardware = record.hardware
    bindings = [rank.binding for rank in record.ranks if rank.binding]
    return Provenance(
        machine=machine_in_words(hardware) if hardware else None,
        versions=versions_in_words(record),
        gpu=", ".join(dict.fromkeys(gpu_names(hardware))) or None,
        gpu_memory_bytes=smallest_gpu_bytes(hardware),
        numa_nodes=frozenset(node for binding in bindings for node in binding.numa_nodes or ()),
        usable_cpus=hardware.usable_cpus if hardware else None,
        data_source=record.data.source if record.data else None,
        group=record.order.group if record.order else (),
    )


def _fields(run: MeasuredRun) -> list[str]:
    """Parameters of the run's workload, but for the repeat; the user's own one by one."""
    own = sorted(name for name in run.values if name.startswith(ARGS_PREFIX))  # scenarios may state them in any order
    fields = WORKLOADS[run.values["workload"]].parameters.model_fields
    return [*(name for name in fields if name not in ("repeat", ARGS)), *own]


def _word(configuration: Configuration, name: str) -> str:
    value = configuration[name]
    if name == "devices":
        return counted(value, DEVICE_WORDS[configuration["device"]])
    if name == "image_size":
        return f"{value} px"
    spaced = name.removeprefix(ARGS_PREFIX) if name.startswith(ARGS_PREFIX) else name.replace("_", " ")
    if isinstance(value, bool):
        return spaced if value else f"no {spaced}"
    named = configuration.workload.parameters.HEADLINE
    value = without_names(str(value)) if name == "command" else value
    return str(value) if name in (*named, "layout", "command") else f"{spaced} {value}"


def as_stated(value: Any) -> str:
    """A value as a configuration file states it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def observed_once(jobs: Sequence[Hashable], blocks: Sequence[int]) -> list[int]:
    """Indices of the entries that count: of each job the one with the most blocks, else the first; results have no say.

    `jobs`: the same for entries that differ only in what is no part of the job, such as how it is observed.
    `blocks`: how many each entry has.
    """
    found: dict[Hashable, int] = {}
    for index in sorted(range(len(jobs)), key=lambda index: -blocks[index]):
        found.setdefault(jobs[index], index)
    return sorted(found.values())
